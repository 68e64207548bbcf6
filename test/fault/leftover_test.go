// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

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

// A containerd that removes what is left of layers has listed it before it makes the next layer, which
// has the name of one of them, and removes that. Seen in one of some hundred runs of the test above.
func TestALayerThatContainerdHasRemovedIsMadeAgain(t *testing.T) {
	t.Parallel()
	dir := node.TempDir(t)
	n, _ := start(t, node.Options{Dir: dir, External: true})
	pod, _ := n.Sh("exit 0")
	id := n.Create(pod, podOf(t, n, pod), node.ContainerConfig("next", "sh", "-c", "exit 42"))
	at, last := layers(t, dir)
	if err := os.RemoveAll(filepath.Join(at, strconv.Itoa(last))); err != nil {
		t.Fatal(err)
	}
	if _, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	node.ExpectExit(t, n.Ended(id), 42, "Error")
}

// leaveLayers makes the directories of the next layers of a containerd below dir. Each comes to be
// there whole: a containerd that runs may just remove what is left of layers, and a part of one with it.
func leaveLayers(t *testing.T, dir string) {
	t.Helper()
	at, last := layers(t, dir)
	for number := last + 1; number <= last+20; number++ {
		left := filepath.Join(dir, "left")
		if err := errors.Join(
			os.MkdirAll(filepath.Join(left, "fs", "left"), 0o711),
			os.Rename(left, filepath.Join(at, strconv.Itoa(number))),
		); err != nil {
			t.Fatal(err)
		}
	}
}

// layers returns where the layers of a containerd below dir are, and the number of the last one.
func layers(t *testing.T, dir string) (at string, last int) {
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
	for _, d := range made {
		if number, err := strconv.Atoi(d.Name()); err == nil {
			last = max(last, number)
		}
	}
	return found[0], last
}
