// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
	"berth/internal/heart/state"
)

var (
	now     = time.Unix(2000, 0).UTC()
	created = time.Unix(1000, 1).UTC()
)

// sandboxText and containerText are what the plug-in keeps, as containerd 1.7 writes it; 2.4 adds
// fields, such as ImageDigest.
const (
	sandboxText = `{"Version":"v1","Metadata":{"ID":"p1","Name":"web_default_u1_2","Config":{"metadata":{"name":"web","uid":"u1","namespace":"default","attempt":2},
"hostname":"web","log_directory":"/var/log/pods/web","labels":{"app":"web"},"linux":{"cgroup_parent":"/kubepods/web","security_context":{"namespace_options":{"pid":1}}}},
"NetNSPath":"/run/netns/cni-1","IP":"10.0.0.5","AdditionalIPs":["fd00::5"],"RuntimeHandler":"","CNIResult":{"Interfaces":{"eth0":{"IPConfigs":null}}},"ProcessLabel":""}}`
	containerText17 = `{"Version":"v1","Metadata":{"ID":"c1","Name":"app_web_default_u1_4","SandboxID":"p1","Config":{"metadata":{"name":"app","attempt":4},
"image":{"image":"sha256:abc"},"command":["sleep"],"log_path":"app/4.log","stdin":true,"linux":{"resources":{"memory_limit_in_bytes":1024},"security_context":{}}},
"ImageRef":"sha256:abc","LogPath":"/var/log/pods/web/app/4.log","StopSignal":"SIGINT","ProcessLabel":""}}`
	cachedText = `{"kind":"cniCacheV1","containerId":"p1","config":"eyJuYW1lIjoibmV0In0=","ifName":"eth0","networkName":"net","result":{"cniVersion":"1.0.0"}}`
	loopText   = `{"kind":"cniCacheV1","containerId":"p1","config":"e30=","ifName":"lo","networkName":"cni-loopback","result":{}}`
	running    = `{"Version":"v1","Pid":4242,"CreatedAt":1000000000001,"StartedAt":1001000000000,"FinishedAt":0,"ExitCode":0,"Reason":"","Message":"","Resources":{"linux":{}}}`
)

var containerText24 = strings.Replace(containerText17, `"ImageRef"`, `"ImageDigest":"sha256:def","ImageName":"app:1","ImageRef"`, 1)

// node is a pod of the plug-in with one container that runs.
func node() (Found, Settings) {
	f := Found{
		Root:  "/cd/io.containerd.grpc.v1.cri",
		State: "/run/cd/io.containerd.grpc.v1.cri",
		Objects: []Object{
			{
				ID: "p1", Kind: "sandbox", Metadata: []byte(sandboxText), Runtime: "io.containerd.runc.v2", Sandboxer: "podsandbox",
				Snapshotter: "overlayfs", SnapshotKey: "p1", CreatedAt: created, Task: &Task{Pid: 4000, Running: true},
				Spec: &specs.Spec{Mounts: []specs.Mount{
					{Destination: "/dev/shm", Source: "/elsewhere/io.containerd.grpc.v1.cri/sandboxes/p1/shm"},
					{Destination: "/etc/resolv.conf", Source: "/cd/io.containerd.grpc.v1.cri/sandboxes/p1/resolv.conf"},
				}},
			},
			{
				ID: "c1", Kind: "container", Metadata: []byte(containerText17), Runtime: "io.containerd.runc.v2",
				Snapshotter: "overlayfs", SnapshotKey: "c1", CreatedAt: created,
				Task: &Task{Pid: 4242, Running: true, Stdin: "/f/c1-stdin", Stdout: "/f/c1-stdout", Stderr: "/f/c1-stderr"},
				Spec: &specs.Spec{Process: &specs.Process{User: specs.User{UID: 7}}},
			},
		},
		Statuses:  map[string][]byte{"c1": []byte(running)},
		Networks:  map[string][]Cached{"p1": {{"/var/lib/cni/results/net-p1-eth0", []byte(cachedText)}, {"/var/lib/cni/results/cni-loopback-p1-lo", []byte(loopText)}}},
		ImageRefs: map[string]string{"sha256:abc": "app@sha256:def"},
		Pinned:    map[string]bool{"/run/netns/cni-1": true},
	}
	return f, Settings{
		Handlers: map[string]Handler{"runc": {"runc", "io.containerd.runc.v2", true, "overlayfs"}, "vm": {"vm", "io.containerd.kata.v2", false, "overlayfs"}},
		Default:  "runc",
		Own:      "me",
		Clock:    still(now),
	}
}

