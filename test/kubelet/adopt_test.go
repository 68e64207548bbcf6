// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/engine/adopt"
	"berth/internal/host/cgroup"
	"berth/test/client"
	"berth/test/node"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// PROPERTIES 46: to a kubelet that is given berth's socket in the place of the one of containerd's CRI
// plug-in, and back, its pods are the ones that it had: no process is another one, no pod is made again,
// no restart is counted, what ends in any part of the two changes has its own code, no line of a log is
// missing unless the log says so, and everything works afterwards.
func TestAKubeletGoesOnWithAdoptedPods(t *testing.T) {
	t.Parallel()
	for _, evented := range node.Pick(t, "kubelet's way to see changes", "lists", "events") {
		t.Run(evented, func(t *testing.T) {
			k := start(t, node.Options{External: true}, evented == "events", fmt.Sprintf("containerLogMaxSize: %q", fmt.Sprint(rotation)), "containerLogMaxFiles: 100", "containerLogMonitorInterval: 3s")
			a := &adopted{kubelet: k, t: t, ids: map[string]bool{}, steady: steady}
			if !k.OldContainerd() { // a kubelet does not give it pods with user namespaces
				a.steady = append(slices.Clone(steady), "user-namespace")
			}
			a.startPods()
			before := a.look()
			a.changeToBerth(before)
			after := a.looked()
			a.expect(before, after, a.there)
			a.works(after)
			a.stopKubelet()
			then := a.look()
			a.changeBack(before, then)
			back := a.looked()
			a.expect(then, back, a.back)
			a.report(before, after, back)
			a.nothingLeft()
		})
	}
}

// adopted is a kubelet whose pods change their runtime.
type adopted struct {
	*kubelet
	t           *testing.T
	asked       <-chan struct{}  // has something while the registry is asked for the image that is pulled
	send        func()           // lets the registry send it
	there, back map[string]int32 // the codes of pods that end on the way to berth, and on the way back
	ids         map[string]bool  // those of all pods that were seen
	steady      []string         // the pods that are always ready
}

// steady are the pods that are always ready, with each containerd.
var steady = []string{"web", "probed", "terminal", "shared", "resized", "writes-1", "writes-2", "host-network", "host-pid"}

// startPods has the kubelet make pods of all kinds with containerd's CRI plug-in, and stops it.
func (a *adopted) startPods() {
	a.t.Helper()
	a.process.Kill(syscall.SIGTERM)
	if err := os.Chmod(a.Dir, 0o711); err != nil { // so that the root of a user namespace gets at its files
		a.t.Fatal(err)
	}
	if err := os.Mkdir(a.dir+"/shared", 0o755); err != nil {
		a.t.Fatal(err)
	}
	a.StartPlugin()
	a.useSocket(a.Dir+"/berth.sock", a.Dir+"/c/containerd.sock")
	for _, name := range []string{"web", "job", "crash", "probed", "terminal", "shared", "resized"} {
		a.add(name, name)
	}
	a.change("probed", "removed")
	a.change("writes", "writes-1")
	a.change("writes", "writes-2")
	a.change("onhost", "host-network", "SHARES", "hostNetwork: true")
	a.change("onhost", "host-pid", "SHARES", "hostPID: true")
	if slices.Contains(a.steady, "user-namespace") {
		a.change("onhost", "user-namespace", "SHARES", "hostUsers: false")
	}
	a.change("stubborn", "stubborn", "PIPE", a.pipe("stubborn"), "SICK", "sick")
	a.change("stubborn", "terminating", "PIPE", a.pipe("terminating"), "SICK", "never")
	a.change("pulled", "pulled", "PULLED", a.registry())
	a.there, a.back = map[string]int32{}, map[string]int32{}
	for i := range 5 {
		a.ends(a.there, fmt.Sprint("there-", i+1), fmt.Sprint("there-", i+1), "0", 41+i)
		a.ends(a.there, fmt.Sprint("during-there-", i), "there", fmt.Sprint(float64(i)/2), 51+i)
	}
	for i := range 4 {
		a.ends(a.back, fmt.Sprint("back-", i+1), fmt.Sprint("back-", i+1), "0", 61+i)
		a.ends(a.back, fmt.Sprint("during-back-", i), "back", fmt.Sprint(float64(i)/2), 71+i)
	}
	a.t.Cleanup(func() { // so that they do not take their time if the test has failed
		a.let("stubborn")
		a.let("terminating")
	})
	a.run()
	for _, name := range append([]string{"removed", "stubborn", "terminating"}, a.steady...) {
		a.until(name, "ready", pod.ready)
	}
	for _, codes := range []map[string]int32{a.there, a.back} {
		for name := range codes {
			a.until(name, "running", running)
		}
	}
	a.until("job", "over", func(p pod) bool { return p.Status.Phase == "Succeeded" })
	a.until("crash", "started again", func(p pod) bool { return p.only().RestartCount > 0 })
	rows := a.look()
	if mapped := rows["user-namespace/onhost"].id; mapped != "" {
		a.Until("the root of a user namespace is another user of the host", func() bool {
			ids := strings.Fields(a.Log(mapped))
			return len(ids) == 3 && ids[1] != "0"
		})
	}
	if err := os.WriteFile(a.dir+"/shared/sick", nil, 0o600); err != nil {
		a.t.Fatal(err)
	}
	a.remove("terminating")
	for _, name := range []string{"stubborn", "terminating"} {
		a.Until(name+" is told to end", func() bool { return strings.Contains(a.Log(rows[name+"/stubborn"].id), "asked") })
	}
	a.Until("the image is being pulled", func() bool {
		select {
		case <-a.asked:
			return true
		default:
			return false
		}
	})
	a.stopKubelet()
}

