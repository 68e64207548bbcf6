// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/engine/adopt"
	"berth/internal/host/spec"
)

// PROPERTIES 46: what a container has written while containerd restarts on the way back, before it ended,
// is the end of its log as soon as that can be written, and is said to be lost if it never can.
func TestTheLastWordsOnTheWayBackAreWrittenOrSaidToBeLost(t *testing.T) {
	for _, mended := range []bool{true, false} {
		f, h := startFake(t, "here"), newHost(t)
		f.pod("p1", "c1")
		f.set(false)
		dir := t.TempDir()
		log, fifo := filepath.Join(dir, "c1.log"), filepath.Join(dir, "c1-stdout")
		f.add("p1", spec.KindSandbox, "io.cri-containerd.sandbox.metadata",
			`{"Version":"v1","Metadata":{"ID":"p1","Config":{"metadata":{"name":"p1","uid":"u","namespace":"default"},"log_directory":"`+dir+`"}}}`)
		f.add("c1", spec.KindContainer, "io.cri-containerd.container.metadata",
			`{"Version":"v1","Metadata":{"ID":"c1","SandboxID":"p1","Config":{"metadata":{"name":"c1"},"image":{"image":"i"},"log_path":"c1.log"},"ImageRef":"i","LogPath":"`+log+`"}}`)
		f.tasks["c1"].Stdout, f.tasks["c1"].Stderr = fifo, fifo+"2"
		for _, path := range []string{fifo, fifo + "2"} {
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		h.expect(f, adopt.Request{})
		if mended {
			h.onSaid = func(what string) {
				if strings.Contains(what, "tried again") {
					_ = os.Remove(log + ".link")
				}
			}
		} else {
			h.patience = 1
		}
		h.expect(f, adopt.Request{Back: true, Switch: "ln " + log + " " + log + ".link; echo last words >" + fifo + "; touch " + f.dir + "/ended; " + f.turnOn()})
		b, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(string(b), " stdout F last words\n") != mended || strings.Contains(h.said, "are lost") == mended {
			t.Errorf("mended: %t: the log is %q\n%s", mended, b, h.said)
		}
	}
}