// The records of a pod say what the plug-in knew of it: containerd 1.7 and 2.4.
func TestAPodIsPlannedAsThePlugInHasIt(t *testing.T) {
	for name, text := range map[string]string{"1.7": containerText17, "2.4": containerText24} {
		f, s := node()
		f.Objects[1].Metadata = []byte(text)
		if name == "1.7" {
			f.Objects[0].Sandboxer = "" // it has no sandbox object
		}
		plan := MakePlan(f, s)
		if len(plan.Refused)+len(plan.Left) > 0 || len(plan.Pods) != 1 || len(plan.Pods[0].Containers) != 1 {
			t.Fatalf("%s: %+v", name, plan)
		}
		pod, ct := plan.Pods[0], plan.Pods[0].Containers[0]
		wantPod := state.Adopted{
			Dirs: []string{
				"/cd/io.containerd.grpc.v1.cri/sandboxes/p1", "/elsewhere/io.containerd.grpc.v1.cri/sandboxes/p1",
				"/elsewhere/io.containerd.grpc.v1.cri/image-volumes/p1",
			},
			Files:     []string{"/var/lib/cni/results/net-p1-eth0", "/var/lib/cni/results/cni-loopback-p1-lo"},
			Lease:     "p1",
			Snapshots: []state.Snapshot{{Snapshotter: "overlayfs", Key: "p1"}},
			Shared: state.SharedFiles{
				Hosts:      "/cd/io.containerd.grpc.v1.cri/sandboxes/p1/hosts",
				Hostname:   "/cd/io.containerd.grpc.v1.cri/sandboxes/p1/hostname",
				ResolvConf: "/cd/io.containerd.grpc.v1.cri/sandboxes/p1/resolv.conf",
				Shm:        "/elsewhere/io.containerd.grpc.v1.cri/sandboxes/p1/shm",
			},
		}
		if !reflect.DeepEqual(*pod.Sandbox.Adopted, wantPod) {
			t.Errorf("%s: what the plug-in has made for the pod: %+v", name, *pod.Sandbox.Adopted)
		}
		if st := pod.Status; st.Phase != state.Ready || st.Process.Pid != 4000 || st.Owner != state.OwnerTaking ||
			!slices.Equal(st.Network.IPs, []string{"10.0.0.5", "fd00::5"}) || string(st.Network.Conf) != `{"name":"net"}` || string(st.Network.Result) != `{"cniVersion":"1.0.0"}` ||
			!st.Holds.Has(state.HoldTask|state.HoldContainer|state.HoldSandbox|state.HoldNetNS|state.HoldNetwork|state.HoldAdopted) {
			t.Errorf("%s: the status of the pod: %+v", name, st)
		}
		if sb := pod.Sandbox; sb.Handler != "runc" || sb.NetNS != "/run/netns/cni-1" || sb.Config.GetMetadata().GetAttempt() != 2 || sb.Config.GetLinux().GetCgroupParent() != "/kubepods/web" {
			t.Errorf("%s: the pod: %+v", name, sb)
		}
		if c := ct.Container; c.PodID != "p1" || c.ImageID != "sha256:abc" || c.ImageRef != "app@sha256:def" || c.StopSignal != "SIGINT" ||
			c.LogPath != "/var/log/pods/web/app/4.log" || c.Config.GetMetadata().GetAttempt() != 4 || !c.Config.GetStdin() ||
			!slices.Equal(c.Adopted.Dirs, []string{"/cd/io.containerd.grpc.v1.cri/containers/c1", "/elsewhere/io.containerd.grpc.v1.cri/containers/c1"}) {
			t.Errorf("%s: the container: %+v", name, c)
		}
		if st := ct.Status; st.Phase != state.Running || st.Process.Pid != 4242 || st.StartedAt != clock.Stamped(time.Unix(1001, 0)) || st.CreatedAt != clock.Stamped(created) ||
			st.Applied.User.GetUid() != 7 || st.Owner != "" {
			t.Errorf("%s: the status of the container: %+v", name, st)
		}
	}
}

