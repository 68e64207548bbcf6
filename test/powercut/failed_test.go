// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/node"
)

// A write to the disk of the layers has failed, and nobody was told of it: the kernel mounts no layer
// without syncs then. No container of the node could be started until somebody synced that disk.
func TestAContainerStartsAfterAWriteToTheDiskHasFailed(t *testing.T) {
	d, bound := thinDisk(t)
	n := start(t, d, false)
	_, before := n.Sh("exit 3")
	node.ExpectExit(t, n.Ended(before), 3, "Error")

	const size = 4 << 20
	f, err := os.Create(d.dir + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil { // the file has its place, and the disk no room
		t.Fatal(err)
	}
	run(t, "sync", "-f", d.dir)
	bound(0)
	if _, err := f.WriteAt(bytes.Repeat([]byte("lost"), size/4), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err == nil {
		t.Fatal("the disk has not failed: the test proves nothing")
	}
	bound(200 << 20)
	_, after := n.Sh("exit 4")
	node.ExpectExit(t, n.Ended(after), 4, "Error")
}
