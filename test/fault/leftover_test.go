// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"berth/test/node"
)

// A kill or a power cut in the middle of making a layer leaves its directory, and no record of it.
// The next layer gets the same number. No call fails because of that.
func TestALeftoverOfALayerIsInNobodysWay(t *testing.T) {
	t.Parallel()
	for _, external := range []bool{false, true} {
		dir := node.TempDir(t)
		n, _ := start(t, node.Options{Dir: dir, External: external})
		pod, _ := n.Sh("exit 0")
		if !external { // the one inside berth begins anew
			n.Berth.Kill(syscall.SIGKILL)
		}
		leaveLayers(t, dir)
		if !external {
			n.StartBerth()
		}
		id := n.Run(pod, podOf(t, n, pod), node.ContainerConfig("next", "sh", "-c", "exit 42"))
		node.ExpectExit(t, n.Ended(id), 42, "Error")
	}
}

// leaveLayers makes the directories of the next layers of a containerd below dir.
func leaveLayers(t *testing.T, dir string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*", "*", "io.containerd.snapshotter.v1.overlayfs", "snapshots"))
	if err == nil && len(found) == 0 {
		found, err = filepath.Glob(filepath.Join(dir, "*", "io.containerd.snapshotter.v1.overlayfs", "snapshots"))
	}
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	made, err := os.ReadDir(found[0])
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	for _, d := range made {
		if number, err := strconv.Atoi(d.Name()); err == nil {
			last = max(last, number)
		}
	}
	for number := last + 1; number <= last+20; number++ {
		if err := os.MkdirAll(filepath.Join(found[0], strconv.Itoa(number), "fs", "left"), 0o711); err != nil {
			t.Fatal(err)
		}
	}
}