// What a status file says of a container, beside what its shim says.
func TestAContainerIsAsItsFileSays(t *testing.T) {
	file := func(fields string) string {
		return `{"Version":"v1","CreatedAt":1000000000000,` + fields + `}`
	}
	ended := &Task{Pid: 4242, Stopped: true, Code: 3, ExitedAt: now}
	for _, tc := range []struct {
		name, file string
		task       *Task
		phase      state.Phase
		exit       exit.Fact
		pid        uint32
		holds      state.Hold // among the task and the stdio
		lost       string
	}{
		{"created", file(`"StartedAt":0`), nil, state.Created, exit.Fact{}, 0, state.HoldTask | state.HoldIO, ""},
		{"runs", running, &Task{Pid: 4242, Running: true}, state.Running, exit.Fact{}, 4242, state.HoldTask | state.HoldIO, "48 KiB"},
		{"has ended during the switch", running, ended, state.Running, exit.Fact{}, 0, state.HoldTask | state.HoldIO, "48 KiB"},
		{"has ended, and nobody has its code", running, nil, state.Running, exit.Fact{}, 0, state.HoldTask | state.HoldIO, "255"},
		{"exited", file(`"StartedAt":1001000000000,"FinishedAt":1002000000000,"ExitCode":7`), nil, state.Exited,
			exit.Fact{ID: "c1", Code: 7, Measured: true, At: clock.Stamped(time.Unix(1002, 0)), Origin: exit.Task}, 0, 0, ""},
		{"was killed by the OOM killer", file(`"StartedAt":1001000000000,"FinishedAt":1002000000000,"ExitCode":137,"Reason":"OOMKilled"`), nil, state.Exited,
			exit.Fact{ID: "c1", Code: 137, Measured: true, At: clock.Stamped(time.Unix(1002, 0)), Origin: exit.Task, OOM: true}, 0, 0, ""},
		{"did not start", file(`"FinishedAt":1002000000000,"ExitCode":128,"Reason":"StartError","Message":"no such program"`), nil, state.Exited,
			exit.NotStarted("c1", clock.Stamped(time.Unix(1002, 0)), "no such program"), 0, 0, ""},
		{"ended unknown", file(`"StartedAt":1001000000000,"FinishedAt":1002000000000,"ExitCode":255,"Reason":"Unknown"`), nil, state.Exited,
			exit.Fact{ID: "c1", At: clock.Stamped(time.Unix(1002, 0)), Origin: exit.Audit, Message: "the plug-in did not know how it ended"}, 0, 0, ""},
		{"has no file, and runs", "", &Task{Pid: 4242, Running: true}, state.Running, exit.Fact{}, 4242, state.HoldTask | state.HoldIO, "when it was started"},
		{"has no file", "", nil, state.Exited, exit.Fact{ID: "c1", At: clock.Stamped(now), Origin: exit.Audit, Message: "the plug-in's status file is absent"}, 0, 0, "how it ended"},
		{"has a file of a later version", `{"Version":"v2"}`, nil, state.Exited,
			exit.Fact{ID: "c1", At: clock.Stamped(now), Origin: exit.Audit, Message: `the plug-in's status file has version "v2", and this berth reads "v1"`}, 0, 0, "how it ended"},
	} {
		f, s := node()
		f.Objects[1].Task = tc.task
		f.Statuses["c1"] = []byte(tc.file)
		plan := MakePlan(f, s)
		if len(plan.Pods) != 1 || len(plan.Pods[0].Containers) != 1 {
			t.Errorf("%s: %+v", tc.name, plan)
			continue
		}
		ct := plan.Pods[0].Containers[0]
		if st := ct.Status; st.Phase != tc.phase || st.Exit != tc.exit || st.Process.Pid != tc.pid || st.Holds&(state.HoldTask|state.HoldIO) != tc.holds ||
			!st.Holds.Has(state.HoldContainer|state.HoldSnapshot|state.HoldSandbox|state.HoldAdopted) {
			t.Errorf("%s: %+v", tc.name, st)
		}
		if lost := strings.Join(ct.Lost, "\n"); tc.lost == "" && lost != "" || !strings.Contains(lost, tc.lost) {
			t.Errorf("%s loses %q", tc.name, lost)
		}
	}
}