// stopKubelet stops the kubelet, once it has rotated logs, and not while it does: of a log that is moved
// away while berth is stopped, lines may stand in the old and in the new file.
func (a *adopted) stopKubelet() {
	a.t.Helper()
	for _, name := range []string{"writes-1", "writes-2"} {
		a.Until("the log of "+name+" was rotated just now", func() bool {
			live, rotated := a.logs(name)
			fi, err := os.Stat(live)
			return len(rotated) > 0 && err == nil && fi.Size() < rotation/2
		})
	}
	a.process.Kill(syscall.SIGTERM)
}

// rotation is the size at which the kubelet rotates a log, which takes two seconds to fill.
const rotation = 2 << 20

// logs returns the paths of a log that the kubelet rotates, and of its old files, in order.
func (a *adopted) logs(name string) (live string, rotated []string) {
	a.t.Helper()
	live = a.dir + "/podlogs/default_" + name + "-node_*/writes/0.log"
	if found, err := filepath.Glob(live); err != nil || len(found) > 1 {
		a.t.Fatalf("the logs of %s are %q, %v", name, found, err)
	} else if len(found) == 1 {
		live = found[0]
	}
	rotated, err := filepath.Glob(live + ".2*") // with the instants of their rotations
	if err != nil {
		a.t.Fatal(err)
	}
	return live, rotated
}

// ends adds a pod that ends with a code, some seconds after a pipe was opened.
func (a *adopted) ends(codes map[string]int32, name, pipe, seconds string, code int) {
	a.t.Helper()
	a.change("ends", name, "PIPE", a.pipe(pipe), "AFTER", seconds, "CODE", strconv.Itoa(code))
	codes[name] = int32(code)
}

// pipe makes a pipe, unless it is there, on which containers wait.
func (a *adopted) pipe(name string) string {
	a.t.Helper()
	if err := syscall.Mkfifo(a.dir+"/shared/"+name, 0o600); err != nil && !os.IsExist(err) {
		a.t.Fatal(err)
	}
	return name
}

// let lets those go on that wait on a pipe, and those that will: each of them reads one line.
func (a *adopted) let(pipe string) {
	a.t.Helper()
	f, err := os.OpenFile(a.dir+"/shared/"+pipe, os.O_RDWR, 0)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = f.Close() })
	if _, err := f.WriteString(strings.Repeat("\n", 100)); err != nil {
		a.t.Fatal(err)
	}
}

