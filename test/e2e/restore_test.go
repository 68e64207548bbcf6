// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// guest reports whether this is the guest of test/guest, whose CRIU works on its kernel.
func guest() bool { return os.Getenv("BERTH_GUEST") != "" }

// core is the beginning of CRIU's image of a process on amd64.
const core = "\x19CVTG8\x05U\x02\x00\x00\x00\x08\x01"

// restorer is an OCI runtime that makes checkpoints and restores them: runc with CRIU in the guest.
// Elsewhere it needs no CRIU: a container is restored by a start of its program, and not at all as
// long as the file refuse exists in dir. Before and after that it waits as long as a file of
// that name exists there, and makes the file waits.
func restorer(t *testing.T, dir string) string {
	t.Helper()
	runc := filepath.Join(node.Module(t), "build/libexec/runc")
	if guest() {
		return runc
	}
	path := filepath.Join(t.TempDir(), "runc")
	script := fmt.Sprintf(`#!/bin/bash
verb= images= work= last= args=()
for a in "$@"; do
	case "$verb$a" in checkpoint | restore) verb=$a; [ "$a" = restore ] && a=run;; esac
	[ "$last" = --image-path ] && images=$a
	[ "$last" = --work-path ] && work=$a
	case $a in --image-path | --work-path | --no-subreaper) ;; "$images" | "$work") ;; *) args+=("$a");; esac
	last=$a
done
if [ "$verb" = checkpoint ]; then
	printf '\031\103\126\124\107\070\005\125\013\000\000\000\010\001\052\007\122\003\220\001\001\130\002' >"$images/core-1.img" # may do nothing
	echo inventory >"$images/inventory.img"
	exit 0
fi
[ "$verb" != restore ] || [ -e "$images/core-1.img" ] || exit 3
if [ "$verb" = restore ] && [ -e %[1]s/refuse ]; then
	echo "(00.01) Error (criu/x.c:1): it will not be" >"$work/restore.log"
	echo "criu failed: type NOTIFY errno 0" >&2
	exit 1
fi
[ "$verb" = restore ] || exec %[2]s "$@"
while [ -e %[1]s/before ]; do touch %[1]s/waits; sleep 0.05; done
%[2]s "${args[@]}" || exit
while [ -e %[1]s/after ]; do touch %[1]s/waits; sleep 0.05; done
`, dir, runc)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// counts counts in a variable, and in a file from which it goes on when it is started. Its name is
// in its memory alone.
const counts = `name=$(cat /proc/sys/kernel/random/uuid); i=$(cat /count || echo 0); trap 'exit 42' TERM
while :; do i=$((i+1)); echo $i >/count.new; mv /count.new /count; echo "$name counts $i"; sleep 0.1 & wait $!; done`

var countLine = regexp.MustCompile(`(?m)^(\S+) counts (\d+)$`)

// goesOn starts a container that is restored, and waits until it counts beyond before. It expects that
// the container goes on there, as what had that name, and returns the last number.
func goesOn(t *testing.T, n *node.Node, id, name string, before int) (last int) {
	t.Helper()
	if _, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	n.Until("it goes on", func() bool { _, _, last := counting(n, id); return last > before })
	now, first, last := counting(n, id)
	if first < 2 || first > before+1 {
		t.Errorf("it went on with %d after %d", first, before)
	}
	if guest() && now != name {
		t.Errorf("it is %s, and was %s: it was started anew", now, name)
	}
	return last
}

// counting returns the name of what counts, and the first and the last number in a container's log.
func counting(n *node.Node, id string) (name string, first, last int) {
	all := countLine.FindAllStringSubmatch(n.Log(id), -1)
	if len(all) == 0 {
		return "", 0, 0
	}
	first, _ = strconv.Atoi(all[0][2])
	last, _ = strconv.Atoi(all[len(all)-1][2])
	return all[0][1], first, last
}

// PROPERTIES 32: a container that was checkpointed and removed goes on in another pod: its memory,
// its files, and its output. A restore that fails says why in CRIU's words, and nothing is left of
// it. berth watches what was restored as any other container: it survives a kill -9 of berth, and
// its exit code is exact.
func TestARestoredContainerGoesOn(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		dir := t.TempDir()
		refuse := filepath.Join(dir, "refuse")
		n := node.Start(t, node.Options{Runc: restorer(t, dir), External: external})
		cfg := node.ContainerConfig("c", "sh", "-c", counts)
		cfg.Mounts = []*runtimeapi.Mount{{HostPath: t.TempDir(), ContainerPath: "/mounted"}}
		sandbox := n.PodConfig()
		pod := n.Pod(sandbox)
		id := n.Run(pod, sandbox, cfg)
		n.Until("it counts", func() bool { _, _, last := counting(n, id); return last > 5 })
		archive := filepath.Join(t.TempDir(), "c.tar")
		if _, err := n.CheckpointContainer(t.Context(), &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: archive}); err != nil {
			t.Fatal(err)
		}
		name, _, before := counting(n, id)
		if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
			t.Fatal(err)
		}

		sandbox = n.PodConfig()
		pod = n.Pod(sandbox)
		fewer := node.ContainerConfig("c", "sh", "-c", counts) // CRIU does not restore into fewer mounts
		fewer.Image.Image, cfg.Image.Image, cfg.Metadata.Attempt = archive, archive, 1
		if err := os.WriteFile(refuse, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		notRestored(t, n, n.Create(pod, sandbox, fewer))
		if err := os.Remove(refuse); err != nil {
			t.Fatal(err)
		}

		const limit = 64 << 20
		cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: limit}
		id = n.Create(pod, sandbox, cfg)
		if err := os.Remove(archive); err != nil { // it was unpacked
			t.Fatal(err)
		}
		last := goesOn(t, n, id, name, before)
		st := n.Container(id)
		if st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || st.GetImage().GetImage() != node.Busybox {
			t.Errorf("%v", st)
		}
		if got := setting(t, n.Pid(id), "memory", "memory.limit_in_bytes", "memory.max"); got != strconv.Itoa(limit) {
			t.Errorf("its memory limit is %s, and %d was asked for", got, limit)
		}
		if left, err := os.ReadDir(filepath.Join(n.Dir, "lib", "restores")); err != nil || len(left) > 0 {
			t.Errorf("left: %v %v", left, err)
		}
		n.Berth.Kill(syscall.SIGKILL)
		n.StartBerth()
		n.Until("it goes on", func() bool { _, _, now := counting(n, id); return now > last })
		term(t, n.Pid(id))
		node.ExpectExit(t, n.Measured(id), 42, "Error")
	})
}

