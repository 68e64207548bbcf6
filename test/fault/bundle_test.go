// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/command"
	"berth/test/node"
	"berth/test/sim"
	"berth/tools/bundle"
)

var update = flag.Bool("update", false, "rewrite the bundles that test/sim plays")

// bundled makes a bundle of a node as a person does, and keeps it for test/sim with -update.
func bundled(t *testing.T, n *node.Node, keep string) *bundle.Bundle {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	out, err := command.Within(t, 10*time.Minute, n.Module+"/build/bin/berth", "--endpoint", n.Dir+"/berth.sock", "bundle", path).CombinedOutput()
	if err != nil {
		t.Fatalf("berth bundle: %v\n%s", err, out)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := bundle.Read(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	if *update && keep != "" {
		kept := *b
		kept.Manifest.Version, kept.Manifest.Kernel = "test", "test"
		var out bytes.Buffer
		if err := kept.Write(&out); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(n.Module, "test/sim/testdata", keep+".tar.gz"), out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// replay plays a bundle in the simulation.
func replay(t *testing.T, b *bundle.Bundle) (differ []string, report, happened string) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) { differ, report, happened = sim.Play(t.Context(), dir, 1, b) })
	return differ, report, happened
}

// incidents are faults, each with what it makes of a node. Each returns the containers that have
// ended.
var incidents = []struct {
	name string
	o    node.Options
	play func(t *testing.T, n *node.Node, f *faults) []string
}{
	{"berth-killed-before-the-exit", node.Options{ServiceManager: true, Args: quick}, func(t *testing.T, n *node.Node, _ *faults) []string {
		_, id := n.Sh(exitOnTerm(42))
		ready(n, id)
		pid := n.Pid(id)
		n.Berth.Kill(syscall.SIGKILL)
		end(t, pid)
		n.StartBerth()
		return []string{id}
	}},
	{"berth-killed-after-the-exit", node.Options{Args: quick}, func(_ *testing.T, n *node.Node, _ *faults) []string {
		_, id := n.Sh("exit 42")
		n.Ended(id)
		n.Berth.Kill(syscall.SIGKILL)
		n.StartBerth()
		_, after := n.Sh("exit 43")
		return []string{id, after}
	}},
	{"shim-killed-before-the-exit", node.Options{Args: quick}, shimKilledBefore},
	{"shim-killed-with-its-pod", node.Options{Args: withPause}, func(t *testing.T, n *node.Node, _ *faults) []string {
		pod, id := n.Sh(exitOnTerm(42))
		ready(n, id)
		before := n.Run(pod, podOf(t, n, pod), node.ContainerConfig("before", "sh", "-c", "exit 43"))
		n.Ended(before)
		killShim(t, n, pod)
		return []string{before, id}
	}},
	{"oom-killed", node.Options{Args: quick}, oomKilled},
	{"event-and-wait-lost", node.Options{Args: quick}, func(_ *testing.T, n *node.Node, f *faults) []string {
		f.set("shim.exit-event", "swallow")
		f.set("shim.Wait", "stall")
		_, id := n.Sh("exit 42")
		n.Ended(id)
		f.clear("shim.exit-event")
		f.clear("shim.Wait")
		return []string{id}
	}},
	{"shim-hangs", node.Options{Args: quick}, func(t *testing.T, n *node.Node, _ *faults) []string {
		pod, id := n.Sh(exitOnTerm(42))
		ready(n, id)
		shim, pid := n.Shims()[pod], n.Pid(id)
		if err := syscall.Kill(shim, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		end(t, pid)
		n.Ended(id)
		if err := syscall.Kill(shim, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		return []string{id}
	}},
	{"containerd-killed", node.Options{External: true, Args: quick}, func(t *testing.T, n *node.Node, _ *faults) []string {
		_, id := n.Sh(exitOnTerm(42))
		ready(n, id)
		pid := n.Pid(id)
		n.Containerd.Kill(syscall.SIGKILL)
		n.Until("berth says that containerd is gone", func() bool { return !n.Connected() })
		end(t, pid)
		n.Ended(id)
		n.StartContainerd()
		n.Until("berth is connected again", n.Connected)
		_, after := n.Sh("exit 7")
		return []string{id, after}
	}},
	{"start-cut-off", node.Options{Args: quick}, func(t *testing.T, n *node.Node, f *faults) []string {
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		id := n.Create(pod, cfg, node.ContainerConfig("c", "sh", "-c", exitOnTerm(42)))
		f.set("shim.Create", "stall", "id "+id)
		started := make(chan struct{})
		go func() {
			defer close(started)
			_, _ = n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
		}()
		n.Until("the start is at shim.Create", func() bool { return len(f.hits("shim.Create")) > 0 })
		n.Berth.Kill(syscall.SIGKILL)
		<-started
		n.StartBerth()
		f.clear("shim.Create")
		n.Until("it runs", func() bool { return startAgain(t, n, id) })
		ready(n, id)
		stopped(t, n, id, 100)
		return []string{id}
	}},
	{"start-fails", node.Options{Args: quick}, func(t *testing.T, n *node.Node, f *faults) []string {
		cfg := n.PodConfig()
		id := n.Create(n.Pod(cfg), cfg, node.ContainerConfig("c", "sh", "-c", "sleep 1000"))
		f.set("runc.start", "fail", "times 1")
		if _, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err == nil {
			t.Error("it was started")
		}
		return []string{id}
	}},
	{"disk-of-records-full", node.Options{Args: quick}, func(t *testing.T, n *node.Node, _ *faults) []string {
		return diskFull(t, n)
	}},
	{"disk-of-logs-full", node.Options{Args: quick}, func(t *testing.T, n *node.Node, _ *faults) []string {
		disk := smallDisk(t, 256<<10)
		cfg := n.PodConfig()
		cfg.LogDirectory = disk.dir
		pod := n.Pod(cfg)
		disk.fill()
		script, _ := numbered(2000)
		id := n.Run(pod, cfg, node.ContainerConfig("c", "sh", "-c", script+"; exit 41"))
		n.Ended(id)
		disk.free()
		return []string{id}
	}},
	{"deletion-fails", node.Options{Args: quick}, func(_ *testing.T, n *node.Node, f *faults) []string {
		f.set("shim.Delete", "fail", "times 3")
		_, id := n.Sh("exit 42")
		n.Ended(id)
		n.Until("the deletion has failed", func() bool { return len(f.hits("shim.Delete")) >= 3 })
		f.clear("shim.Delete")
		return []string{id}
	}},
	{"stop-that-has-to-kill", node.Options{Args: quick}, func(t *testing.T, n *node.Node, _ *faults) []string {
		_, id := n.Sh("trap '' TERM; echo ready; while :; do sleep 1; done")
		ready(n, id)
		stopped(t, n, id, 1)
		return []string{id}
	}},
}

func stopped(t *testing.T, n *node.Node, id string, timeout int64) {
	t.Helper()
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: timeout}); err != nil {
		t.Fatal(err)
	}
}

func shimKilledBefore(t *testing.T, n *node.Node, f *faults) []string {
	t.Helper()
	f.set("shim.cleanup", "stall")
	pod, id := n.Sh(exitOnTerm(42))
	ready(n, id)
	killShim(t, n, pod)
	n.Until("containerd cleans up", func() bool { return len(f.hits("shim.cleanup")) > 0 })
	stopped(t, n, id, 100)
	n.Ended(id)
	f.clear("shim.cleanup")
	return []string{id}
}

func oomKilled(_ *testing.T, n *node.Node, f *faults) (ids []string) {
	f.set("shim.oom-event", "swallow")
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	const eat = "tail /dev/zero"
	for i, script := range []string{"exec " + eat, eat + " || exit 3", eat + "; exit 0", eat + "; sleep 2; exit 5"} {
		c := node.ContainerConfig(fmt.Sprint("c", i), "sh", "-c", script)
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
		id := n.Run(pod, cfg, c)
		n.Ended(id)
		ids = append(ids, id)
	}
	return ids
}

// diskFull fills the disk of the records of a node that [start] has made with one.
func diskFull(t *testing.T, n *node.Node) []string {
	t.Helper()
	file, err := filepath.EvalSymlinks(n.Dir + "/lib/berth.db")
	if err != nil {
		t.Fatal(err)
	}
	disk := disks[n.Dir]
	cfg := n.PodConfig()
	id := n.Run(n.Pod(cfg), cfg, node.ContainerConfig("c", "sh", "-c", exitOnTerm(42)))
	ready(n, id)
	pid := n.Pid(id)
	punch(t, file)
	disk.fill()
	end(t, pid)
	n.Until("the timeline says what is waited for", func() bool { return strings.Contains(timeline(t, n, id), "no space left") })
	disk.free()
	n.Ended(id)
	return []string{id}
}

// disks are those of the records of nodes, by the nodes' directories.
var disks = map[string]disk{}

// PROPERTIES 44: whatever has gone wrong on a node, `berth bundle` has it, and the simulation comes to
// the same verdicts from the bundle alone, without a broken promise.
func TestABundleOfAFaultReplaysToTheSameVerdicts(t *testing.T) {
	t.Parallel()
	for _, tt := range node.Share(t, "incidents", 2, nil, incidents...) {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := tt.o
			if tt.name == "disk-of-records-full" {
				o.Dir = node.TempDir(t)
				disk := smallDisk(t, 4<<20)
				disks[o.Dir] = disk
				for _, err := range []error{os.Mkdir(o.Dir+"/lib", 0o700), os.Symlink(disk.dir+"/berth.db", o.Dir+"/lib/berth.db")} {
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			n, f := start(t, o)
			ids := tt.play(t, n, f)
			ended := map[string]*runtimeapi.ContainerStatus{}
			for _, id := range ids {
				ended[id] = n.Ended(id)
				n.Until("the end of "+id+" is in the history", func() bool {
					h := n.History(id)
					return has(h, "ExitSettled") || has(h, "ExitRecalled")
				})
			}
			b := bundled(t, n, "bundles/"+tt.name)
			verdicts := map[string]bundle.Verdict{}
			for _, v := range b.Verdicts() {
				verdicts[v.ID] = v
			}
			for id, st := range ended {
				v, ok := verdicts[id]
				if !ok || int32(v.Code) != st.GetExitCode() || v.Reason != st.GetReason() {
					t.Errorf("the bundle has %v of what ended with %d %s", v, st.GetExitCode(), st.GetReason())
				}
			}
			if differ, report, happened := replay(t, b); len(differ) > 0 || report != "" {
				t.Errorf("%s\n%s\n%s", strings.Join(differ, "\n"), happened, report)
			}
		})
	}
}

// PROPERTIES 44: a berth with a defect has run on a node. From the bundle alone the simulation, with a
// berth that does not have it, says which verdict was wrong, and what it should have been.
func TestAPlantedDefectIsFoundFromItsBundle(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]struct {
		file, right, wrong string
		play               func(t *testing.T, n *node.Node, f *faults) []string
		shows              func(st *runtimeapi.ContainerStatus) bool
		want               string
	}{
		"code-cut-short": {
			file:  "internal/base/exit/exit.go",
			right: "case have.Zero():\n",
			wrong: "case have.Zero():\n\t\tnext.Code &= 0x1f\n",
			play:  shimKilledBefore,
			shows: func(st *runtimeapi.ContainerStatus) bool { return st.GetExitCode() == 10 },
			want:  "the bundle has 10 Error, and it is 42 Error",
		},
		"oom-forgotten": {
			file:  "internal/heart/pod/oom.go",
			right: "known.OOM, known.Limit = true, limit",
			wrong: "_ = limit",
			play:  oomKilled,
			shows: func(st *runtimeapi.ContainerStatus) bool { return st.GetReason() == "Error" },
			want:  "the bundle has 137 Error, signal 9, and it is 137 OOMKilled, signal 9, OOM",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := planted(t, d.file, d.right, d.wrong)
			n, f := start(t, node.Options{Args: quick, Program: program})
			id := d.play(t, n, f)[0]
			n.Until("the defect shows", func() bool { return d.shows(n.Ended(id)) })
			b := bundled(t, n, "planted/"+name)
			differ, _, happened := replay(t, b)
			if len(differ) == 0 || !strings.HasSuffix(differ[0], d.want) {
				t.Errorf("%q, want %q\n%s", differ, d.want, happened)
			}
		})
	}
}