// letEnd lets the pod of a pipe of its own end, and waits until its process has.
func (a *adopted) letEnd(rows map[string]row, name string) {
	a.t.Helper()
	a.let(name)
	pid := rows[name+"/ends"].pid
	a.Until("the process of "+name+" has ended", func() bool { return node.ProcessOver(pid) })
}

// registry starts a registry, which does not send the layer of its image until it may, and returns the
// reference of the image.
func (a *adopted) registry() string {
	a.t.Helper()
	busybox, err := testimage.BusyboxLayer()
	if err != nil {
		a.t.Fatal(err)
	}
	layer, err := testimage.Layer(testimage.File{Name: "pulled", Mode: 0o644, Body: []byte("pulled\n")})
	if err != nil {
		a.t.Fatal(err)
	}
	digest, err := layer.Digest()
	if err != nil {
		a.t.Fatal(err)
	}
	img, err := testimage.Image(v1.Config{}, busybox, layer)
	if err != nil {
		a.t.Fatal(err)
	}
	asked, sent := make(chan struct{}, 1), make(chan struct{})
	a.asked, a.send = asked, sync.OnceFunc(func() { close(sent) })
	reg := testregistry.Start(a.t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, digest.String()) {
				select {
				case asked <- struct{}{}:
				default:
				}
				select {
				case <-sent:
				case <-r.Context().Done():
				}
			}
			next.ServeHTTP(w, r)
		})
	}))
	a.t.Cleanup(a.send) // the registry ends once all is sent
	return reg.Push("pulled:1", img)
}

// row is a container as the runtime has it.
type row struct {
	id      string
	pid     int // 0: it does not run
	attempt uint32
	state   runtimeapi.ContainerState
	code    int32
	reason  string
}

func (r row) String() string {
	switch {
	case r.id == "":
		return "-"
	case r.state == runtimeapi.ContainerState_CONTAINER_RUNNING:
		return fmt.Sprintf("%s, process %d, %d restarts", r.id[:8], r.pid, r.attempt)
	default:
		return fmt.Sprintf("%s, ended with %d, %d restarts", r.id[:8], r.code, r.attempt)
	}
}

// look returns the last container of each name, by the names of its pod and its own.
func (a *adopted) look() map[string]row {
	a.t.Helper()
	pods, err := a.ListPodSandbox(a.t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		a.t.Fatal(err)
	}
	for _, p := range pods.GetItems() {
		a.ids[p.GetId()] = true
	}
	all, err := a.ListContainers(a.t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil {
		a.t.Fatal(err)
	}
	slices.SortFunc(all.GetContainers(), func(x, y *runtimeapi.Container) int { return int(x.GetCreatedAt() - y.GetCreatedAt()) })
	rows := map[string]row{}
	for _, c := range all.GetContainers() {
		resp, err := a.ContainerStatus(a.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId(), Verbose: true})
		if err != nil {
			continue // the kubelet has removed it
		}
		st := resp.GetStatus()
		r := row{
			id:      c.GetId(),
			attempt: st.GetMetadata().GetAttempt(),
			state:   st.GetState(),
			code:    st.GetExitCode(),
			reason:  st.GetReason(),
		}
		if r.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			var info struct{ Pid int }
			if err := json.Unmarshal([]byte(resp.GetInfo()["info"]), &info); err != nil {
				a.t.Fatalf("container %s: %v", c.GetId(), err)
			}
			r.pid = info.Pid
		}
		rows[strings.TrimSuffix(c.GetLabels()["io.kubernetes.pod.name"], "-node")+"/"+c.GetLabels()["io.kubernetes.container.name"]] = r
	}
	return rows
}