// PROPERTIES 32: a container goes on from a checkpoint in an image of a registry, in the namespace for
// which a rule says so and in no other one. The image that the checkpoint was made with is pulled if it
// is gone, and the one that holds the checkpoint may go before the container is started.
func TestARestoredContainerComesFromAnImage(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		reg := testregistry.Start(t)
		busybox, err := testimage.Busybox()
		if err != nil {
			t.Fatal(err)
		}
		app := reg.Push("team/app:1", busybox)
		dir := t.TempDir()
		policy := filepath.Join(dir, "policy.toml")
		if err := os.WriteFile(policy, []byte(`
[[rules]]
name = "checkpoints"
namespaces = ["default"]
repositories = ["`+reg.Addr+`/checkpoints/**"]
action = "allow"
restore = true

[[rules]]
name = "rest"
registries = ["*"]
action = "allow"
`), 0o600); err != nil {
			t.Fatal(err)
		}
		n := node.Start(t, node.Options{Runc: restorer(t, dir), External: external, Args: []string{"--set", "image.policy_file=" + policy}})
		pull := func(ref string, sandbox *runtimeapi.PodSandboxConfig) string {
			t.Helper()
			resp, err := n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}, SandboxConfig: sandbox})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetImageRef()
		}
		remove := func(ref string) {
			t.Helper()
			if _, err := n.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
				t.Fatal(err)
			}
		}
		sandbox := n.PodConfig()
		pod := n.Pod(sandbox)
		cfg := node.ContainerConfig("c", "sh", "-c", counts)
		cfg.Image = &runtimeapi.ImageSpec{Image: pull(app, sandbox), UserSpecifiedImage: app}
		id := n.Run(pod, sandbox, cfg)
		n.Until("it counts", func() bool { _, _, last := counting(n, id); return last > 5 })
		archive := filepath.Join(t.TempDir(), "c.tar")
		if _, err := n.CheckpointContainer(t.Context(), &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: archive}); err != nil {
			t.Fatal(err)
		}
		name, _, before := counting(n, id)
		if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
			t.Fatal(err)
		}
		remove(app)
		b, err := os.ReadFile(archive)
		if err == nil {
			err = os.Remove(archive)
		}
		if err != nil {
			t.Fatal(err)
		}
		img, err := testimage.Checkpoint(b, testimage.CheckpointOfCRIO)
		if err != nil {
			t.Fatal(err)
		}
		ref, elsewhere := reg.Push("checkpoints/c:1", img), reg.Push("elsewhere/c:1", img)

		sandbox, other := n.PodConfig(), n.PodConfig()
		other.Metadata.Namespace = "other"
		pod = n.Pod(sandbox)
		cfg.Metadata.Attempt = 1
		cfg.Image = &runtimeapi.ImageSpec{Image: pull(ref, sandbox), UserSpecifiedImage: ref}
		refused := func(what, pod string, sandbox *runtimeapi.PodSandboxConfig) {
			t.Helper()
			_, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: cfg, SandboxConfig: sandbox})
			if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), `rule "rest"`) || !strings.Contains(err.Error(), "restore = true") {
				t.Errorf("%s: %v", what, err)
			}
		}
		refused("another namespace", n.Pod(other), other)
		cfg.Image.UserSpecifiedImage = elsewhere
		refused("another repository", pod, sandbox)
		cfg.Image.UserSpecifiedImage = ref

		id = n.Create(pod, sandbox, cfg)
		remove(ref)
		goesOn(t, n, id, name, before)
		if got := n.Container(id).GetImageRef(); !strings.HasPrefix(got, reg.Addr+"/team/app@sha256:") {
			t.Errorf("its image is %s", got)
		}
		term(t, n.Pid(id))
		node.ExpectExit(t, n.Measured(id), 42, "Error")
	})
}

