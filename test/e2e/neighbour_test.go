// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/engine/shims"
	"berth/test/command"
	"berth/test/node"
)

// PROPERTIES 54: a user without root removes pods beside a berth of root's that has some. The user's berth
// has inherited the mounts of root's pods, looked for bundles beside them, was refused, and tried
// again for ever.
func TestAUserRemovesPodsBesideThoseOfRoot(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	stays := n.Run(pod, cfg, node.ContainerConfig("stays", "sleep", "1000"))

	u, image, manifest := aUser(t, `
  terminationGracePeriodSeconds: 1
  containers:
  - {name: web, image: IMAGE, command: [sleep, "86400"]}
`)
	service := startRootless(t, u)
	for _, args := range [][]string{{"import", image}, {"play", manifest}, {"rm", "--force", "--all"}} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		t.Cleanup(cancel)
		cmd := u.Berth(args...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		stop()
		if err != nil {
			t.Errorf("berth %v: %v: %s", args, errors.Join(err, ctx.Err()), out.String())
		}
	}
	service.stop(t)
	u.NothingIsLeft()

	if st := n.Container(stays); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container of root's berth: %v", st)
	}
	n.RemoveAll(t.Context())
	n.NoLeaks(t.Context())
}

// PROPERTIES 54: a user of the host has a mount and a directory with the names that containerd has for the
// bundle of a pod, with a link to somebody's directory in it, and a process with the name and the
// arguments of the program that cleans up after that pod. The pod is removed, and nothing of the
// user's is touched.
func TestWhatAUserNamedAfterAPodIsLeftAlone(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	n := node.Start(t, node.Options{Args: ownShims})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	id := n.Run(pod, cfg, node.ContainerConfig("c", "sleep", "1000"))

	home := node.TempDir(t)
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	var kept []string
	for _, name := range []string{pod, id} {
		bundle, other := filepath.Join(home, shims.TaskDir, name), filepath.Join(home, "other", name)
		rootfs := filepath.Join(bundle, "rootfs")
		for _, dir := range []string{rootfs, other} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.Symlink(other, filepath.Join(bundle, "work")), os.WriteFile(filepath.Join(other, "file"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(filepath.Join(home, "other"), rootfs, "", unix.MS_BIND, ""); err != nil { // as fusermount does it
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(rootfs, unix.MNT_DETACH) })
		kept = append(kept, filepath.Join(bundle, "work"), filepath.Join(other, "file"), filepath.Join(rootfs, name))
	}
	if out, err := command.New(t, "chown", "-R", "65534:65534", home).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program := filepath.Join(home, "containerd-shim-runc-v2")
	sh, err := os.ReadFile("/bin/sh")
	if err == nil {
		err = os.WriteFile(program, sh, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pod, id} {
		// A shell that waits for a line of its input has these as the arguments of its script.
		cmd := command.New(t, program, "-c", "read line", "-namespace", "k8s.io", "-id", name, "delete")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(in.Close(), cmd.Wait()); err != nil && cmd.ProcessState.ExitCode() != 1 { // of read at the end
				t.Errorf("the user's process did not live on: %v", err)
			}
		})
	}

	for _, pid := range n.Shims() { // so that what is left is looked for
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	n.Until("the container has ended", func() bool {
		return n.Container(id).GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	n.RemoveAll(t.Context())
	n.NoLeaks(t.Context())
	for _, path := range kept {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("it was not left alone: %v", err)
		}
	}
}
