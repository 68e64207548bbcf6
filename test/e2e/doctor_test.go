// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/tools/doctor"
	"berth/tools/drill"
)

// drilling is a drill that runs, whose files are in a directory of the node's, which is searched
// for leaks.
type drilling struct {
	*exec.Cmd
	out, err bytes.Buffer

	mu    sync.Mutex
	steps []string // that have begun
}

func startDrill(t *testing.T, n *node.Node, args ...string) *drilling {
	t.Helper()
	tmp := filepath.Join(n.Dir, "tmp")
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	d := &drilling{Cmd: n.Command(append([]string{"doctor", "--drill"}, args...)...)}
	d.Env = append(d.Env, "TMPDIR="+tmp)
	d.Stdout, d.Stderr = &d.out, io.MultiWriter(&d.err, d)
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Process.Kill() })
	return d
}

// Write takes what the drill says of its steps.
func (d *drilling) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps = append(d.steps, string(b))
	return len(b), nil
}

// reached reports whether a step has begun.
func (d *drilling) reached(step string) func() bool {
	return func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return strings.Contains(strings.Join(d.steps, ""), step)
	}
}

// ended waits for the end of the drill and returns its exit code.
func (d *drilling) ended(t *testing.T) int {
	t.Helper()
	var e *exec.ExitError
	if err := d.Wait(); err != nil && !errors.As(err, &e) {
		t.Fatal(err)
	}
	return d.ProcessState.ExitCode()
}

// left fails the test for each file and cgroup of the drill that is still there.
func (d *drilling) left(t *testing.T, n *node.Node) {
	t.Helper()
	if files, err := os.ReadDir(filepath.Join(n.Dir, "tmp")); err != nil || len(files) > 0 {
		t.Errorf("files are left: %v, %v", files, err)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/berthdrill*", "/sys/fs/cgroup/*/berthdrill*"} {
		groups, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range groups {
			if strings.HasSuffix(g, "berthdrill"+strconv.Itoa(d.Process.Pid)) {
				t.Errorf("a cgroup is left: %s", g)
			}
		}
	}
}

// images are the names of the node's images.
func images(t *testing.T, n *node.Node) (names []string) {
	t.Helper()
	list, err := n.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list.GetImages() {
		names = append(names, i.GetRepoTags()...)
	}
	slices.Sort(names)
	return names
}

// A drill breaks what is around its own container: every exit is known with the right code, in the
// time that berth promises. Whoever is beside it notices nothing, and nothing is left.
func TestADrillTouchesNobodyAndLeavesNothing(t *testing.T) {
	t.Parallel()
	node.Both(t, func(t *testing.T, n *node.Node) {
		pod, id := n.Sh("sleep 1000")
		pid, shim, shims, before := n.Pid(id), n.ShimOf(pod), n.Shims(), images(t, n)
		events, err := n.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		bystander := make(chan string, 100)
		go func() {
			for {
				ev, err := events.Recv()
				if err != nil {
					return
				}
				// Its events of before are told, too.
				own := ev.GetPodSandboxStatus().GetId() == pod || ev.GetContainerId() == id || ev.GetContainerId() == pod
				kind := ev.GetContainerEventType()
				if own && kind != runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT && kind != runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT {
					bystander <- kind.String()
				}
			}
		}()
		d := startDrill(t, n, "-o", "json")
		if code := d.ended(t); code != 0 {
			t.Fatalf("the code is %d: %s%s", code, &d.out, &d.err)
		}
		var r drill.Result
		if err := json.Unmarshal(d.out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.Took > time.Minute || len(r.Left) > 0 {
			t.Errorf("it took %s and left %v", r.Took, r.Left)
		}
		tried := 0
		for _, s := range r.Steps {
			switch {
			case s.NotTried == "":
				tried++
				if s.State != "EXITED" || s.AfterEnd < 0 || s.Removed <= 0 {
					t.Errorf("the step has no figures: %+v", s)
				}
			case s.Name != "its process is killed while berth is away" || !strings.Contains(s.NotTried, "--restart-berth"):
				t.Errorf("%s was not tried: %s", s.Name, s.NotTried)
			}
		}
		if tried != 7 {
			t.Errorf("%d steps were tried", tried)
		}
		if st := n.Container(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || n.Pid(id) != pid || n.ShimOf(pod) != shim {
			t.Errorf("the bystander is another one now: %v", st)
		}
		select {
		case ev := <-bystander:
			t.Errorf("the bystander has an event %s", ev)
		default:
		}
		d.left(t, n)
		pods, err := n.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		if err != nil || len(pods.GetItems()) != 1 {
			t.Errorf("pods are left: %v, %v", pods.GetItems(), err)
		}
		if after := images(t, n); !slices.Equal(before, after) {
			t.Errorf("the images were %v and are %v", before, after)
		}
		if len(n.Shims()) != len(shims) {
			t.Errorf("the shims were %v and are %v", shims, n.Shims())
		}
	})
}

// An image of the node's serves as well, and is left where it is.
func TestADrillWithAnImageOfTheNode(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	before := images(t, n)
	d := startDrill(t, n, "--image", node.Busybox, "--restart-berth")
	if code := d.ended(t); code != 0 {
		t.Errorf("the code is %d: %s%s", code, &d.out, &d.err)
	}
	// No test runs below systemd here.
	if out := d.out.String(); !strings.Contains(out, "systemd does not run here") && !strings.Contains(out, "is process") {
		t.Errorf("berth was restarted, or nothing says why not:\n%s", out)
	}
	if after := images(t, n); !slices.Equal(before, after) {
		t.Errorf("the images were %v and are %v", before, after)
	}
	d.left(t, n)
}

// Ctrl-C while a shim is stopped and a log's disk is full: nothing is left.
func TestADrillThatIsInterruptedLeavesNothing(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	before := images(t, n)
	for _, step := range []string{"the disk of its log is full", "its shim hangs"} {
		d := startDrill(t, n)
		n.Until("the drill is at: "+step, d.reached(step))
		if err := d.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if code := d.ended(t); code != 130 || !strings.Contains(d.err.String(), "nothing is left of the drill") {
			t.Errorf("the code is %d: %s%s", code, &d.out, &d.err)
		}
		d.left(t, n)
		nothingLeft(n)
	}
	if after := images(t, n); !slices.Equal(before, after) {
		t.Errorf("the images were %v and are %v", before, after)
	}
}

// berth hangs in the middle of a drill: it ends within a minute all the same, and says what it
// could not remove, with what removes it.
func TestADrillOfABerthThatHangsEndsWithinAMinute(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	d := startDrill(t, n)
	n.Until("the drill has begun", d.reached("its process is killed"))
	n.Berth.Signal(syscall.SIGSTOP)
	began := time.Now()
	code := d.ended(t)
	took := time.Since(began)
	n.Berth.Kill(syscall.SIGKILL) // the calls that wait for it end with it
	n.StartBerth()
	if took > time.Minute {
		t.Errorf("it took %s", took)
	}
	if code != 3 || !strings.Contains(d.err.String(), "berth pods lists") {
		t.Errorf("the code is %d: %s%s", code, &d.out, &d.err)
	}
	n.RemoveAll(t.Context())
	if _, err := n.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: drill.Image}}); err != nil {
		t.Error(err)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/berthdrill", "/sys/fs/cgroup/*/berthdrill"} {
		groups, _ := filepath.Glob(pattern + strconv.Itoa(d.Process.Pid))
		for _, g := range groups {
			_ = os.Remove(g)
		}
	}
}