// What berth cannot adopt is refused in words, or left alone.
func TestWhatCannotBeAdoptedIsNamed(t *testing.T) {
	for _, tc := range []struct {
		name          string
		change        func(f *Found)
		refused, left string
	}{
		{"a pod of a handler that is not configured", func(f *Found) {
			f.Objects[0].Metadata = []byte(strings.Replace(sandboxText, `"RuntimeHandler":""`, `"RuntimeHandler":"gvisor"`, 1))
		}, "[runtimes.gvisor]", ""},
		{"a pod of a virtual machine", func(f *Found) {
			f.Objects[0].Metadata = []byte(strings.Replace(sandboxText, `"RuntimeHandler":""`, `"RuntimeHandler":"vm"`, 1))
			f.Objects[0].Runtime = "io.containerd.kata.v2"
		}, "virtual machine", ""},
		{"a pod of another shim", func(f *Found) { f.Objects[0].Runtime = "io.containerd.runsc.v1" }, "io.containerd.runsc.v1", ""},
		{"a pod of another sandbox controller", func(f *Found) { f.Objects[0].Sandboxer = "shim" }, `"shim"`, ""},
		{"a pod that is half made", func(f *Found) {
			f.Objects = []Object{{ID: "p1", Kind: "sandbox", Metadata: []byte(sandboxText), Half: true}}
		}, "was being made", ""},
		{"a pod whose shim is silent", func(f *Found) { f.Objects[0].Unasked = "deadline exceeded" }, "does not answer: deadline", ""},
		{"a container whose shim is silent", func(f *Found) { f.Objects[1].Unasked = "deadline exceeded" }, "container app: its shim", ""},
		{"metadata of a later version", func(f *Found) { f.Objects[0].Metadata = []byte(`{"Version":"v2"}`) }, `version "v2"`, ""},
		{"a second interface", func(f *Found) {
			f.Networks["p1"] = append(f.Networks["p1"], Cached{"/x", []byte(strings.Replace(cachedText, `"eth0"`, `"eth1"`, 1))})
		}, "eth1", ""},
		{"a cached result that is damaged", func(f *Found) { f.Networks["p1"] = []Cached{{"/x", []byte("{")}} }, "/x", ""},
		{"a container without its pod", func(f *Found) { f.Objects = f.Objects[1:] }, "its pod p1 is not there", ""},
		{"output over a stream", func(f *Found) { f.Objects[1].Task.Stdout = "ttrpc+unix:///s?streaming_id=x" }, "FIFOs alone", ""},
		{"a layer with another name", func(f *Found) { f.Objects[1].SnapshotKey = "x" }, "writable layer", ""},
		{"a container of nerdctl's", func(f *Found) { f.Objects = append(f.Objects, Object{ID: "n1"}) }, "", "nerdctl"},
		{"an object without metadata", func(f *Found) { f.Objects = append(f.Objects, Object{ID: "n1", Kind: "sandbox"}) }, "", "nothing that the plug-in keeps"},
	} {
		f, s := node()
		tc.change(&f)
		plan := MakePlan(f, s)
		text := func(list []Remark) (all string) {
			for _, r := range list {
				all += r.Text + "\n"
			}
			return all
		}
		if got := text(plan.Refused); tc.refused == "" && got != "" || !strings.Contains(got, tc.refused) {
			t.Errorf("%s: refused: %q", tc.name, got)
		}
		if got := text(plan.Left); tc.left == "" && got != "" || !strings.Contains(got, tc.left) {
			t.Errorf("%s: left: %q", tc.name, got)
		}
	}
}

// A pod that cannot be adopted, or has a container that cannot be, ends as a whole if the operator
// names it. What can be adopted never does.
func TestOnlyAPodThatCannotBeAdoptedEnds(t *testing.T) {
	const id = "0123456789abcdef"
	for _, tc := range []struct {
		name  string
		end   string
		pod   bool // the pod cannot be adopted
		ct    bool // its container cannot be
		ended bool
	}{
		{"a pod, by its name", "default/web", true, false, true},
		{"a pod, by its ID", id, true, false, true},
		{"a pod, by the beginning of its ID", id[:shortestID], true, false, true},
		{"a pod, by too little of its ID", id[:shortestID-1], true, false, false},
		{"another pod", "default/other", true, false, false},
		{"a pod with a container that cannot be adopted", "default/web", false, true, true},
		{"a pod that can be adopted", "default/web", false, false, false},
	} {
		f, s := node()
		f.Objects[0].ID = id
		f.Objects[1].Metadata = []byte(strings.Replace(containerText17, `"SandboxID":"p1"`, `"SandboxID":"`+id+`"`, 1))
		if tc.pod {
			f.Objects[0].Unasked = "deadline exceeded"
		}
		if tc.ct {
			f.Objects[1].Unasked = "deadline exceeded"
		}
		s.End = []string{tc.end}
		plan := MakePlan(f, s)
		switch {
		case tc.ended && (len(plan.Pods)+len(plan.Refused)+len(plan.NotEnded) > 0 || len(plan.Ended) != 1 || plan.Ended[0].ID != id || !strings.Contains(plan.Ended[0].Text, "deadline")):
			t.Errorf("%s: %+v", tc.name, plan)
		case !tc.ended && (len(plan.Ended) > 0 || !slices.Equal(plan.NotEnded, s.End) || (tc.pod || tc.ct) != (len(plan.Refused) > 0)):
			t.Errorf("%s: %+v", tc.name, plan)
		}
	}
}

