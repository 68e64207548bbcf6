// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// numbered are lines as a shell prints them with `i=0; while [ $i -lt N ]; do echo line $i; ...`.
func numbered(lines int) (script, text string) {
	var b strings.Builder
	for i := range lines {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); done", lines), b.String()
}

// PROPERTIES 23: containers write and end while berth is away after kill -9. Their logs are complete,
// the unfinished last line included, and their exit codes are right. One writes more than its pipe
// holds, so that it waits for berth and ends afterwards.
func TestWhatIsWrittenWhileBerthIsAwayIsLogged(t *testing.T) {
	both(t, quick, func(t *testing.T, n *node.Node, _ *faults) {
		few, fewText := numbered(1000)
		many, manyText := numbered(60000)
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		gate := func(name string) string { return n.Dir + "/gate/" + name }
		if err := os.Mkdir(n.Dir+"/gate", 0o755); err != nil {
			t.Fatal(err)
		}
		run := func(name, script string, tty bool) string {
			c := node.ContainerConfig(name, "sh", "-c", "echo begin; while [ ! -e /gate/go ]; do sleep 0.02; done; "+script+"; printf unfinished; touch /gate/"+name+"; exit 42")
			c.Tty = tty
			c.Mounts = []*runtimeapi.Mount{{HostPath: n.Dir + "/gate", ContainerPath: "/gate"}}
			id := n.Run(pod, cfg, c)
			n.Until(name+" has begun", func() bool { return strings.HasPrefix(n.Log(id), "begin") })
			return id
		}
		short := run("short", few, false)
		long := run("long", many, false)
		terminal := run("terminal", few, true)
		n.Berth.Kill(unix.SIGKILL)
		if err := os.WriteFile(gate("go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"short", "terminal"} {
			n.Until(name+" has written all", func() bool { _, err := os.Stat(gate(name)); return err == nil })
		}
		if _, err := os.Stat(gate("long")); err == nil {
			t.Error("more was written than a pipe holds, and nobody waited for berth")
		}
		n.StartBerth()
		for _, id := range []string{short, long, terminal} {
			node.ExpectExit(t, n.Ended(id), 42, "Error")
		}
		for id, want := range map[string]string{
			short:    "begin\n" + fewText + "unfinished",
			long:     "begin\n" + manyText + "unfinished",
			terminal: strings.ReplaceAll("begin\n"+fewText+"unfinished", "\n", "\r\n"),
		} {
			n.Until("the log is complete", func() bool { return len(n.Log(id)) >= len(want) })
			if got := n.Log(id); got != want {
				t.Errorf("the log has %d bytes, %d were written; it ends with %q", len(got), len(want), got[max(0, len(got)-40):])
			}
		}
	})
}