// What doctor says of a node whose berth runs, and of one whose berth does not answer.
func TestDoctorAsksTheBerthThatRuns(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	ask := func() (r doctor.Report) {
		t.Helper()
		cmd := n.Command("doctor", "-o", "json")
		cmd.Env = append(cmd.Env, "BERTH_CNI_BIN="+n.Module+"/build/cni")
		out, err := cmd.Output()
		var e *exec.ExitError
		if err != nil && !errors.As(err, &e) {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return r
	}
	of := func(r doctor.Report, check string) doctor.Answer {
		return r.Answers[slices.IndexFunc(r.Answers, func(a doctor.Answer) bool { return a.Check == check })]
	}
	r := ask()
	if !strings.Contains(r.Service, "the berth that answers on ") {
		t.Errorf("%s", r.Service)
	}
	for _, check := range []string{"service", "programs", "handlers", "disk latency", "network"} {
		if a := of(r, check); a.NotAsked != "" || slices.ContainsFunc(a.Findings, func(f doctor.Finding) bool { return f.Severity == doctor.Error }) {
			t.Errorf("%+v", a)
		}
	}
	// The settings are those of the command line of this berth, not of a file.
	if err := errors.Join(os.MkdirAll(n.Dir+"/net.d", 0o755), os.WriteFile(n.Dir+"/net.d/10-x.conflist", []byte("{oops"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if a := of(ask(), "network"); len(a.Findings)+len(a.NotAsked) == 0 {
		t.Errorf("a broken configuration in %s/net.d was not found: %+v", n.Dir, a)
	}
	n.Berth.Signal(syscall.SIGSTOP)
	r = ask()
	n.Berth.Signal(syscall.SIGCONT)
	if a := of(r, "service"); a.NotAsked == "" || len(a.Findings) > 0 {
		t.Errorf("a berth that hangs is %+v", a)
	}
	n.Berth.Kill(syscall.SIGKILL)
	if a := of(ask(), "service"); a.NotAsked != "" || len(a.Findings) != 1 || !strings.HasPrefix(a.Findings[0].What, "no berth runs on ") {
		t.Errorf("a berth that was killed is %+v", a)
	}
	n.StartBerth()
}
