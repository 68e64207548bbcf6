// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"testing"
	"time"
)

// Installed is the node of a berth that somebody else runs, such as systemd, and that serves on a
// socket. It has the usual image. At the test's end all pods are removed; berth goes on.
func Installed(t testing.TB, socket string) *Node {
	t.Helper()
	n := &Node{Dir: t.TempDir(), t: t}
	n.Client = Dial(t, socket)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		n.RemoveAll(ctx)
		_ = n.Client.Close()
	})
	n.ImportImage()
	return n
}
