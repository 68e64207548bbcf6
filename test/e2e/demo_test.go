// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"berth/test/command"
	"berth/test/node"
	"berth/test/testimage"
	"berth/tools/demo"
)

// berth demo needs nothing but the archive of its image, shows how each container ends, and leaves
// nothing. The settings of this host are not for it.
func TestTheDemo(t *testing.T) {
	t.Parallel()
	berth := node.Module(t) + "/build/bin/berth"
	busybox, err := testimage.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "busybox.tar")
	if err := testimage.WriteOCIArchive(image, demo.Name, busybox); err != nil {
		t.Fatal(err)
	}
	temp := node.TempDir(t)
	cmd := command.New(t, berth, "demo", "--image", image)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"0  Completed", "42  Error", "137  OOMKilled", "hello from init", "stopping", "berth stopped cleanly"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the demo does not show %q:\n%s", want, out)
		}
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("the demo left %v %v", left, err)
	}
	if _, err := netlink.LinkByName("berth-demo0"); err == nil {
		t.Error("the demo left its bridge")
	}
}
