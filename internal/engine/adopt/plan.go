// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
	"berth/internal/heart/state"
	"berth/internal/host/spec"
)

// Handler is a runtime handler of berth's configuration.
type Handler struct {
	Name        string
	Type        string // such as io.containerd.runc.v2
	HostProcess bool   // the processes of its containers are processes of this host
	Snapshotter string
}

// Settings are the parts of berth's configuration that a plan needs.
type Settings struct {
	// Handlers are the configured handlers by name, and Default is the handler of a pod that names
	// none.
	Handlers map[string]Handler
	Default  string
	// Own is the ID of this berth. Objects that carry it are taken into the plan only if they are
	// of a pod in Taking.
	Own string
	// Taking are the pods of which an earlier adoption may have taken a part.
	Taking map[string]bool
	Clock  *clock.Clock // makes instants of what the plug-in has stamped
	// CgroupDir returns where a cgroup of cgroupfs is on this host. It may be nil.
	CgroupDir func(path string) string
	// Held is set if a process holds the pipes of the containers open while containerd is restarted.
	Held bool
	// Ends are how containers have ended while the plug-in was turned off, as far as a witness
	// knows, by ID.
	Ends map[string]exit.Fact
	// End are the pods that may end if they cannot be adopted: NAMESPACE/NAME, or an ID or its
	// beginning.
	End []string
}

// Plan lists the pods to adopt and the objects that are not adopted.
type Plan struct {
	Pods []Pod `json:"pods"`
	// Refused lists the objects that berth cannot adopt, and why. If there are any, nothing is
	// adopted, because they would not be served.
	Refused []Remark `json:"refused,omitempty"`
	// Silent is how many shims did not answer, where answers could change the plan. That proves
	// nothing about their pods: the shims are asked again. It is 0 if something is refused for another
	// reason.
	Silent int `json:"-"`
	// Ended are the pods that cannot be adopted and may end, and why they cannot be adopted. The
	// plug-in stops and removes them before anything else is done.
	Ended []Remark `json:"ended,omitempty"`
	// NotEnded are the names of pods that may end, and of which no pod needs to.
	NotEnded []string `json:"notEnded,omitempty"`
	// Left lists objects that are not the plug-in's, and stay as they are.
	Left []Remark `json:"left,omitempty"`
}

// Remark is a sentence about an object.
type Remark struct {
	ID   string `json:"id"`
	Text string `json:"text"`
}

// Pod is a pod of the plug-in as berth's records will have it.
type Pod struct {
	ID         string      `json:"id"`
	Namespace  string      `json:"namespace"`
	Name       string      `json:"name"`
	State      state.Phase `json:"state"`
	Containers []Container `json:"containers,omitempty"`
	// Lost describes the losses of the pod, in sentences.
	Lost []string `json:"lost,omitempty"`

	Sandbox state.Sandbox `json:"-"`
	Status  state.Status  `json:"-"`
	// Caches are CNI's cached results that berth's own DEL needs.
	Caches []Cached `json:"-"`
}

// Container is a container of the plug-in as berth's records will have it.
type Container struct {
	ID    string      `json:"id"`
	Name  string      `json:"name"`
	State state.Phase `json:"state"`
	Lost  []string    `json:"lost,omitempty"`

	Container state.Container `json:"-"`
	Status    state.Status    `json:"-"`
	// Task has the pipes of its output; nil: it has none.
	Task *Task `json:"-"`
	// Taken is set if an interrupted adoption has taken it.
	Taken bool `json:"-"`
}