// notRestored starts a container that CRIU does not restore, and removes it.
func notRestored(t *testing.T, n *node.Node, id string) {
	t.Helper()
	_, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
	if err == nil || !strings.Contains(err.Error(), "CRIU: ") || !strings.Contains(err.Error(), "Error (criu/") {
		t.Errorf("%v", err)
	}
	st := n.Ended(id)
	if st.GetReason() != "StartError" || st.GetExitCode() != 128 || !strings.Contains(st.GetMessage(), "CRIU: ") {
		t.Errorf("%v", st)
	}
	if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(n.Dir, "lib", "restores")); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// PROPERTIES 32: berth is killed while the OCI runtime is at work on a restore, before it has made
// the process, and after that: there is no process that nobody watches, and the container runs, or
// can be started.
func TestKill9WhileAContainerIsRestored(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		for _, when := range []string{"before", "after"} {
			dir := t.TempDir()
			hang := filepath.Join(dir, when)
			n := node.Start(t, node.Options{Runc: restorer(t, dir), External: external, Args: keepOutput})
			sandbox := n.PodConfig()
			pod := n.Pod(sandbox)
			cfg := node.ContainerConfig("c", "sh", "-c", counts)
			cfg.Image.Image = archiveOf(t)
			id := n.Create(pod, sandbox, cfg)
			if err := os.WriteFile(hang, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			go func() {
				_, _ = n.StartContainer(context.WithoutCancel(t.Context()), &runtimeapi.StartContainerRequest{ContainerId: id})
			}()
			n.Until("the runtime is at work", func() bool {
				_, err := os.Stat(filepath.Join(dir, "waits"))
				return err == nil
			})
			first := 0 // the process that was restored, and that only the runtime knows
			if when == "after" {
				b, err := os.ReadFile(filepath.Join(n.Bundle(id), "init.pid"))
				if first, _ = strconv.Atoi(string(b)); err != nil || first == 0 {
					t.Fatalf("%q %v", b, err)
				}
			}
			n.Berth.Kill(syscall.SIGKILL)
			n.StartBerth()
			if err := os.Remove(hang); err != nil {
				t.Fatal(err)
			}
			_, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
			if st := n.Container(id).GetState(); st != runtimeapi.ContainerState_CONTAINER_RUNNING {
				t.Errorf("%s, external %v: %v, %v", when, external, st, err)
				continue
			}
			// A containerd that lives on has the runtime finish its work: the container is adopted then.
			if adopted := first == n.Pid(id); first > 0 && !adopted && !errors.Is(syscall.Kill(first, 0), syscall.ESRCH) {
				t.Errorf("external %v: process %d lives, and %d is the container's", external, first, n.Pid(id))
			}
			n.Until("it counts", func() bool { _, _, last := counting(n, id); return last > 0 })
			pid := n.Pid(id)
			n.Until("it has ended", func() bool { // as soon as it has a handler: what the log has may be the first one's
				_ = syscall.Kill(pid, syscall.SIGTERM)
				return n.Container(id).GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
			})
			node.ExpectExit(t, n.Container(id), 42, "Error")
		}
	})
}

