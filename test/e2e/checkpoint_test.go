// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/client"
	"berth/test/node"
)

// withoutCRIU sets a PATH for the test and its node that has every program but CRIU.
func withoutCRIU(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("criu"); err != nil {
		return
	}
	dir := t.TempDir()
	for _, from := range filepath.SplitList(os.Getenv("PATH")) {
		programs, _ := os.ReadDir(from) // one that is not there has none
		for _, p := range programs {
			if p.Name() == "criu" {
				continue
			}
			if err := os.Symlink(filepath.Join(from, p.Name()), filepath.Join(dir, p.Name())); err != nil && !errors.Is(err, os.ErrExist) {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("PATH", dir)
}

// PROPERTIES 28: a node without CRIU says so, and the container goes on.
func TestACheckpointWithoutCRIU(t *testing.T) {
	withoutCRIU(t)
	node.Both(t, func(t *testing.T, n *node.Node) {
		_, id := n.Sh("while :; do echo tick; sleep 0.1; done")
		location := filepath.Join(t.TempDir(), "c.tar")
		_, err := n.CheckpointContainer(t.Context(), &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: location})
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "CRIU is not installed") {
			t.Errorf("%v", err)
		}
		if _, err := os.Lstat(location); !errors.Is(err, os.ErrNotExist) {
			t.Error("there is an archive")
		}
		ticks := func() int { return strings.Count(n.Log(id), "tick") }
		before := ticks()
		n.Until("it goes on", func() bool { return ticks() > before })
	})
}

// fakeCRIU is an OCI runtime whose checkpoint needs no CRIU: it writes a file where the images
// belong, and waits for as long as the file hang exists.
func fakeCRIU(t *testing.T, hang string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runc")
	script := fmt.Sprintf(`#!/bin/sh
verb= images=
for a in "$@"; do
	case "$verb$a" in checkpoint) verb=checkpoint;; esac
	[ "$last" = --image-path ] && images=$a
	last=$a
done
if [ "$verb" = checkpoint ]; then
	echo memory >"$images/pages-1.img"
	while [ -e %s ]; do sleep 0.05; done
	exit 0
fi
exec %s "$@"
`, hang, filepath.Join(node.Module(t), "build/libexec/runc"))
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// untilPaused waits until the processes of a container are frozen.
func untilPaused(t *testing.T, n *node.Node, id string) {
	t.Helper()
	pid := n.Pid(id)
	n.Until("it is paused", func() bool {
		st := setting(t, pid, "freezer", "freezer.state", "cgroup.events")
		return st == "FROZEN" || strings.Contains(st, "frozen 1")
	})
}

// untilNoCheckpoint waits until no checkpoint is being made, or left.
func untilNoCheckpoint(n *node.Node) {
	n.Until("its directory is removed", func() bool {
		left, err := os.ReadDir(filepath.Join(n.Dir, "lib", "checkpoints"))
		return err == nil && len(left) == 0
	})
}

// The archive has what the container changed, while it was paused, and is for root alone. A berth
// that is killed meanwhile leaves no container paused.
func TestACheckpoint(t *testing.T) {
	t.Parallel()
	hang := filepath.Join(t.TempDir(), "hang")
	n := node.Start(t, node.Options{Runc: fakeCRIU(t, hang)})
	_, id := n.Sh("echo changed >/file; rm /etc/passwd; while :; do echo tick; sleep 0.1; done")
	n.Until("it has begun", func() bool { return strings.Contains(n.Log(id), "tick") })
	dir := t.TempDir()
	location := filepath.Join(dir, "c.tar")
	checkpoint := func() error {
		_, err := n.CheckpointContainer(t.Context(), &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: location})
		return err
	}
	if err := checkpoint(); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(location); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	got := client.Archive(t, location)
	if !strings.Contains(got["container.log"], "tick") || got["checkpoint/pages-1.img"] != "memory\n" {
		t.Errorf("%q", got)
	}
	var config struct{ ID, Name string }
	if err := json.Unmarshal([]byte(got["config.dump"]), &config); err != nil || config.ID != id {
		t.Errorf("%s %v", got["config.dump"], err)
	}
	var spec struct{ Annotations map[string]string }
	if err := json.Unmarshal([]byte(got["spec.dump"]), &spec); err != nil || spec.Annotations["io.kubernetes.cri.container-name"] == "" {
		t.Errorf("%s %v", got["spec.dump"], err)
	}
	diff := filepath.Join(dir, "diff.tar")
	if err := os.WriteFile(diff, []byte(got["rootfs-diff.tar"]), 0o600); err != nil {
		t.Fatal(err)
	}
	if changes := client.Archive(t, diff); changes["file"] != "changed\n" {
		t.Errorf("the changes are %q", changes)
	}
	if err := checkpoint(); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the archive is there: %v", err)
	}

	location = filepath.Join(dir, "d.tar")
	if err := os.WriteFile(hang, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(hang)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, _ = n.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: location})
	}()
	untilPaused(t, n, id)
	n.Berth.Kill(syscall.SIGKILL)
	if err := os.Remove(hang); err != nil {
		t.Fatal(err)
	}
	n.StartBerth()
	ticks := func() int { return strings.Count(n.Log(id), "tick") }
	before := ticks()
	n.Until("it goes on", func() bool { return ticks() > before })
	if left, err := os.ReadDir(dir); err != nil || slices.ContainsFunc(left, func(e os.DirEntry) bool { return e.Name() != "c.tar" && e.Name() != "diff.tar" }) {
		t.Errorf("left: %v %v", left, err)
	}
	untilNoCheckpoint(n)
	began := time.Now()
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}
