// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// PROPERTIES 43: a shell, a command and a port-forward are in the file and in the timeline, with who
// asked for them, how they ended and how much went through. The file is verified, and a disk that
// takes nothing refuses the next one.
func TestWhoUsedAContainerIsOnRecord(t *testing.T) {
	t.Parallel()
	dir := node.TempDir(t)
	file, sessions := filepath.Join(dir, "audit.log"), filepath.Join(dir, "sessions")
	n := node.Start(t, node.Options{Args: []string{
		"--set", "audit.file='" + file + "'",
		"--set", "audit.sessions='" + sessions + "'",
	}})
	_, id := n.Sh("sleep 1000")
	s := dialSocket(t, execURL(t, n, &runtimeapi.ExecRequest{
		ContainerId: id,
		Cmd:         []string{"sh"},
		Tty:         true,
		Stdin:       true,
		Stdout:      true,
	}))
	s.send(t, stdinChannel, "echo a$((1+1))b; exit 7\n")
	if code := s.code(t, n); code != "7" {
		t.Errorf("got %s", code)
	}
	if _, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	var ends []string
	n.Until("both have ended on record", func() bool {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		ends = nil
		for line := range bytes.Lines(b) {
			var r struct {
				What, Access, Container string
				Code                    *int
				In, Out                 int
				By                      struct{ Pid int }
			}
			if err := json.Unmarshal(line, &r); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			if r.What != "ended" {
				continue
			}
			if r.By.Pid != os.Getpid() {
				t.Errorf("%s: this process is %d", line, os.Getpid())
			}
			ends = append(ends, r.Access)
			if r.Access == "exec" && (*r.Code != 7 || r.In != 24 || r.Out < 20) {
				t.Errorf("%s", line)
			}
		}
		return len(ends) == 2
	})
	if strings.Join(ends, " ") != "exec exec-sync" {
		t.Errorf("%v", ends)
	}
	var kinds []string
	for _, e := range n.History(id) {
		if strings.HasPrefix(e.Kind, "Access") {
			kinds = append(kinds, e.Kind)
		}
	}
	if got := strings.Join(kinds, " "); got != "AccessBegan AccessEnded AccessBegan AccessEnded" {
		t.Errorf("%v", got)
	}
	if out, err := n.Command("audit", "verify", file).CombinedOutput(); err != nil || !strings.Contains(string(out), "whole and in their order") {
		t.Errorf("%v: %s", err, out)
	}
	casts, err := filepath.Glob(filepath.Join(sessions, "*.cast"))
	if err != nil || len(casts) != 1 {
		t.Fatal(casts, err)
	}
	if b, err := os.ReadFile(casts[0]); err != nil || !strings.Contains(string(b), "a2b") {
		t.Errorf("%v: %s", err, b)
	}
	// Nothing can be written into a directory.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
	if err == nil || !strings.Contains(err.Error(), "audit.on_error") {
		t.Errorf("a command that cannot be recorded ran: %v", err)
	}
}