// A pod whose metadata cannot be read has no name, and "" does not name it.
func TestAnEmptyNameNamesNoPod(t *testing.T) {
	f, s := node()
	f.Objects[0].Metadata = []byte("{")
	s.End = []string{""}
	if plan := MakePlan(f, s); len(plan.Ended) > 0 || len(plan.Refused) == 0 {
		t.Errorf("%+v", plan)
	}
}

// What is berth's already is not taken again, unless an adoption was cut off.
func TestWhatIsTakenStaysTaken(t *testing.T) {
	f, s := node()
	f.Objects[0].Owner, f.Objects[1].Owner = "me", "me"
	if plan := MakePlan(f, s); len(plan.Pods)+len(plan.Refused)+len(plan.Left) != 0 {
		t.Errorf("%+v", plan)
	}
	s.Taking = map[string]bool{"p1": true}
	if plan := MakePlan(f, s); len(plan.Pods) != 1 || len(plan.Pods[0].Containers) != 1 || !plan.Pods[0].Containers[0].Taken {
		t.Errorf("after a cut: %+v", plan)
	}
	f.Objects[0].Owner, f.Objects[1].Owner = "another", "another"
	if plan := MakePlan(f, s); len(plan.Pods)+len(plan.Refused) != 0 {
		t.Errorf("of another berth: %+v", plan)
	}
}

// A pod that was stopped, and the network of one that CNI has no result of.
func TestANetworkIsPlanned(t *testing.T) {
	f, s := node()
	f.Objects[0].Task, f.Networks, f.Pinned = nil, nil, nil
	if st := MakePlan(f, s).Pods[0].Status; st.Phase != state.NotReady || st.Holds&(state.HoldNetNS|state.HoldNetwork|state.HoldTask) != 0 || st.Exit.Zero() {
		t.Errorf("stopped: %+v", st)
	}
	f, s = node()
	f.Networks = nil
	if pod := MakePlan(f, s).Pods[0]; !pod.Status.Holds.Has(state.HoldNetNS|state.HoldNetwork) || len(pod.Lost) != 1 || !strings.Contains(pod.Lost[0], "cached result") {
		t.Errorf("without a result: %+v", pod)
	}
	f, s = node()
	f.Objects[0].Metadata = []byte(strings.Replace(sandboxText, `"NetNSPath":"/run/netns/cni-1"`, `"NetNSPath":""`, 1))
	if pod := MakePlan(f, s).Pods[0]; pod.Status.Holds&(state.HoldNetNS|state.HoldNetwork) != 0 || pod.Status.Network != nil {
		t.Errorf("in the host's network: %+v", pod.Status)
	}
}