// PROPERTIES 44: secrets are in the settings, and in all that a client may say of a pod, a
// container and a command, so that errors and logs have them, too. None is in the bundle of that
// node.
func TestABundleOfANodeFullOfSecretsHasNone(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	dir := node.TempDir(t)
	settings := strings.ReplaceAll(`[image]
decryption_keys_dir = "DIR/SECRET"
pinned = ["SECRET"]
[image.auth."registry.invalid"]
username = "user-SECRET"
password = "password-SECRET"
[tracing]
endpoint = "http://SECRET:token@127.0.0.1:1"
[nri]
plugin_config_dir = "/etc/SECRET"
[runtimes.SECRET]
type = "io.containerd.SECRET.v1"
config_body = "SECRET"
pod_annotations = ["SECRET"]
`, "SECRET", secret)
	file := dir + "/settings.toml"
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(settings, "DIR", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	n, _ := start(t, node.Options{Dir: dir, Args: append([]string{"--config", file}, quick...)})
	cfg := n.PodConfig()
	cfg.Annotations = map[string]string{secret + "/key": secret}
	cfg.Labels = map[string]string{secret: secret}
	pod := n.Pod(cfg)
	c := node.ContainerConfig("c", "sh", "-c", "echo "+secret+"; exit 42")
	c.Envs = append(c.Envs, &runtimeapi.KeyValue{Key: "TOKEN_" + secret, Value: []byte(secret)})
	c.Annotations, c.Labels = map[string]string{"a": secret}, map[string]string{"l": secret}
	crashes := n.Run(pod, cfg, c)
	n.Ended(crashes)
	crashed(n, crashes, "wrote="+secret)
	runs := n.Run(pod, cfg, node.ContainerConfig("runs", "sleep", "1000"))
	absent := n.Create(pod, cfg, node.ContainerConfig("absent", "/bin/"+secret, "--token="+secret))
	if _, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: absent}); err == nil || !strings.Contains(err.Error(), secret) {
		t.Errorf("the error of the start does not have the secret: the test shows nothing: %v", err)
	}
	if _, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: runs, Cmd: []string{"echo", secret}, Timeout: 10}); err != nil {
		t.Error(err)
	}
	b := bundled(t, n, "")
	var out bytes.Buffer
	if err := errors.Join(json.NewEncoder(&out).Encode(b.Manifest), json.NewEncoder(&out).Encode(b.Configuration),
		json.NewEncoder(&out).Encode(b.Records), json.NewEncoder(&out).Encode(b.Entries)); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Contains(text, secret) || !strings.Contains(text, "no such file or directory") || len(b.Verdicts()) != 2 {
		t.Errorf("the bundle has a secret, or lacks what it should have: %v\n%s", b.Verdicts(), text)
	}
}

// planted builds berth with a defect.
func planted(t *testing.T, file, right, wrong string) (program string) {
	t.Helper()
	module, dir := node.Module(t), t.TempDir()
	source, err := os.ReadFile(filepath.Join(module, file))
	if err != nil || bytes.Count(source, []byte(right)) != 1 {
		t.Fatalf("%s has not once %q: %v", file, right, err)
	}
	mutant := filepath.Join(dir, "mutant.go")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(module, file): mutant}})
	if err != nil {
		t.Fatal(err)
	}
	for path, b := range map[string][]byte{
		mutant:             bytes.Replace(source, []byte(right), []byte(wrong), 1),
		dir + "/over.json": overlay,
	} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program = dir + "/berth"
	cmd := command.Within(t, 10*time.Minute, "go", "build", "-trimpath", "-buildvcs=false", "-overlay", dir+"/over.json", "-o", program, "./cmd/berth")
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build berth with a defect: %v\n%s", err, out)
	}
	return program
}
