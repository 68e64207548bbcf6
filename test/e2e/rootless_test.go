// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/test/node"
	"berth/test/testimage"
	"berth/tools/demo"
)

// imageOf writes the archive of the demo's image into the home directory of a user.
func imageOf(t *testing.T, u *node.User) string {
	t.Helper()
	busybox, err := testimage.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(u.Home, "busybox.tar")
	if err := testimage.WriteOCIArchive(path, demo.Name, busybox); err != nil {
		t.Fatal(err)
	}
	u.Own(path)
	return path
}

// aUser makes a user who has the archive of an image, and the manifest of the pod web. In its
// specification IMAGE is the name of that image, and HOME the directory of the user.
func aUser(t *testing.T, spec string) (u *node.User, image, manifest string) {
	t.Helper()
	u = node.NewUser(t)
	manifest = filepath.Join(u.Home, "pod.yaml")
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: default}\nspec:" + strings.NewReplacer("IMAGE", demo.Name, "HOME", u.Home).Replace(spec)
	if err := os.WriteFile(manifest, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return u, imageOf(t, u), manifest
}

// A user without root runs the demo, whose containers end as root's do. Memory is limited where the
// memory controller was delegated. Nothing is left.
func TestAUserWithoutRootRunsTheDemo(t *testing.T) {
	t.Parallel()
	u := node.NewUser(t)
	image := imageOf(t, u)
	out, err := u.Rootless("demo", "--image", image).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	controllers, err := os.ReadFile(filepath.Join(u.Group, "cgroup.controllers"))
	if err != nil {
		t.Fatal(err)
	}
	memory := "memory cannot be limited"
	if slices.Contains(strings.Fields(string(controllers)), "memory") {
		memory = "137  OOMKilled"
	}
	for _, want := range []string{"0  Completed", "42  Error", "hello from init", "stopping", memory, "berth stopped cleanly"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the demo does not show %q:\n%s", want, out)
		}
	}
	if left, err := filepath.Glob(filepath.Join(u.Home, "bd*")); err != nil || len(left) > 0 {
		t.Errorf("the demo left %v %v", left, err)
	}
	u.NothingIsLeft()
}

