// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
	"berth/internal/heart/state"
	"berth/internal/host/spec"
)

// Back is the plan for giving berth's pods back to the plug-in.
type Back struct {
	Pods []Record `json:"pods"`
	// Kept lists the pods that the plug-in cannot have, with reasons: they stay berth's. They are
	// not served while berth does not run.
	Kept []Remark `json:"kept,omitempty"`
	// Silent is how many of those are kept because their shims did not answer, which proves
	// nothing: they are asked again.
	Silent int `json:"-"`
}

// Record is a pod of berth's records.
type Record struct {
	ID         string                  `json:"id"`
	Namespace  string                  `json:"namespace"`
	Name       string                  `json:"name"`
	State      state.Phase             `json:"state"`
	Sandbox    state.SandboxRecord     `json:"-"`
	Containers []state.ContainerRecord `json:"-"`
	// Lost describes the losses of the pod, in sentences.
	Lost []string `json:"lost,omitempty"`
}

// Records groups the records by pod.
func Records(all state.Loaded) []Record {
	var out []Record
	for _, sb := range all.Sandboxes {
		r := Record{
			ID:        sb.ID,
			Namespace: sb.Config.GetMetadata().GetNamespace(),
			Name:      sb.Config.GetMetadata().GetName(),
			State:     sb.Status.Phase,
			Sandbox:   sb,
		}
		for _, ct := range all.Containers {
			if ct.PodID == sb.ID {
				r.Containers = append(r.Containers, ct)
			}
		}
		out = append(out, r)
	}
	return out
}

// MakeBack decides which pods the plug-in can have again, and gives the reasons for the others. It
// is pure.
func MakeBack(all state.Loaded, f Found) Back {
	var b Back
	objects := map[string]Object{}
	for _, o := range f.Objects {
		objects[o.ID] = o
	}
	for _, d := range all.Damaged {
		b.Kept = append(b.Kept, Remark{d.ID, fmt.Sprintf("its record is damaged: %v", d.Err)})
	}
	for _, r := range Records(all) {
		why, silent := keeps(r, objects)
		if silent {
			b.Silent++
		}
		if why != "" {
			b.Kept = append(b.Kept, Remark{r.ID, fmt.Sprintf("pod %s/%s: %s", r.Namespace, r.Name, why)})
			continue
		}
		if forgotten(r, objects[r.ID]) {
			r.Lost = append(r.Lost, "the plug-in has not kept how it is connected, and leaves its address and its rules in the packet filter when it removes it; "+
				"a kubelet takes it for one that has lost its network, and makes it again")
		}
		b.Pods = append(b.Pods, r)
	}
	return b
}

// forgotten reports whether the plug-in does not know the network of a pod, once it was restarted.
// Containerd 1.7's plug-in keeps the network of a pod with a user namespace in memory alone.
func forgotten(r Record, o Object) bool {
	m, err := readMetadata[sandboxMetadata](o.Metadata)
	return err == nil && r.Sandbox.Status.Holds.Has(state.HoldNetwork) && m.NetNSPath != "" && (len(m.CNIResult) == 0 || string(m.CNIResult) == "null")
}

// keeps returns why the plug-in cannot have a pod; "" if it can. It is silent if a shim did not
// answer, and nothing else is known.
func keeps(r Record, objects map[string]Object) (why string, silent bool) {
	switch {
	case r.Sandbox.Adopted == nil && r.Sandbox.Pinned:
		return "berth has made it, without a pause process, and the plug-in knows no such pods; stop and remove it", false
	case r.Sandbox.Adopted == nil:
		return "berth has made it, and the plug-in has nothing of it; stop and remove it", false
	case r.Sandbox.Status.Removing:
		return "it is being removed; let berth serve until it is gone", false
	}
	if o, ok := objects[r.ID]; !ok || o.Half {
		return "containerd has no pause container of it any more" + withoutSandbox(r, objects), false
	}
	for _, ct := range r.Containers {
		name := ct.Config.GetMetadata().GetName()
		o, ok := objects[ct.ID]
		switch {
		case ct.Adopted == nil:
			return fmt.Sprintf("berth has made its container %s (%s), and the plug-in has nothing of it; remove the container", name, ct.ID), false
		case ct.Status.Removing:
			return fmt.Sprintf("its container %s is being removed; let berth serve until it is gone", name), false
		case !ok && unsettled(r):
			return fmt.Sprintf("containerd has no container %s (%s) any more, and berth does not serve a pod that is %s; run `berth adopt`, which goes on without the container",
				name, ct.ID, Whose(r.Sandbox.Status.Owner)), false
		case !ok:
			return fmt.Sprintf("containerd has no container %s (%s) any more; let berth serve, and remove it", name, ct.ID), false
		case o.Unasked != "" && !silent:
			why, silent = fmt.Sprintf("the shim of its container %s does not answer: %s", name, o.Unasked), true
		case o.Task != nil && strings.Contains(o.Task.Stdout, "://"):
			return fmt.Sprintf("berth has started its container %s, whose output the plug-in cannot read; stop it", name), false
		}
	}
	return why, silent
}

