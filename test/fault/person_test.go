// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"berth/test/node"
)

// output is what a command has written so far.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// PROPERTIES 21: `berth rm` of something whose runtime hangs was silent. It says what it waits for,
// and with the last error once an attempt has failed. Ctrl-C ends the command, not the removal.
func TestARemovalSaysWhatItWaitsFor(t *testing.T) {
	both(t, quick, func(t *testing.T, n *node.Node, f *faults) {
		_, id := n.Sh("sleep 1000")
		f.set("runc.delete", "stall 60s")
		cmd := n.Command("rm", "--force", id)
		out := &output{}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		n.Until("the command says what it waits for", func() bool {
			s := out.String()
			return strings.Contains(s, "waiting for container c (") && strings.Contains(s, "to release") && strings.Contains(s, "last error: ")
		})
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 || !strings.Contains(out.String(), "goes on by itself") {
			t.Errorf("%v:\n%s", err, out)
		}
		if !slices.Contains(f.hits("runc.delete"), id) {
			t.Error("the delete did not stall: this shows nothing")
		}
		f.clear("runc.delete")
		n.Until("the removal is done, and nobody asks again", func() bool { return gone(t, n, id) })
	})
}
