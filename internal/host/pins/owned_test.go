// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestAUserNamespaceOwnsTheNetworkNamespaceThatIsMadeForIt(t *testing.T) {
	n := newNetworks(t)
	path := n.PathFor("p1")
	for range 2 { // a namespace that is pinned already is kept
		if err := n.CreateOwned(t.Context(), path, UserIDs{UID: 100000, GID: 200000, UIDs: 65536, GIDs: 1000}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := n.Remove(t.Context(), path); err != nil {
			t.Error(err)
		}
	})
	owner, err := n.Owner(path)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	cmd := exec.Command("nsenter", fmt.Sprintf("--user=/proc/%d/fd/%d", os.Getpid(), owner.Fd()), "--net="+path,
		"sh", "-c", "cat /proc/self/uid_map /proc/self/gid_map; cat /sys/class/net/lo/flags; unshare -m sh -c 'mount -t sysfs none /sys && ls /sys/class/net'")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if got := strings.Join(strings.Fields(string(out)), " "); !strings.HasPrefix(got, "0 100000 65536 0 200000 1000") || !strings.HasSuffix(got, " lo") {
		t.Errorf("%q", got)
	}
	if found, err := n.Pinned(t.Context()); err != nil || len(found) != 1 || found[0] != "p1" || filepath.Base(path) == "p1" {
		t.Errorf("%q %v", found, err)
	}
}