// looked is look once the kubelet, which was started, has looked at all pods and has acted.
func (a *adopted) looked() map[string]row {
	a.t.Helper()
	count := func(metrics, name string) (n float64) {
		for line := range strings.Lines(metrics) {
			if value, ok := strings.CutPrefix(line, name+" "); ok {
				n, _ = strconv.ParseFloat(strings.TrimSpace(value), 64)
			}
		}
		return n
	}
	a.Until("the kubelet has looked at its pods, several times where it reads no events", func() bool {
		metrics, err := a.get("/metrics")
		looked := count(metrics, "kubelet_pleg_relist_duration_seconds_count")
		synced := count(metrics, `kubelet_pod_worker_duration_seconds_count{operation_type="sync"}`)
		return err == nil && synced >= 20 && looked >= 1 && (a.evented || looked >= 8)
	})
	for _, name := range a.steady {
		a.until(name, "ready", pod.ready)
	}
	return a.look()
}

// changeToBerth changes the runtime to berth, and starts the kubelet with it. Pods end in each part of it.
func (a *adopted) changeToBerth(rows map[string]row) {
	a.t.Helper()
	a.letEnd(rows, "there-1")
	out := a.AdoptWith(nil,
		node.Step{Name: "switch", Do: func() {
			a.let("there")
			a.PluginOff(func() { a.letEnd(rows, "there-2") })
		}},
		node.Step{Name: "start", Do: func() {
			a.letEnd(rows, "there-3")
			a.StartBerth()
			a.letEnd(rows, "there-4")
		}})
	a.t.Logf("%s", out)
	a.letEnd(rows, "there-5")
	a.useSocket(a.Dir+"/c/containerd.sock", a.Dir+"/berth.sock")
	a.run()
	a.ended(rows, a.there)
}

// ended waits until the kubelet knows how pods have ended, and compares it with what the runtime says.
func (a *adopted) ended(rows map[string]row, codes map[string]int32) {
	a.t.Helper()
	for name, code := range codes {
		p := a.until(name, "over", func(p pod) bool { return p.Status.Phase == "Failed" })
		if end := p.only().State.Terminated; end == nil || end.ExitCode != int(code) || end.Reason != "Error" || p.only().RestartCount > 0 {
			a.t.Errorf("to the kubelet %s, which ends with %d, is %+v: %+v", name, code, p.only(), end)
		}
		id := rows[name+"/ends"].id
		node.ExpectExit(a.t, a.Measured(id), code, "Error")
		log := a.Log(id)
		if said := strings.Count(log, adopt.EndLine); said != 0 && name != "back-1" { // which nobody holds the pipes of
			a.t.Errorf("the log of %s says %d times that something may be missing: %q", name, said, log)
		} else if said > 1 || said == 0 && strings.Count(log, "last words\n") != 1 {
			a.t.Errorf("the log of %s is %q", name, log)
		}
	}
}

// moving are the pods whose containers are others, or gone, after a change.
var moving = []string{"crash", "pulled", "terminating", "removed"}

// expect compares the containers before and after a change, in which some have ended.
func (a *adopted) expect(before, after map[string]row, codes map[string]int32) {
	a.t.Helper()
	for name, was := range before {
		pod, _, _ := strings.Cut(name, "/")
		if slices.Contains(moving, pod) {
			continue
		}
		want := was
		if code, ends := codes[pod]; ends {
			want.state, want.pid, want.code, want.reason = runtimeapi.ContainerState_CONTAINER_EXITED, 0, code, "Error"
		}
		if is := after[name]; is != want {
			a.t.Errorf("%s was %s, and is %s (%s), not %s (%s)", name, was, is, is.reason, want, want.reason)
		}
	}
	pods, err := a.pods()
	if err != nil {
		a.t.Fatal(err)
	}
	for name, p := range pods {
		if slices.Contains(moving, name) {
			continue
		}
		for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			_, id, _ := strings.Cut(c.ContainerID, "://")
			if r := after[name+"/"+c.Name]; id != r.id || c.RestartCount != 0 {
				a.t.Errorf("to the kubelet %s of %s is %s with %d restarts, and to the runtime %s", c.Name, name, id, c.RestartCount, r)
			}
		}
	}
}