// What has happened under berth is in the plug-in's file afterwards, and what berth does not know
// in it stays.
func TestAStatusFileSaysWhatHasHappened(t *testing.T) {
	at := clock.Stamped(time.Unix(1005, 0))
	record := func(st state.Status) state.ContainerRecord {
		st.CreatedAt = clock.Stamped(created)
		return state.ContainerRecord{Container: state.Container{ID: "c1"}, Status: st}
	}
	for _, tc := range []struct {
		name string
		was  string
		st   state.Status
		want containerStatus
	}{
		{"runs", running, state.Status{Phase: state.Running, StartedAt: clock.Stamped(time.Unix(1001, 0))},
			containerStatus{StartedAt: 1001e9}},
		{"exited, and the plug-in has seen an OOM kill before", strings.Replace(running, `"Reason":""`, `"Reason":"OOMKilled"`, 1), state.Status{Phase: state.Exited, StartedAt: clock.Stamped(time.Unix(1001, 0)), Exit: exit.Fact{ID: "c1", Measured: true, At: at, Origin: exit.Kernel}},
			containerStatus{StartedAt: 1001e9, FinishedAt: 1005e9}},
		{"exited", running, state.Status{Phase: state.Exited, StartedAt: clock.Stamped(time.Unix(1001, 0)), Exit: exit.Fact{ID: "c1", Code: 3, Measured: true, At: at, Origin: exit.Kernel}},
			containerStatus{StartedAt: 1001e9, FinishedAt: 1005e9, ExitCode: 3}},
		{"was killed by the OOM killer", running, state.Status{Phase: state.Exited, StartedAt: clock.Stamped(time.Unix(1001, 0)), Exit: exit.Fact{ID: "c1", Code: 137, Measured: true, At: at, Origin: exit.Kernel, OOM: true}},
			containerStatus{StartedAt: 1001e9, FinishedAt: 1005e9, ExitCode: 137, Reason: "OOMKilled"}},
		{"nobody knows how it ended", running, state.Status{Phase: state.Exited, StartedAt: clock.Stamped(time.Unix(1001, 0)), Exit: exit.Fact{ID: "c1", At: at, Origin: exit.Audit}},
			containerStatus{StartedAt: 1001e9, FinishedAt: 1005e9, ExitCode: 255, Reason: "Unknown"}},
		{"is created", "", state.Status{Phase: state.Created}, containerStatus{}},
	} {
		b, err := StatusFile([]byte(tc.was), record(tc.st), Object{}, still(now))
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		got, err := readStatus(b)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		got.Message, got.Resources, got.Version, got.CreatedAt = "", nil, "", 0
		if got != tc.want {
			t.Errorf("%s: %s", tc.name, b)
		}
	}
	b, err := StatusFile([]byte(`{"Version":"v1","Later":"x"}`), record(state.Status{Phase: state.Created}), Object{}, still(now))
	var fields map[string]any
	if err != nil || json.Unmarshal(b, &fields) != nil || fields["Later"] != "x" {
		t.Errorf("%v: %s", err, b)
	}
	if _, err := StatusFile([]byte(`{"Version":"v2"}`), record(state.Status{}), Object{}, still(now)); err == nil {
		t.Error("a file of a later version was written")
	}
}

// Pods that the plug-in cannot have are named, and the others are given.
func TestWhatThePlugInCannotHaveIsNamed(t *testing.T) {
	adopted := &state.Adopted{Dirs: []string{"/d/p1"}}
	for _, tc := range []struct {
		name   string
		change func(sb *state.SandboxRecord, ct *state.ContainerRecord, o *Object)
		want   string
	}{
		{"an adopted pod", func(*state.SandboxRecord, *state.ContainerRecord, *Object) {}, ""},
		{"a pod of berth's", func(sb *state.SandboxRecord, _ *state.ContainerRecord, _ *Object) { sb.Adopted = nil }, "berth has made it"},
		{"a pod without a process", func(sb *state.SandboxRecord, _ *state.ContainerRecord, _ *Object) { sb.Adopted, sb.Pinned = nil, true }, "pause process"},
		{"a container of berth's", func(_ *state.SandboxRecord, ct *state.ContainerRecord, _ *Object) { ct.Adopted = nil }, "its container app"},
		{"a pod that is being removed", func(sb *state.SandboxRecord, _ *state.ContainerRecord, _ *Object) { sb.Status.Removing = true }, "being removed"},
		{"a container that is being removed", func(_ *state.SandboxRecord, ct *state.ContainerRecord, _ *Object) { ct.Status.Removing = true }, "being removed"},
		{"a container that berth has started", func(_ *state.SandboxRecord, _ *state.ContainerRecord, o *Object) {
			o.Task = &Task{Stdout: "binary:///berth-logger"}
		}, "cannot read"},
		{"a container that is gone", func(_ *state.SandboxRecord, _ *state.ContainerRecord, o *Object) { o.ID = "x" }, "any more"},
		{"a silent shim", func(_ *state.SandboxRecord, _ *state.ContainerRecord, o *Object) { o.Unasked = "late" }, "does not answer: late"},
	} {
		sb := state.SandboxRecord{Sandbox: state.Sandbox{ID: "p1", Adopted: adopted, Config: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u", Attempt: 2}}}}
		ct := state.ContainerRecord{Container: state.Container{ID: "c1", PodID: "p1", Adopted: adopted, Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "app"}}}}
		o := Object{ID: "c1"}
		tc.change(&sb, &ct, &o)
		b := MakeBack(state.Loaded{Sandboxes: []state.SandboxRecord{sb}, Containers: []state.ContainerRecord{ct}}, Found{Objects: []Object{{ID: "p1"}, o}})
		switch {
		case tc.want == "" && (len(b.Pods) != 1 || len(b.Pods[0].Containers) != 1 || len(b.Kept) != 0):
			t.Errorf("%s: %+v", tc.name, b)
		case tc.want != "" && (len(b.Pods) != 0 || len(b.Kept) != 1 || !strings.Contains(b.Kept[0].Text, tc.want) || !strings.Contains(b.Kept[0].Text, "default/web")):
			t.Errorf("%s: %+v", tc.name, b.Kept)
		}
		if name := SandboxName(proto.CloneOf(sb.Config)); name != "web_default_u_2" {
			t.Errorf("the plug-in calls it %s", name)
		}
	}
}

