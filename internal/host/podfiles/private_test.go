// SPDX-License-Identifier: Apache-2.0

package podfiles

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// CVE-2021-41103: any user of the host could read and fill the /dev/shm of a pod, read the volumes
// of containers, and run the programs of mounted images.
func TestOtherUsersOfTheHostReachNothingOfAPod(t *testing.T) {
	f := make1(t, Sandbox{ID: "p1"})
	for _, dir := range []string{filepath.Dir(f.root), f.root, f.state} { // as open as an administrator may make them
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	image, err := f.MakeImageVolume("c1", 0)
	if err != nil {
		t.Fatal(err)
	}
	rootfs, err := f.MakeRootfs("p1", 123456)
	if err != nil {
		t.Fatal(err)
	}
	volume, err := f.MakeVolume("c1", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Remove("c1"); err != nil {
			t.Error(err)
		}
	})
	program := filepath.Join(image, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(program) })
	shared := f.Shared("p1", false)
	for what, script := range map[string]string{
		"list /dev/shm":     "ls " + shared["/dev/shm"],
		"fill /dev/shm":     "echo > " + shared["/dev/shm"] + "/x",
		"read /etc/hosts":   "cat " + shared["/etc/hosts"],
		"run of an image":   program,
		"list a volume":     "ls " + volume,
		"list the pods":     "ls " + filepath.Dir(f.sandbox("p1")),
		"enter a container": "cd " + f.imageVolumes("c1"),
		"enter a rootfs":    "cd " + rootfs,
	} {
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("another user can %s: %s", what, out)
		}
	}
	cmd := exec.Command("sh", "-c", "cd "+rootfs)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 123456, Gid: 123456}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the pod's root cannot enter its root file system: %s", out)
	}
}

// Directories that an earlier berth made were open to all.
func TestDirectoriesOfAnEarlierBerthAreClosed(t *testing.T) {
	root, state := t.TempDir(), t.TempDir()
	dirs := []string{root + "/volumes", state + "/sandboxes", state + "/volumes"}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	New(root, state)
	for _, dir := range dirs {
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, st.Mode(), err)
		}
	}
}