// works does with adopted pods, through the kubelet, what people do.
func (a *adopted) works(rows map[string]row) {
	a.t.Helper()
	t := a.t
	for name, container := range map[string]string{"web": "web", "probed": "probed", "host-network": "onhost", "host-pid": "onhost", "user-namespace": "onhost", "writes-1": "writes", "terminal": "terminal"} {
		if !slices.Contains(a.steady, name) {
			continue
		}
		if text, err := a.request("POST", "/run/default/"+name+"-node/"+container+"?cmd=echo%20berth"); err != nil || text != "berth\n" {
			t.Errorf("a command in %s printed %q, %v", name, text, err)
		}
	}
	if text, err := a.get("/containerLogs/default/web-node/web"); err != nil || !strings.HasPrefix(text, "it serves\n") {
		t.Errorf("log %q, %v", text, err)
	}
	if !a.eventually(func() bool { return a.measured("web", "web") && a.measured("writes-1", "writes") }) {
		t.Error("the statistics have no memory of the containers")
	}
	conn := client.PortForward(t, a.url("https", "/portForward/default/web-node"))
	if got, refused := client.Talk(t, conn, "8080", "adopted", "GET /index.html HTTP/1.0\r\n\r\n"); !strings.HasSuffix(got, "made by init\n") {
		t.Errorf("port-forward: %q %q", got, refused)
	}
	_ = conn.Close()
	s := dial(t, a.url("https", "/attach/default/terminal-node/terminal?"+url.Values{"input": {"1"}, "output": {"1"}, "tty": {"1"}}.Encode()))
	s.send(t, 0, "hello\n")
	s.until(t, 1, "got hello\r\n")
	_ = s.conn.Close()
	a.change("resized", "resized", "memory: 64Mi", "memory: 96Mi")
	limit := "memory/memory.limit_in_bytes"
	if cgroup.V2() {
		limit = "memory.max"
	}
	a.untilPrinted(t, "resized", "cat /sys/fs/cgroup/"+limit, "100663296\n")

	// One pod is told to end again, and does once it may. Another has been taken away before the kubelet
	// was stopped, and one is taken away now.
	id := rows["stubborn/stubborn"].id
	a.Until("the stubborn pod is told to end again", func() bool { return strings.Count(a.Log(id), "asked") >= 2 })
	a.let("stubborn")
	if p := a.until("stubborn", "over", func(p pod) bool { return p.Status.Phase == "Failed" }); p.only().State.Terminated == nil || p.only().State.Terminated.ExitCode != 5 {
		t.Errorf("the stubborn pod is %+v", p.only())
	}
	a.remove("removed")
	for name, code := range map[string]int32{"terminating/stubborn": 137, "removed/probed": 7} {
		id := rows[name].id
		if id == "" {
			continue // it was gone as soon as the kubelet was there
		}
		var last *runtimeapi.ContainerStatus
		a.Until(name+" has ended", func() bool {
			resp, err := a.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
			if err == nil {
				last = resp.GetStatus()
			}
			return err != nil || last.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
		})
		if last.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED && last.GetExitCode() != code {
			t.Errorf("%s was stopped: %v", name, last)
		}
	}
	a.send()
	a.until("pulled", "ready", pod.ready)
}

// changeBack changes the runtime to the plug-in again. before is what the plug-in had, and rows what is
// berth's now. What berth has made is not the plug-in's: its pods are removed, and the kubelet makes them
// again.
func (a *adopted) changeBack(before, rows map[string]row) {
	a.t.Helper()
	had := map[string]bool{}
	for _, r := range before {
		had[r.id] = true
	}
	for name, r := range rows {
		if had[r.id] {
			continue
		}
		pod, _, _ := strings.Cut(name, "/")
		if pod != "crash" && pod != "pulled" {
			a.t.Errorf("berth has made a container %s", name)
		}
		for _, p := range a.sandboxes(pod) {
			if _, err := a.RemovePodSandbox(a.t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()}); err != nil {
				a.t.Fatal(err)
			}
		}
	}
	a.Berth.Kill(syscall.SIGTERM)
	a.letEnd(rows, "back-1")
	out := a.AdoptWith([]string{"--back"}, node.Step{Name: "switch", Do: func() {
		a.let("back")
		a.Containerd.Kill(syscall.SIGTERM)
		a.letEnd(rows, "back-2")
		a.PluginOn()
		a.letEnd(rows, "back-3")
	}})
	a.t.Logf("%s", out)
	a.letEnd(rows, "back-4")
	a.logIsWhole("writes-1")
	a.logIsWhole("writes-2")
	a.useSocket(a.Dir+"/berth.sock", a.Dir+"/c/containerd.sock")
	a.run()
	a.ended(rows, a.back)
}

