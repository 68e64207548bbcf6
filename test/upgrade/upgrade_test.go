// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// version is a built version of berth, with the programs that it runs pods with.
type version struct{ name, build string }

// older are the versions in the directory BERTH_OLDER, which `make upgrade` has built.
func older(t *testing.T) (all []version) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(os.Getenv("BERTH_OLDER"), "*", "build", "bin", "berth"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no older berth is below BERTH_OLDER=%s, where make upgrade builds them: %v", os.Getenv("BERTH_OLDER"), err)
	}
	for _, path := range found {
		build := filepath.Dir(filepath.Dir(path))
		all = append(all, version{filepath.Base(filepath.Dir(build)), build})
	}
	return all
}

// PROPERTIES 4, PROPERTIES 5, PROPERTIES 23: an older berth is replaced by the newest under pods, by
// TERM and by SIGKILL, then the newest by the older after a clean stop, and that one by the newest.
func TestBerthIsReplaced(t *testing.T) {
	for _, old := range older(t) {
		for _, way := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			t.Run(fmt.Sprint(old.name, "/", way), func(t *testing.T) {
				dir := node.TempDir(t)
				libexec := filepath.Join(dir, "libexec") // a link to that of the version
				newest := version{"the newest", node.Module(t) + "/build"}
				use(t, libexec, newest)
				n := node.Start(t, node.Options{Dir: dir, Libexec: libexec}) // imports the image by its own API
				r := run{t: t, n: n, libexec: libexec, ended: map[string]int32{}}
				n.Berth.Kill(syscall.SIGTERM)
				r.start(old)
				r.begin()
				r.replace(newest, way)
				r.replace(old, syscall.SIGTERM)
				r.replace(newest, way)
				r.end()
			})
		}
	}
}

// use makes a version's programs those of the node.
func use(t *testing.T, link string, v version) {
	t.Helper()
	_ = os.Remove(link)
	if err := os.Symlink(v.build+"/libexec", link); err != nil {
		t.Fatal(err)
	}
}

// run is a node whose berth is replaced.
type run struct {
	t       *testing.T
	n       *node.Node
	libexec string
	runs    []string         // containers that run on
	waits   []string         // those that are still to end in a gap
	ended   map[string]int32 // codes of those that have ended
	created []string         // that were not started
}

// kinds are the pods that each kind of container is in.
var kinds = map[string]func(*runtimeapi.PodSandboxConfig){
	"plain": func(*runtimeapi.PodSandboxConfig) {},
	"shared PIDs": func(p *runtimeapi.PodSandboxConfig) {
		p.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	},
	"network of the host": func(p *runtimeapi.PodSandboxConfig) {
		p.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
		p.Hostname = ""
	},
}

const (
	ticks  = "i=0; while :; do echo line $i; i=$((i+1)); sleep 0.2; done"
	onTERM = "trap 'exit 42' TERM; echo ready; while :; do sleep 0.1; done"
)

func (r *run) begin() {
	for _, change := range kinds {
		cfg := r.n.PodConfig()
		change(cfg)
		pod := r.n.Pod(cfg)
		container := func(name, script string) string {
			ct := node.ContainerConfig(name, "sh", "-c", script)
			ct.Linux.SecurityContext.NamespaceOptions = cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
			return r.n.Run(pod, cfg, ct)
		}
		r.runs = append(r.runs, container("runs", ticks))
		for i := range 3 { // one for each gap
			r.waits = append(r.waits, container(fmt.Sprint("ends", i), onTERM))
		}
		before := container("before", "exit 7")
		node.ExpectExit(r.t, r.n.Ended(before), 7, "Error")
		r.ended[before] = 7
		made := node.ContainerConfig("created", "true")
		made.Linux.SecurityContext.NamespaceOptions = cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
		r.created = append(r.created, r.n.Create(pod, cfg, made))
	}
	for _, id := range r.waits {
		r.n.Until("it is ready", func() bool { return r.n.Log(id) != "" })
	}
}

// start starts a version of berth.
func (r *run) start(v version) {
	r.t.Helper()
	use(r.t, r.libexec, v)
	r.n.Program = v.build + "/bin/berth"
	r.n.StartBerth()
}

// statuses are the statuses of all containers, without those in but.
func (r *run) statuses(but []string) map[string]string {
	list, err := r.n.ListContainers(r.t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	all := map[string]string{}
	for _, c := range list.GetContainers() {
		if !slices.Contains(but, c.GetId()) {
			st := r.n.Container(c.GetId())
			all[c.GetId()] = fmt.Sprint(st.GetMetadata(), st.GetState(), st.GetCreatedAt(), st.GetStartedAt(), st.GetFinishedAt(), st.GetExitCode(), st.GetReason(), st.GetLogPath(), st.GetLabels())
		}
	}
	return all
}

// replace ends berth, has containers end, and starts another version.
func (r *run) replace(by version, way syscall.Signal) {
	r.t.Helper()
	var ends []string
	var left []string
	for i, id := range r.waits {
		if i%(len(r.waits)/len(kinds)) == 0 {
			ends = append(ends, id)
		} else {
			left = append(left, id)
		}
	}
	r.waits = left
	pids := make([]int, len(ends))
	for i, id := range ends {
		pids[i] = r.n.Pid(id)
	}
	before := r.statuses(ends)
	r.n.Berth.Kill(way)
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			r.t.Fatal(err)
		}
	}
	r.start(by)
	for _, id := range ends {
		node.ExpectExit(r.t, r.n.Ended(id), 42, "Error")
		r.ended[id] = 42
	}
	for id, is := range r.statuses(ends) {
		if is != before[id] {
			r.t.Errorf("by %s, after %v, %s is\n%s and was\n%s", by.name, way, id, is, before[id])
		}
	}
	for id, code := range r.ended {
		node.ExpectExit(r.t, r.n.Container(id), code, "Error")
	}
	r.lines()
	_, works := r.n.Sh("exit 3")
	node.ExpectExit(r.t, r.n.Ended(works), 3, "Error")
}

// lines expects that no line of a log is missing or doubled, and that lines still come.
func (r *run) lines() {
	r.t.Helper()
	for _, id := range r.runs {
		had := len(strings.Split(r.n.Log(id), "\n"))
		r.n.Until("there are more lines", func() bool { return len(strings.Split(r.n.Log(id), "\n")) > had+1 })
		for i, line := range strings.Split(strings.TrimSpace(r.n.Log(id)), "\n") {
			if !strings.HasSuffix(line, fmt.Sprint("line ", i)) {
				r.t.Errorf("line %d of the log of %s is %q", i, id, line)
				break
			}
		}
	}
}

// end stops what runs on, and starts what was made by the first berth.
func (r *run) end() {
	r.t.Helper()
	for _, id := range r.created {
		if _, err := r.n.StartContainer(r.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
			r.t.Error(err)
		}
	}
	for _, id := range r.runs {
		if _, err := r.n.StopContainer(r.t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 1}); err != nil {
			r.t.Error(err)
		}
	}
}