// PROPERTIES 46: the plug-in of containerd 1.7 keeps no address of a pod with a user namespace, so that a
// kubelet took an adopted one for a pod that had lost its network. And no container can be made in
// it again where the snapshotter does not shift owners, which the plan says.
func TestAPodWithAUserNamespaceKeepsItsAddress(t *testing.T) {
	const result = `{"cniVersion":"1.0.0","interfaces":[{"name":"veth1"},{"name":"eth0","sandbox":"/run/netns/cni-1"}],"ips":[{"address":"10.0.0.7/24","interface":1},{"address":"10.9.9.9/24","interface":0},{"address":"fd00::7/64"}]}`
	for _, shifts := range []bool{false, true} {
		f, s := node()
		text := strings.NewReplacer(`"IP":"10.0.0.5","AdditionalIPs":["fd00::5"],`, `"IP":"","AdditionalIPs":null,`, `"pid":1`,
			`"pid":1,"userns_options":{"uids":[{"host_id":65536,"length":65536}],"gids":[{"host_id":65536,"length":65536}]}`).Replace(sandboxText)
		f.Objects[0].Metadata = []byte(text)
		f.Networks["p1"][0].Text = []byte(strings.Replace(cachedText, `{"cniVersion":"1.0.0"}`, result, 1))
		f.Shifts = map[string]bool{"overlayfs": shifts}
		if names := MappedHandlers(f); !slices.Equal(names, []string{""}) {
			t.Errorf("the handlers of pods with user namespaces: %q", names)
		}
		plan := MakePlan(f, s)
		if len(plan.Pods) != 1 {
			t.Fatalf("%+v", plan)
		}
		pod := plan.Pods[0]
		if ips := pod.Status.Network.IPs; !slices.Equal(ips, []string{"10.0.0.7", "fd00::7"}) {
			t.Errorf("its addresses: %q", ips)
		}
		if said := strings.Contains(strings.Join(pod.Lost, "; "), "no container can be made in it again: it has a user namespace, and the snapshotter overlayfs"); said == shifts {
			t.Errorf("where owners are shifted (%t) it loses %q", shifts, pod.Lost)
		}
	}
	f, s := node()
	f.Objects[0].Metadata = []byte(strings.Replace(sandboxText, `"IP":"10.0.0.5"`, `"IP":""`, 1))
	f.Networks["p1"][0].Text = []byte(strings.Replace(cachedText, `{"cniVersion":"1.0.0"}`, `{"ips":[{"address":"10.0.0.300/24"}]}`, 1))
	if plan := MakePlan(f, s); len(plan.Refused) == 0 || !strings.Contains(plan.Refused[0].Text, "read its addresses in CNI's cached result /var/lib/cni/results/net-p1-eth0") {
		t.Errorf("%+v", plan.Refused)
	}
}

// fixed is a clock that stands still.
type fixed struct {
	clock.Source
	at time.Time
}

func (f fixed) SinceBoot() time.Duration         { return time.Hour }
func (f fixed) Read() (time.Duration, time.Time) { return time.Hour, f.at }
func (f fixed) Boot() string                     { return "boot" }

// still returns a clock that stands still.
func still(now time.Time) *clock.Clock { return clock.New(fixed{at: now}) }