// withoutSandbox gives the remedy for a pod of which containerd has no sandbox.
func withoutSandbox(r Record, objects map[string]Object) string {
	if !unsettled(r) {
		return "; let berth serve, and remove the pod"
	}
	var left []string
	for _, ct := range r.Containers {
		if _, ok := objects[ct.ID]; ok {
			left = append(left, ct.ID)
		}
	}
	remove := ""
	if len(left) > 0 {
		ids := strings.Join(left, " ")
		remove = fmt.Sprintf("remove its remains (ctr -n k8s.io tasks rm -f %s; ctr -n k8s.io containers rm %s), and ", ids, ids)
	}
	return fmt.Sprintf(", and berth does not serve a pod that is %s; %srun `berth adopt`, which forgets the pod", Whose(r.Sandbox.Status.Owner), remove)
}

// SandboxName returns the plug-in's name for a sandbox.
func SandboxName(c *runtimeapi.PodSandboxConfig) string {
	m := c.GetMetadata()
	return strings.Join([]string{m.GetName(), m.GetNamespace(), m.GetUid(), strconv.FormatUint(uint64(m.GetAttempt()), 10)}, "_")
}

// StatusFile returns the plug-in's file about the state of a container that has been berth's. was
// is the current file; its fields that berth does not know stay.
func StatusFile(was []byte, ct state.ContainerRecord, o Object, c *clock.Clock) ([]byte, error) {
	fields := map[string]any{}
	if len(was) > 0 {
		if _, err := readStatus(was); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(was, &fields); err != nil {
			return nil, fmt.Errorf("read the plug-in's status file: %w", err)
		}
	}
	st := ct.Status
	fields["Version"] = version
	fields["CreatedAt"] = nanoseconds(c, st.CreatedAt)
	fields["StartedAt"] = nanoseconds(c, st.StartedAt)
	switch st.Phase {
	case state.Running:
		fields["Pid"], fields["FinishedAt"] = st.Process.Pid, int64(0)
	case state.Exited:
		fields["Pid"], fields["FinishedAt"] = 0, nanoseconds(c, st.Exit.At)
		fields["ExitCode"], fields["Message"] = st.Exit.ExitCode(), st.Exit.Detail()
		fields["Reason"] = ""
		// the plug-in derives these
		if r := st.Exit.Reason(); r != exit.ReasonCompleted && r != exit.ReasonError {
			fields["Reason"] = r
		}
	default:
		fields["StartedAt"] = int64(0)
	}
	if st.Resources != nil && o.Spec != nil {
		fields["Resources"] = &runtimeapi.ContainerResources{Linux: spec.ResourcesOf(o.Spec)}
	}
	return json.Marshal(fields)
}

// StatusPath returns where the plug-in has the file about the state of an adopted container.
func StatusPath(a *state.Adopted) string { return filepath.Join(a.Dirs[0], "status") }

// Unsettled returns the pods that are neither the plug-in's nor berth's.
func Unsettled(all state.Loaded) []Record {
	return slices.DeleteFunc(Records(all), func(r Record) bool { return !unsettled(r) })
}

func unsettled(r Record) bool {
	o := r.Sandbox.Status.Owner
	return o == state.OwnerTaking || o == state.OwnerGiving
}

// nanoseconds writes an instant as the plug-in does; 0 for none.
func nanoseconds(c *clock.Clock, i clock.Instant) int64 {
	if i.IsZero() {
		return 0
	}
	return c.Wall(i).UnixNano()
}