// MakePlan makes a plan for the data found. It is pure.
func MakePlan(f Found, s Settings) Plan {
	p := planner{found: f, set: s, pods: map[string]int{}, podOf: map[string]string{}, names: map[string]string{}, quiet: map[string]bool{}}
	for _, o := range f.Objects {
		if o.Kind == spec.KindSandbox && p.mine(o, o.ID) {
			p.sandbox(o)
		}
	}
	for _, o := range f.Objects {
		switch {
		case o.Kind == spec.KindContainer:
			p.container(o)
		case o.Kind == "" && o.Owner == "":
			p.plan.Left = append(p.plan.Left, Remark{o.ID, "it is not the plug-in's: ctr, nerdctl or another client of containerd has made it, and berth does not adopt it"})
		}
	}
	p.end()
	slices.SortFunc(p.plan.Pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	for i := range p.plan.Pods {
		slices.SortFunc(p.plan.Pods[i].Containers, func(a, b Container) int {
			return cmp.Or(a.Container.CreatedAt.Compare(b.Container.CreatedAt), cmp.Compare(a.ID, b.ID))
		})
	}
	return p.plan
}

// planner makes a plan.
type planner struct {
	found Found
	set   Settings
	plan  Plan
	pods  map[string]int    // indexes in plan.Pods
	podOf map[string]string // of refused objects: the ID of the pod
	quiet map[string]bool   // objects that are refused because their shims did not answer
	names map[string]string // of pods, NAMESPACE/NAME by ID
}

// mine reports whether an object of a pod is to be adopted: it is the plug-in's, or an interrupted
// adoption has taken it. Objects of another berth, or of this one for good, are not.
func (p *planner) mine(o Object, pod string) bool {
	return o.Owner == "" || o.Owner == p.set.Own && p.set.Taking[pod]
}

// refuse records the reason why an object of a pod cannot be adopted.
func (p *planner) refuse(pod, id, format string, args ...any) {
	p.podOf[id] = pod
	p.plan.Refused = append(p.plan.Refused, Remark{id, fmt.Sprintf(format, args...)})
}

// silent refuses an object about which there was no answer.
func (p *planner) silent(pod, id, what, why string) {
	p.quiet[id] = true
	p.refuse(pod, id, "%s: its shim does not answer: %s", what, why)
}

// shortestID is how many characters of an ID name a pod. A shorter prefix may match another pod as
// well.
const shortestID = 12

// end has the pods end that may, where they are refused, or one of their containers is.
func (p *planner) end() {
	needed := map[string]bool{}
	why := map[string][]string{}
	var order []string
	p.plan.Refused = slices.DeleteFunc(p.plan.Refused, func(r Remark) bool {
		pod := p.podOf[r.ID]
		ends := false
		for _, e := range p.set.End {
			if e == "" { // an object without an ID or a name would match this one
				continue
			}
			if e == pod || e == p.names[pod] || len(e) >= shortestID && strings.HasPrefix(pod, e) {
				ends, needed[e] = true, true
			}
		}
		if ends {
			if why[pod] == nil {
				order = append(order, pod)
			}
			why[pod] = append(why[pod], r.Text)
		}
		return ends
	})
	for _, pod := range order {
		p.plan.Ended = append(p.plan.Ended, Remark{pod, strings.Join(why[pod], "; ")})
	}
	if !slices.ContainsFunc(p.plan.Refused, func(r Remark) bool { return !p.quiet[r.ID] }) {
		p.plan.Silent = len(p.quiet)
	}
	for _, e := range p.set.End {
		if !needed[e] {
			p.plan.NotEnded = append(p.plan.NotEnded, e)
		}
	}
	p.plan.Pods = slices.DeleteFunc(p.plan.Pods, func(pod Pod) bool { return why[pod.ID] != nil })
}

// sandbox plans a sandbox.
func (p *planner) sandbox(o Object) {
	m, err := readMetadata[sandboxMetadata](o.Metadata)
	switch {
	case len(o.Metadata) == 0:
		p.plan.Left = append(p.plan.Left, Remark{o.ID, "it has the label of a sandbox of the plug-in, and nothing that the plug-in keeps of one"})
		return
	case err != nil:
		p.refuse(o.ID, o.ID, "%v", err)
		return
	case m.Config.GetMetadata() == nil:
		p.refuse(o.ID, o.ID, "the plug-in's metadata names no pod")
		return
	}
	name := m.Config.GetMetadata().GetNamespace() + "/" + m.Config.GetMetadata().GetName()
	p.names[o.ID] = name
	handler, ok := p.set.Handlers[cmp.Or(m.RuntimeHandler, p.set.Default)]
	switch {
	case o.Half && (o.Sandboxer == "" || o.Sandboxer == "podsandbox"):
		p.refuse(o.ID, o.ID, "pod %s: it was being made, or being removed, and has no pause process; remove it while the plug-in serves (crictl rmp -f)", name)
		return
	case o.Sandboxer != "" && o.Sandboxer != "podsandbox" && o.Sandboxer != "berth":
		p.refuse(o.ID, o.ID, "pod %s: its sandbox is made by the sandbox controller %q; berth adopts those of podsandbox", name, o.Sandboxer)
		return
	case !ok:
		p.refuse(o.ID, o.ID, "pod %s: its runtime handler %q is not in berth's configuration; add a table [runtimes.%s]", name, m.RuntimeHandler, m.RuntimeHandler)
		return
	case handler.Type != o.Runtime:
		p.refuse(o.ID, o.ID, "pod %s: its runtime is %s, and that of berth's handler %s is %s", name, o.Runtime, handler.Name, handler.Type)
		return
	case !handler.HostProcess:
		p.refuse(o.ID, o.ID, "pod %s: its containers run in a virtual machine (runtimes.%s.host_process is false), and berth does not adopt those", name, handler.Name)
		return
	case o.Unasked != "":
		p.silent(o.ID, o.ID, "pod "+name, o.Unasked)
		return
	}
	sb := state.Sandbox{
		ID:             o.ID,
		Handler:        handler.Name,
		RuntimeHandler: m.RuntimeHandler,
		NetNS:          m.NetNSPath,
		CreatedAt:      p.set.Clock.Instant(o.CreatedAt),
		Config:         m.Config,
		Adopted:        p.adoptedSandbox(o, m),
	}
	st := state.Status{
		Phase:        state.Ready,
		CreatedAt:    p.set.Clock.Instant(o.CreatedAt),
		StartedAt:    p.set.Clock.Instant(o.CreatedAt),
		Holds:        state.HoldTask | state.HoldContainer | state.HoldSandbox | state.HoldAdopted,
		SELinuxLabel: m.ProcessLabel,
		Owner:        state.OwnerTaking,
	}
	if privileged(m.Config) {
		st.SELinuxLabel = ""
	}
	if o.Task == nil {
		st.Phase = state.NotReady
		st.Holds &^= state.HoldTask
		st.Exit = exit.Fact{
			ID:      o.ID,
			At:      p.set.Clock.Now(),
			Origin:  exit.Audit,
			Message: "it had ended before berth adopted it",
		}
	} else if !o.Task.Stopped {
		st.Process.Pid = o.Task.Pid
	}
	pod := Pod{
		ID:        o.ID,
		Namespace: m.Config.GetMetadata().GetNamespace(),
		Name:      m.Config.GetMetadata().GetName(),
		State:     st.Phase,
	}
	if err := p.network(&pod, &sb, &st, m); err != nil {
		p.refuse(o.ID, o.ID, "pod %s: %v", name, err)
		return
	}
	if _, mapped := spec.UserNamespace(m.Config); mapped && !p.found.Shifts[handler.Snapshotter] {
		pod.Lost = append(pod.Lost, fmt.Sprintf("no container can be made in it again: it has a user namespace, and the snapshotter %s of this containerd does not shift the owners of files", handler.Snapshotter))
	}
	pod.Sandbox, pod.Status = sb, st
	p.pods[o.ID] = len(p.plan.Pods)
	p.plan.Pods = append(p.plan.Pods, pod)
}

func privileged(c *runtimeapi.PodSandboxConfig) bool {
	return c.GetLinux().GetSecurityContext().GetPrivileged()
}

// ifName is the interface that the plug-in gives a pod, as berth does.
const ifName = "eth0"

// network plans the network of a sandbox. The configuration that connected it is in CNI's cache,
// and without it the pod is disconnected with the one that is active then.
func (p *planner) network(pod *Pod, sb *state.Sandbox, st *state.Status, m sandboxMetadata) error {
	if sb.NetNS == "" {
		return nil
	}
	for _, c := range p.found.Networks[sb.ID] {
		sb.Adopted.Files = append(sb.Adopted.Files, c.Path)
		var r cachedResult
		if err := json.Unmarshal(c.Text, &r); err != nil {
			return fmt.Errorf("read CNI's cached result %s: %w", c.Path, err)
		}
		switch {
		case r.IfName == "lo": // it ends with the namespace
		case r.IfName != ifName:
			return fmt.Errorf("it has the interface %s of the network %s, and berth disconnects %s alone", r.IfName, r.NetworkName, ifName)
		case st.Network != nil:
			return fmt.Errorf("CNI has more than one result for its interface %s", ifName)
		default:
			st.Network = &state.Network{Result: r.Result, Conf: r.Config}
			pod.Caches = append(pod.Caches, c)
		}
	}
	if st.Network == nil && !p.found.Pinned[sb.NetNS] {
		return nil // it was stopped, and nothing is left
	}
	st.Holds |= state.HoldNetNS | state.HoldNetwork
	if st.Network == nil {
		st.Network = &state.Network{}
		pod.Lost = append(pod.Lost, "CNI has no cached result of it: it is disconnected with the configuration that is active then")
	}
	if m.IP != "" {
		st.Network.IPs = append([]string{m.IP}, m.AdditionalIPs...)
		// of a pod with a user namespace the plug-in of 1.7 keeps no address
	} else if st.Network.Result != nil {
		ips, err := addresses(st.Network.Result, ifName)
		if err != nil {
			return fmt.Errorf("read its addresses in CNI's cached result %s: %w", pod.Caches[0].Path, err)
		}
		st.Network.IPs = ips
	}
	return nil
}

// adoptedSandbox returns the objects that the plug-in made for a sandbox. Their paths are in its
// specification.
func (p *planner) adoptedSandbox(o Object, m sandboxMetadata) *state.Adopted {
	root, volatile := p.found.Root, p.found.State
	if o.Spec != nil {
		for _, mount := range o.Spec.Mounts {
			if dir, ok := strings.CutSuffix(mount.Source, "/sandboxes/"+o.ID+"/resolv.conf"); ok {
				root = dir
			}
			if dir, ok := strings.CutSuffix(mount.Source, "/sandboxes/"+o.ID+"/shm"); ok {
				volatile = dir
			}
		}
	}
	own, shm := filepath.Join(root, "sandboxes", o.ID), filepath.Join(volatile, "sandboxes", o.ID)
	a := &state.Adopted{
		Dirs:  []string{own, shm, filepath.Join(volatile, "image-volumes", o.ID)},
		Lease: o.ID,
		Shared: state.SharedFiles{
			Hosts:      filepath.Join(own, "hosts"),
			Hostname:   filepath.Join(own, "hostname"),
			ResolvConf: filepath.Join(own, "resolv.conf"),
			Shm:        filepath.Join(shm, "shm"),
		},
	}
	if m.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetIpc() == runtimeapi.NamespaceMode_NODE {
		a.Shared.Shm = "/dev/shm"
	}
	if o.SnapshotKey != "" {
		a.Snapshots = append(a.Snapshots, state.Snapshot{Snapshotter: o.Snapshotter, Key: o.SnapshotKey})
	}
	for _, dir := range p.found.ImageVolumes[o.ID] {
		a.Snapshots = append(a.Snapshots, state.Snapshot{Snapshotter: o.Snapshotter, Key: dir})
	}
	return a
}

// container plans a container.
func (p *planner) container(o Object) {
	m, err := readMetadata[containerMetadata](o.Metadata)
	switch {
	case len(o.Metadata) == 0:
		if o.Owner == "" {
			p.plan.Left = append(p.plan.Left, Remark{o.ID, "it has the label of a container of the plug-in, and nothing that the plug-in keeps of one"})
		}
		return
	case !p.mine(o, m.SandboxID):
		return
	case err != nil:
		p.refuse(m.SandboxID, o.ID, "%v", err)
		return
	case m.Config.GetMetadata() == nil:
		p.refuse(m.SandboxID, o.ID, "the plug-in's metadata names no container")
		return
	}
	name := m.Config.GetMetadata().GetName()
	i, ok := p.pods[m.SandboxID]
	switch {
	case !ok:
		if !slices.ContainsFunc(p.plan.Refused, func(r Remark) bool { return r.ID == m.SandboxID }) {
			p.refuse(m.SandboxID, o.ID, "container %s: its pod %s is not there", name, m.SandboxID)
		}
		return
	case o.Unasked != "":
		p.silent(m.SandboxID, o.ID, "container "+name, o.Unasked)
		return
	case o.Task != nil && strings.Contains(o.Task.Stdout, "://"):
		p.refuse(m.SandboxID, o.ID, "container %s: its output goes to %s, and berth goes on with FIFOs alone", name, o.Task.Stdout)
		return
	case o.SnapshotKey != o.ID:
		p.refuse(m.SandboxID, o.ID, "container %s: its writable layer is called %q, and not by its ID", name, o.SnapshotKey)
		return
	}
	pod := &p.plan.Pods[i]
	root, volatile := filepath.Dir(filepath.Dir(pod.Sandbox.Adopted.Dirs[0])), filepath.Dir(filepath.Dir(pod.Sandbox.Adopted.Dirs[1]))
	ct := Container{
		ID:   o.ID,
		Name: name,
		Container: state.Container{
			ID:          o.ID,
			PodID:       m.SandboxID,
			Handler:     pod.Sandbox.Handler,
			ImageID:     m.ImageRef,
			ImageRef:    cmp.Or(p.found.ImageRefs[m.ImageRef], m.ImageRef),
			Snapshotter: o.Snapshotter,
			LogPath:     m.LogPath,
			StopSignal:  cmp.Or(m.StopSignal, "SIGTERM"),
			CreatedAt:   p.set.Clock.Instant(o.CreatedAt),
			Config:      m.Config,
			Adopted: &state.Adopted{
				Dirs: []string{filepath.Join(root, "containers", o.ID), filepath.Join(volatile, "containers", o.ID)},
			},
		},
		Task:  o.Task,
		Taken: o.Owner != "",
	}
	p.status(&ct, o, m)
	p.losses(&ct)
	ct.State = ct.Status.Phase
	pod.Containers = append(pod.Containers, ct)
}

// status plans the status of a container. Facts that its file lacks, such as an end, are found out
// by berth as after a start.
func (p *planner) status(ct *Container, o Object, m containerMetadata) {
	st := state.Status{
		Phase:        state.Created,
		CreatedAt:    p.set.Clock.Instant(o.CreatedAt),
		Holds:        state.HoldContainer | state.HoldSnapshot | state.HoldSandbox | state.HoldTask | state.HoldIO | state.HoldAdopted,
		SELinuxLabel: m.ProcessLabel,
		Applied:      &state.Applied{User: spec.UserOf(o.Spec), Resources: spec.ResourcesOf(o.Spec)},
	}
	if m.Config.GetLinux().GetSecurityContext().GetPrivileged() {
		st.SELinuxLabel = ""
	}
	was, err := readStatus(p.found.Statuses[o.ID])
	switch {
	case err != nil && o.Task == nil:
		st.Phase = state.Exited
		st.Exit = exit.Fact{
			ID:      o.ID,
			At:      p.set.Clock.Now(),
			Origin:  exit.Audit,
			Message: err.Error(),
		}
		ct.Lost = append(ct.Lost, "how it ended is not known: "+err.Error())
	case err != nil:
		st.Phase, st.StartedAt = state.Running, p.set.Clock.Instant(o.CreatedAt)
		ct.Lost = append(ct.Lost, "when it was started is not known: "+err.Error())
	case was.FinishedAt != 0:
		st.Phase, st.StartedAt, st.Exit = state.Exited, p.instant(was.StartedAt), p.ended(o.ID, was)
		if st.StartedAt.IsZero() {
			st.StartedAt = st.Exit.At
		}
	// before the plug-in wrote that down
	case was.StartedAt != 0 && o.Task == nil && p.set.Ends[o.ID].Measured:
		st.Phase, st.StartedAt, st.Exit = state.Exited, p.instant(was.StartedAt), p.set.Ends[o.ID]
		st.Exit.OOM = st.Exit.OOM || was.Reason == exit.ReasonOOMKilled
	case was.StartedAt != 0:
		st.Phase, st.StartedAt = state.Running, p.instant(was.StartedAt)
	}
	if was.CreatedAt != 0 {
		st.CreatedAt, ct.Container.CreatedAt = p.instant(was.CreatedAt), p.instant(was.CreatedAt)
	}
	if st.Phase == state.Running && o.Task != nil && !o.Task.Stopped {
		st.Process.Pid = o.Task.Pid // the PID of an ended process may belong to another by now
	}
	if o.Spec != nil && o.Spec.Linux != nil && filepath.IsAbs(o.Spec.Linux.CgroupsPath) && p.set.CgroupDir != nil && st.Phase == state.Running {
		// its counter of OOM kills outlives the process
		st.Process.Cgroup = p.set.CgroupDir(o.Spec.Linux.CgroupsPath)
	}
	if o.Task == nil && st.Phase != state.Running {
		st.Holds &^= state.HoldTask | state.HoldIO
	}
	if st.Phase == state.Created {
		st.Holds |= state.HoldTask | state.HoldIO // it may be started
	}
	ct.Status = st
}

// losses describes the losses of a container.
func (p *planner) losses(ct *Container) {
	switch {
	case ct.Status.Phase != state.Running:
		return
	case ct.Task == nil:
		ct.Lost = append(ct.Lost, "it has ended while containerd was away, and its exit code with it: it is reported as 255, Unknown")
		return
	}
	if ct.Container.LogPath != "" {
		ct.Lost = append(ct.Lost, "output that containerd has read but not written when it is stopped, "+unwritten+" at most, is lost, and a line in its log notes that")
	}
	if ct.Task.Stdin != "" && !p.set.Held {
		ct.Lost = append(ct.Lost, "its stdin ends with containerd, unless --switch restarts that")
	}
}

// unwritten is how much of the output of a container the plug-in may hold in memory: one read of a
// pipe, and an unfinished line.
const unwritten = "48 KiB"

// LogLine is the line in the log of a container about the change of its runtime.
const LogLine = "berth: containerd's CRI plug-in has written the log up to here, and berth goes on; up to " + unwritten +
	" of output that containerd had read and not written when it was stopped may be missing before this line"

// EndLine is the line in the log of a container that ended after berth was stopped, and before the
// container was given back.
const EndLine = "berth: the container has ended while berth was stopped, and the end of its output may be missing before this line"

// ended returns the end of a container from its file.
func (p *planner) ended(id string, was containerStatus) exit.Fact {
	at := p.instant(was.FinishedAt)
	switch was.Reason {
	case exit.ReasonStartError, "ContainerCannotRun":
		return exit.NotStarted(id, at, was.Message)
	case exit.ReasonUnknown:
		return exit.Fact{ID: id, At: at, Origin: exit.Audit, Message: cmp.Or(was.Message, "the plug-in did not know how it ended")}
	}
	return exit.Fact{
		ID:       id,
		Code:     uint32(was.ExitCode),
		Measured: true,
		At:       at,
		Origin:   exit.Task,
		OOM:      was.Reason == exit.ReasonOOMKilled,
		Message:  was.Message,
	}
}

// instant converts an instant of the plug-in; zero for an event that has not happened.
func (p *planner) instant(ns int64) clock.Instant {
	if ns == 0 {
		return clock.Instant{}
	}
	return p.set.Clock.Instant(time.Unix(0, ns))
}
