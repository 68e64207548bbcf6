// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// runtimeReady returns the condition of that name.
func runtimeReady(t *testing.T, n *node.Node) *runtimeapi.RuntimeCondition {
	t.Helper()
	st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return st.GetStatus().GetConditions()[0]
}

// notWritten reports whether berth says that the records on the disk of dir cannot be written.
func notWritten(t *testing.T, n *node.Node, why string) bool {
	t.Helper()
	c := runtimeReady(t, n)
	return !c.GetStatus() && c.GetReason() == "RecordsNotWritable" && strings.Contains(c.GetMessage(), why)
}

// PROPERTIES 52 and 73: berth is killed, and its disk can only be read when it is started again. It
// serves what is on record, makes nothing, says why, and keeps watching what runs. Once the disk can
// be written it goes on without a restart, and the code of what ended meanwhile is right.
func TestBerthServesWithADiskThatCanOnlyBeRead(t *testing.T) {
	t.Parallel()
	dir, root := node.TempDir(t), node.TempDir(t)
	const flags = unix.MS_NODEV | unix.MS_NOSUID
	if err := unix.Mount("tmpfs", root, "tmpfs", flags, "mode=0700,size=268435456"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.Symlink(root, filepath.Join(dir, "lib")); err != nil {
		t.Fatal(err)
	}
	remount := func(readOnly uintptr) {
		t.Helper()
		if err := unix.Mount("", root, "", unix.MS_REMOUNT|flags|readOnly, "mode=0700,size=268435456"); err != nil {
			t.Fatalf("mount %s again: %v", root, err)
		}
	}
	n := node.Start(t, node.Options{Dir: dir})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	id := n.Run(pod, cfg, node.ContainerConfig("c", "sh", "-c", exitOnTerm(42)))
	ready(n, id)
	pid := n.Pid(id)
	n.Berth.Kill(unix.SIGKILL)
	remount(unix.MS_RDONLY)
	defer func() {
		if t.Failed() {
			_ = unix.Mount("", root, "", unix.MS_REMOUNT|flags, "mode=0700,size=268435456")
		}
	}()
	n.ServeBerth()
	if c := runtimeReady(t, n); !notWritten(t, n, dir) || !strings.Contains(c.GetMessage(), "read-only file system") {
		t.Errorf("with a disk that can only be read berth says %v", c)
	}
	if st := n.Container(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("what is on record is not served: %v", st)
	}
	if _, err := n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("stop a pod whose record cannot be written: %v", err)
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	n.Until("the timeline has the exit, and why it is not on record", func() bool {
		// The history of before cannot be opened, so nothing may be known of it yet.
		text, err := n.Timeline(t.Context(), id)
		if err != nil && status.Code(err) != codes.NotFound {
			t.Fatal(err)
		}
		return strings.Contains(text, "42") && strings.Contains(text, "read-only file system")
	})
	n.Until("its status says why its end is not on record", func() bool {
		text := n.Container(id).GetMessage()
		return strings.HasPrefix(text, "its process ended with") && strings.Contains(text, "read-only file system")
	})
	if st := n.Container(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("visible before it was durable: %v", st)
	}
	for _, question := range []string{"ps", "status", "why " + id} {
		out, _ := n.Command(strings.Fields(question)...).Output() // status ends with 3, since berth is not ready
		if !strings.Contains(string(out), "on record yet") || n.Exact() && question != "status" && !strings.Contains(string(out), "42") {
			t.Errorf("berth %s does not say that the container has ended:\n%s", question, out)
		}
	}

	remount(0)
	if n.Exact() {
		node.ExpectExit(t, n.Ended(id), 42, "Error")
	} else {
		n.Ended(id)
	}
	n.Until("berth says that pods can be made", n.Connected)
	_, again := n.Sh("exit 7")
	node.ExpectExit(t, n.Ended(again), 7, "Error")
	n.RemoveAll(t.Context())
	n.NoLeaks(t.Context())
}

// PROPERTIES 52: berth said that it was ready while no end could be written to its disk.
func TestBerthIsNotReadyWhileItsRecordsCannotBeWritten(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 4<<20)
	dir := node.TempDir(t)
	if err := os.Mkdir(dir+"/lib", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(disk.dir+"/berth.db", dir+"/lib/berth.db"); err != nil {
		t.Fatal(err)
	}
	n, _ := start(t, node.Options{Dir: dir})
	_, id := n.Sh(exitOnTerm(42))
	ready(n, id)
	punch(t, disk.dir+"/berth.db")
	disk.fill()
	if err := unix.Kill(n.Pid(id), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	n.Until("berth says that its records cannot be written", func() bool { return notWritten(t, n, "no space left") })
	disk.free()
	node.ExpectExit(t, n.Ended(id), 42, "Error")
	n.Until("berth says that pods can be made", n.Connected)
}