// logIsWhole expects all numbers in the log of a container that writes them. The kubelet, which is
// stopped, has rotated it.
func (a *adopted) logIsWhole(name string) {
	a.t.Helper()
	live, rotated := a.logs(name)
	size := func() int64 {
		fi, err := os.Stat(live)
		if err != nil {
			a.t.Fatal(err)
		}
		return fi.Size()
	}
	had := size()
	a.Until("the log grows", func() bool { return size() > had+500<<10 })
	var all strings.Builder
	files := 0
	for _, path := range append(rotated, live) {
		if plain := strings.TrimSuffix(path, ".gz"); strings.HasSuffix(path, ".tmp") || plain != path && slices.Contains(rotated, plain) {
			continue // the kubelet was stopped while it compressed the file
		}
		b, err := readLog(path)
		if err != nil {
			a.t.Fatal(err)
		}
		all.Write(b)
		files++
	}
	a.t.Logf("%s has written %d lines into %d files", name, node.Numbered(a.t, node.LogText(a.t, all.String())), files)
}

// nothingLeft removes all pods.
func (a *adopted) nothingLeft() {
	a.t.Helper()
	a.until("pulled", "ready", pod.ready)
	manifests, err := filepath.Glob(a.dir + "/manifests/*.yaml")
	if err != nil {
		a.t.Fatal(err)
	}
	for _, path := range manifests {
		if err := os.Remove(path); err != nil {
			a.t.Fatal(err)
		}
	}
	a.gone()
	// The plug-in ends the calls of CNI's of a client that goes, and what they had not removed stays.
	a.Until("the pods are disconnected", func() bool { return len(a.PluginNetworks()) == 0 })
	a.process.Kill(syscall.SIGTERM)
	a.look()
	a.RemoveAll(a.t.Context())
	if left := a.PluginLeft(slices.Collect(maps.Keys(a.ids))...); len(left) > 0 {
		a.t.Errorf("left of the plug-in's:\n%s", strings.Join(left, "\n"))
	}
	if left := a.Addresses(); len(left) > 0 {
		a.t.Errorf("addresses are left: %q", left)
	}
}

// report prints how each container was, with the plug-in, with berth and with the plug-in again.
func (a *adopted) report(tables ...map[string]row) {
	a.t.Helper()
	names := map[string]bool{}
	for _, rows := range tables {
		for name := range rows {
			names[name] = true
		}
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(&out, "| %s |", name)
		for _, rows := range tables {
			fmt.Fprintf(&out, " %s |", rows[name])
		}
		out.WriteByte('\n')
	}
	a.t.Logf("the containers with containerd's CRI plug-in, with berth, and with the plug-in again:\n%s", out.String())
}

// useSocket has the next kubelet use another runtime.
func (k *kubelet) useSocket(was, is string) {
	k.t.Helper()
	path := k.dir + "/config.yaml"
	b, err := os.ReadFile(path)
	if err != nil {
		k.t.Fatal(err)
	}
	next := bytes.ReplaceAll(b, []byte("unix://"+was+"\n"), []byte("unix://"+is+"\n"))
	if bytes.Equal(b, next) {
		k.t.Fatalf("the kubelet does not use %s", was)
	}
	if err := os.WriteFile(path, next, 0o600); err != nil {
		k.t.Fatal(err)
	}
}