// A node without CRIU says so.
func TestARestoreWithoutCRIU(t *testing.T) {
	t.Parallel()
	withoutCRIU(t)
	n := node.Start(t, node.Options{})
	sandbox := n.PodConfig()
	pod := n.Pod(sandbox)
	cfg := node.ContainerConfig("c", "sh")
	cfg.Image.Image = archiveOf(t)
	id := n.Create(pod, sandbox, cfg)
	_, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "CRIU is not installed") {
		t.Errorf("%v", err)
	}
	if st := n.Ended(id); st.GetReason() != "StartError" {
		t.Errorf("%v", st)
	}
}

// archiveOf makes an archive that nothing but a runtime without CRIU can restore.
func archiveOf(t *testing.T) string {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "c.tar")
	f, err := os.OpenFile(archive, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for name, content := range map[string]string{
		"config.dump":              `{"rootfsImageName":"` + node.Busybox + `"}`,
		"checkpoint/core-1.img":    core,
		"checkpoint/inventory.img": "inventory",
	} {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return archive
}

// PROPERTIES 32: what is not an archive of a checkpoint, or may be somebody else's, makes no
// container.
func TestAFileThatIsNotAnArchiveIsRefused(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	sandbox := n.PodConfig()
	pod := n.Pod(sandbox)
	garbage := filepath.Join(t.TempDir(), "c.tar")
	if err := os.WriteFile(garbage, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	for archive, want := range map[string]codes.Code{
		garbage:          codes.InvalidArgument,
		garbage + ".old": codes.NotFound,
		"/dev/null":      codes.InvalidArgument,
	} {
		cfg := node.ContainerConfig("c", "sh")
		cfg.Image.Image = archive
		_, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: cfg, SandboxConfig: sandbox})
		if status.Code(err) != want {
			t.Errorf("%s: %v", archive, err)
		}
	}
	if list, err := n.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); err != nil || len(list.GetContainers()) > 0 {
		t.Errorf("%v %v", list, err)
	}
}
