// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/clock"
	"berth/internal/heart/state"
)

// statuses builds CRI's messages about units from the last durable status of each. It reads memory
// alone. Its results share immutable parts (metadata, labels, annotations, mounts) with the record,
// and must not be changed.
type statuses struct {
	images Images
	clock  *clock.Clock
}

func sandboxState(st *state.Status) runtimeapi.PodSandboxState {
	if st.Phase == state.Ready && !st.Stopping {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func containerState(st *state.Status) runtimeapi.ContainerState {
	switch st.Phase {
	case state.Creating, state.Created:
		return runtimeapi.ContainerState_CONTAINER_CREATED
	case state.Running:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	case state.Exited:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	default:
		return runtimeapi.ContainerState_CONTAINER_UNKNOWN
	}
}

func (s *statuses) sandbox(u *unit) *runtimeapi.PodSandboxStatus {
	st, cfg := u.now(), u.sandbox.Config
	out := &runtimeapi.PodSandboxStatus{
		Id:             u.id,
		Metadata:       cfg.GetMetadata(),
		State:          sandboxState(st),
		CreatedAt:      criTime(s.clock, u.createdAt),
		Labels:         cfg.GetLabels(),
		Annotations:    cfg.GetAnnotations(),
		RuntimeHandler: u.sandbox.RuntimeHandler,
		Network:        &runtimeapi.PodSandboxNetworkStatus{},
		Linux:          &runtimeapi.LinuxPodSandboxStatus{Namespaces: namespacesOf(u)},
	}
	if st.Network != nil && len(st.Network.IPs) > 0 && st.Holds.Has(state.HoldNetwork) {
		out.Network.Ip = st.Network.IPs[0]
		for _, ip := range st.Network.IPs[1:] {
			out.Network.AdditionalIps = append(out.Network.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
		}
	}
	return out
}

// sandboxItem returns the same message for as long as the status of u is the same, and the
// clock is not set.
func (s *statuses) sandboxItem(u *unit) *runtimeapi.PodSandbox {
	st, version := u.now(), s.clock.Version()
	if item := u.item.Load(); item != nil && item.status == st && item.clock == version {
		return item.sandbox
	}
	item := sandboxItem(s.sandbox(u))
	u.item.Store(&listItem{status: st, clock: version, sandbox: item})
	return item
}

// sandboxItem returns the item of a list for the sandbox with a status.
func sandboxItem(st *runtimeapi.PodSandboxStatus) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{
		Id:             st.Id,
		Metadata:       st.Metadata,
		State:          st.State,
		CreatedAt:      st.CreatedAt,
		Labels:         st.Labels,
		Annotations:    st.Annotations,
		RuntimeHandler: st.RuntimeHandler,
	}
}

// image returns the image of a container for people: by a name that it has on the node now. The
// kubelet asks by ID, and users see this.
func (s *statuses) image(ct *state.Container) *runtimeapi.ImageSpec {
	asked := ct.Config.GetImage()
	name := s.images.Name(ct.ImageID, cmp.Or(asked.GetUserSpecifiedImage(), asked.GetImage()))
	if name == "" && ct.Checkpoint != nil {
		name = ct.Checkpoint.Image // and not the path of the archive
	}
	if name == "" || name == asked.GetImage() {
		return asked
	}
	return &runtimeapi.ImageSpec{
		Image:              name,
		UserSpecifiedImage: asked.GetUserSpecifiedImage(),
		RuntimeHandler:     asked.GetRuntimeHandler(),
		Annotations:        asked.GetAnnotations(),
		ImageRef:           asked.GetImageRef(),
	}
}

func (s *statuses) container(u *unit) *runtimeapi.ContainerStatus {
	st, ct := u.now(), u.container
	cfg := ct.Config
	out := &runtimeapi.ContainerStatus{
		Id:          u.id,
		Metadata:    cfg.GetMetadata(),
		State:       containerState(st),
		CreatedAt:   criTime(s.clock, u.createdAt),
		StartedAt:   criTime(s.clock, st.StartedAt),
		Image:       s.image(ct),
		ImageRef:    ct.ImageRef,
		ImageId:     ct.ImageID,
		Labels:      cfg.GetLabels(),
		Annotations: cfg.GetAnnotations(),
		Mounts:      withImageRefs(ct),
		LogPath:     ct.LogPath,
		StopSignal:  criSignal(ct.StopSignal),
		User:        userOf(st),
	}
	if r := effective(u, st); r != nil {
		out.Resources = &runtimeapi.ContainerResources{Linux: r}
	}
	if st.Phase == state.Running {
		out.Message = cmp.Or(s.unrecordedText(u), survivedText(st, s.clock))
	}
	if st.Phase == state.Exited {
		out.FinishedAt = criTime(s.clock, st.Exit.At)
		out.ExitCode = int32(st.Exit.ExitCode())
		out.Reason, out.Message = st.Exit.Reason(), st.Exit.Detail()
	}
	return out
}

// writtenSoon is how long the record of an end is written as usual, which no message tells of.
const writtenSoon = time.Second

// unrecordedText returns the message of a container whose process has ended, and whose end cannot
// be recorded, so that its state stays as it was; "" for any other.
func (s *statuses) unrecordedText(u *unit) string {
	known, ok := u.unrecorded()
	why := u.settleError()
	if !ok || why == nil && s.clock.Since(known.At) < writtenSoon {
		return ""
	}
	with := "a code that is not known yet"
	if known.Measured {
		with = fmt.Sprintf("code %d", known.ExitCode())
	}
	text := fmt.Sprintf("its process ended with %s at %s, which is not on record yet", with, s.clock.Wall(known.At).Format(time.RFC3339))
	if why != nil {
		text += ": " + why.Error()
	}
	return text
}

// containerItem returns the same message for as long as the status of u and the name of its image
// are the same, and the clock is not set.
func (s *statuses) containerItem(u *unit) *runtimeapi.Container {
	st, image, version := u.now(), s.image(u.container), s.clock.Version()
	if item := u.item.Load(); item != nil && item.status == st && item.clock == version && item.image.GetImage() == image.GetImage() {
		return item.container
	}
	item := containerItem(u.pod.id, s.container(u))
	u.item.Store(&listItem{status: st, clock: version, image: image, container: item})
	return item
}

// containerItem returns the item of a list for the container with a status.
func containerItem(pod string, st *runtimeapi.ContainerStatus) *runtimeapi.Container {
	return &runtimeapi.Container{
		Id:           st.Id,
		PodSandboxId: pod,
		Metadata:     st.Metadata,
		Image:        st.Image,
		ImageRef:     st.ImageRef,
		State:        st.State,
		CreatedAt:    st.CreatedAt,
		Labels:       st.Labels,
		Annotations:  st.Annotations,
		ImageId:      st.ImageId,
	}
}

// newestFirst returns the statuses of containers as the kubelet's evented PLEG needs them: of the
// containers of one name it takes the first for the current one.
func (s *statuses) newestFirst(containers []*unit) []*runtimeapi.ContainerStatus {
	out := make([]*runtimeapi.ContainerStatus, 0, len(containers))
	for _, ct := range slices.Backward(containers) {
		if ct.visible() {
			out = append(out, s.container(ct))
		}
	}
	return out
}

// criSignals maps to CRI's constants by the number of the signal.
var criSignals = func() map[unix.Signal]runtimeapi.Signal {
	m := map[unix.Signal]runtimeapi.Signal{}
	for name, v := range runtimeapi.Signal_value {
		n, err := parseSignal(name)
		if err != nil {
			continue // SIGNAL_RUNTIME_DEFAULT
		}
		if have, ok := m[n]; !ok || v < int32(have) { // some numbers have two names
			m[n] = runtimeapi.Signal(v)
		}
	}
	return m
}()

func criSignal(s string) runtimeapi.Signal {
	n, err := parseSignal(s)
	if err != nil {
		return runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT
	}
	return criSignals[n] // absent: SIGNAL_RUNTIME_DEFAULT
}

// criTime returns CRI's form of an instant: wall time in nanoseconds since the epoch, as it is
// known now; 0 for none.
func criTime(c *clock.Clock, i clock.Instant) int64 {
	if i.IsZero() {
		return 0
	}
	return max(1, c.Wall(i).UnixNano())
}

// namespacesOf returns the namespaces in the status of a sandbox. An unset option is reported as
// its default: a mode of POD, and the user namespace of the host.
func namespacesOf(u *unit) *runtimeapi.Namespace {
	asked := u.podNamespaces()
	if asked.GetUsernsOptions() != nil {
		return &runtimeapi.Namespace{Options: asked}
	}
	has := &runtimeapi.NamespaceOption{}
	if asked != nil {
		has = proto.CloneOf(asked)
	}
	has.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}
	return &runtimeapi.Namespace{Options: has}
}

// userOf returns the user in the status of a container. It is nil for a container that an earlier
// berth made, which did not record it.
func userOf(st *state.Status) *runtimeapi.ContainerUser {
	if st.Applied == nil || st.Applied.User == nil {
		return nil
	}
	return &runtimeapi.ContainerUser{Linux: st.Applied.User}
}