// A pod of a user's goes on when the user's berth is killed, and the code of what ends meanwhile is not
// lost (PROPERTIES 4, 5). The other commands find the user's berth by themselves. With berth rootless
// everything ends, however it is ended, and the next one knows the codes.
func TestThePodOfAUserOutlivesAKillOfBerth(t *testing.T) {
	t.Parallel()
	u, image, manifest := aUser(t, `
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  volumes: [{name: marks, hostPath: {path: HOME/marks}}]
  containers:
  - {name: ends, image: IMAGE, command: [sh, -c, "touch /marks/runs; until test -e /marks/end; do sleep 0.05; done; exit 7"], volumeMounts: [{name: marks, mountPath: /marks}]}
  - {name: goes-on, image: IMAGE, command: [sleep, "86400"]}
`)
	marks := filepath.Join(u.Home, "marks")
	if err := os.Mkdir(marks, 0o755); err != nil {
		t.Fatal(err)
	}
	u.Own(marks)
	say := func(args ...string) {
		t.Helper()
		if out, err := u.Berth(args...).CombinedOutput(); err != nil {
			t.Fatalf("berth %v: %v: %s", args, err, out)
		}
	}

	service := startRootless(t, u)
	say("import", image)
	say("play", manifest)
	soon(t, "the container runs", func() bool { _, err := os.Stat(filepath.Join(marks, "runs")); return err == nil })
	killed := u.Served()
	if killed == 0 {
		t.Fatal("the user's berth is not there")
	}
	if err := syscall.Kill(killed, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(marks, "end"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	soon(t, "berth is started again, and knows the code", func() bool { return u.Served() != killed && service.ended(t, "ends") == 7 })
	if code := service.ended(t, "goes-on"); code != -1 {
		t.Errorf("the kill of berth ended a container with %d", code)
	}

	// One that is killed ends everything as well.
	if err := service.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = service.cmd.Wait()
	soon(t, "the berth of the user ends", func() bool { return u.Served() == 0 })

	again := startRootless(t, u)
	soon(t, "what ended with the namespaces is settled", func() bool { return again.ended(t, "goes-on") == 255 })
	if code := again.ended(t, "ends"); code != 7 {
		t.Errorf("the next berth says %d", code)
	}
	say("rm", "--force", "--all")
	again.stop(t)
	u.NothingIsLeft()
}

// A pod of a user's was never removed without an error once root had used volumes of `berth play` on the
// host: berth rm looked for those of the pod in root's directory. Nor could the user remove what a
// container has made in a volume with an ID of its own.
func TestAPodOfAUserIsRemovedWithItsVolumes(t *testing.T) {
	t.Parallel()
	u, image, manifest := aUser(t, `
  restartPolicy: Never
  volumes: [{name: data, emptyDir: {}}]
  containers:
  - name: writes
    image: IMAGE
    command: [sh, -c, "umask 077 && mkdir -p /data/a/b && touch /data/a/b/c"]
    securityContext: {runAsUser: 1000, runAsGroup: 1000}
    volumeMounts: [{name: data, mountPath: /data}]
`)
	service := startRootless(t, u)
	volumes := filepath.Join(u.Home, ".local/share/berth/volumes/*/*")
	for _, args := range [][]string{
		{"import", image},
		{"play", "--wait", "--rm", manifest},
		{"play", "--wait", manifest},
		{"rm", "--force", "web"},
		{"play", manifest},
		{"rm", "--force", "--all"},
	} {
		if out, err := u.Berth(args...).CombinedOutput(); err != nil {
			t.Errorf("berth %v: %v: %s", args, err, out)
		}
		left, err := filepath.Glob(volumes)
		if kept := args[0] == "play" && args[len(args)-2] != "--rm"; err != nil || len(left) > 0 != kept {
			t.Errorf("after berth %v there are the volumes %v, %v", args, left, err)
		}
	}
	// The settings are the user's as well: root's are out of reach.
	if out, err := u.Berth("config", "check").CombinedOutput(); err != nil {
		t.Errorf("berth config check: %v: %s", err, out)
	}
	service.stop(t)
	u.NothingIsLeft()
}

// A user without root executes commands in containers and reaches ports of pods from outside the namespaces:
// their loopback, on which streams are served, is nobody else's.
func TestAUserWithoutRootHasStreams(t *testing.T) {
	t.Parallel()
	u, image, manifest := aUser(t, `
  terminationGracePeriodSeconds: 1
  containers:
  - {name: web, image: IMAGE, command: [nc, -ll, -p, "8080", -e, cat]}
`)
	service := startRootless(t, u)
	for _, args := range [][]string{{"import", image}, {"play", manifest}} {
		if out, err := u.Berth(args...).CombinedOutput(); err != nil {
			t.Fatalf("berth %v: %v: %s", args, err, out)
		}
	}
	exec := u.Berth("exec", "-i", "web", "sh", "-c", "id -u; cat; exit 7")
	exec.Stdin = strings.NewReader("typed")
	out, err := exec.CombinedOutput()
	if exec.ProcessState.ExitCode() != 7 || string(out) != "0\ntyped" {
		t.Errorf("a command ends with %v and has printed %q", err, out)
	}
	socket := filepath.Join(u.Home, ".local/share/berth/berth.sock.streams")
	if st, err := os.Stat(socket); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket of streams is open to others: %v %v", st, err)
	}

	forward := u.Berth("port-forward", "web", "0:8080")
	from, err := forward.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := forward.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(from).ReadString('\n')
	words := strings.Fields(line)
	if len(words) < 2 {
		t.Fatalf("berth port-forward prints %q", line)
	}
	soon(t, "the port of the pod answers", func() bool {
		conn, err := net.Dial("tcp", words[1])
		if err != nil {
			return false
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "hello\n")
		got, _ := bufio.NewReader(conn).ReadString('\n')
		return got == "hello\n"
	})
	_ = forward.Process.Signal(syscall.SIGINT)
	_ = forward.Wait()

	if out, err := u.Berth("rm", "--force", "--all").CombinedOutput(); err != nil {
		t.Errorf("berth rm: %v: %s", err, out)
	}
	service.stop(t)
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket of streams is left")
	}
	u.NothingIsLeft()
}

// soon waits for a condition, for a minute at most.
func soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("still not: %s", what)
}

// rootless is `berth rootless serve` of a user.
type rootless struct {
	*client.Client
	cmd *exec.Cmd
	out *bytes.Buffer
}

func startRootless(t *testing.T, u *node.User) *rootless {
	t.Helper()
	r := &rootless{cmd: u.Rootless("serve"), out: &bytes.Buffer{}}
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.out
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // of a test that has failed before
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
		if t.Failed() {
			t.Log(r.out.String())
		}
	})
	r.Client = node.Dial(t, u.Home+"/.local/share/berth/berth.sock")
	t.Cleanup(func() { _ = r.Close() })
	soon(t, "the berth of a user serves", func() bool {
		_, err := r.Version(t.Context(), &runtimeapi.VersionRequest{})
		return err == nil
	})
	return r
}

// ended returns the exit code of a container; -1 if it runs, or if nobody says.
func (r *rootless) ended(t *testing.T, name string) int {
	list, err := r.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil {
		return -1
	}
	for _, c := range list.GetContainers() {
		if c.GetMetadata().GetName() != name || c.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
			continue
		}
		if st, err := r.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()}); err == nil {
			return int(st.GetStatus().GetExitCode())
		}
	}
	return -1
}

// stop ends berth as systemd would.
func (r *rootless) stop(t *testing.T) {
	t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Wait(); err != nil {
		t.Errorf("berth rootless: %v: %s", err, r.out)
	}
}
