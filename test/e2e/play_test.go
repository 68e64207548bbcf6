// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/node"
)

// A manifest of PostgreSQL was refused for its volume in memory, the group of its volumes and its user
// namespace, each of which the kubelet and CRI know.
func TestAPlayedPodHasVolumesInMemoryTheirGroupAndItsOwnUsers(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	if err := os.Chmod(n.Dir, 0o711); err != nil { // root of a pod has to reach the bundles below it
		t.Fatal(err)
	}
	volumes := filepath.Join(n.Dir, "volumes")
	play := func(name, spec, script string) (string, error) {
		t.Helper()
		manifest := filepath.Join(n.Dir, name+".yaml")
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", uid: " + name + "}\nspec:\n  restartPolicy: Never\n" + spec +
			"  containers:\n  - name: c\n    image: " + node.Busybox + "\n    command: [sh, -c, '" + script + "']\n"
		if strings.Contains(spec, "volumes") {
			text += "    volumeMounts: [{name: m, mountPath: /m}, {name: d, mountPath: /d}]\n"
		}
		if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := n.Command("play", "--wait", "--rm", "--log-dir", n.Dir+"/played", "--volume-dir", volumes, manifest).CombinedOutput()
		return string(out), err
	}
	log := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(n.Dir, "played/default_"+name+"_"+name+"/c/0.log"))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	const memory = "  securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 4321}\n" +
		"  volumes:\n  - {name: m, emptyDir: {medium: Memory, sizeLimit: 8Mi}}\n  - {name: d, emptyDir: {}}\n"
	out, err := play("memory", memory, `id -G; echo x >/d/f; echo x >/m/f; stat -c "group %g" /d/f /m/f; `+
		`! dd if=/dev/zero of=/m/g bs=1M count=16 2>/dev/null; grep -c " /m tmpfs .*size=8192k" /proc/mounts`)
	if got := log("memory"); err != nil || strings.Count(got, "group 4321") != 2 || !strings.Contains(got, " 4321\n") || !strings.HasSuffix(got, "F 1\n") {
		t.Errorf("%v %s\n%s", err, out, got)
	}
	if _, err := os.Lstat(filepath.Join(volumes, "memory")); !os.IsNotExist(err) {
		t.Errorf("the volumes were not removed: %v", err)
	}
	if err := unix.Unmount(filepath.Join(volumes, "memory/m"), unix.MNT_DETACH); err == nil {
		t.Error("the volume in memory was left mounted")
	}
	out, err = play("users", "  hostUsers: false\n", "cat /proc/self/uid_map")
	if fields := strings.Fields(log("users")); err != nil || len(fields) != 6 || fields[3] != "0" || fields[4] == "0" || fields[5] != "65536" {
		t.Errorf("%v %s: %q", err, out, fields)
	}
}
