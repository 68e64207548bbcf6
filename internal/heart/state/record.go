// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
	"berth/internal/host/pidfd"
)

// Phase is how far the life of a sandbox or container has come.
//
//	container   CREATING ──▶ CREATED ──▶ RUNNING ──▶ EXITED ──▶ (deleted)
//	                 │           └──────────────────────▲
//	                 └─────────────── undone ───────────┘
//	sandbox     CREATING ──▶ READY ──▶ NOTREADY ──▶ (deleted)
//	                 └─────────────────────▲
type Phase string

const (
	Creating Phase = "CREATING"
	Created  Phase = "CREATED"
	Running  Phase = "RUNNING"
	Exited   Phase = "EXITED"
	Ready    Phase = "READY"
	NotReady Phase = "NOTREADY"
)

// Ended reports whether the phase is final: the exit is settled.
func (p Phase) Ended() bool { return p == Exited || p == NotReady }

// Process is the init process of a container or pod sandbox, as a record names it.
type Process struct {
	pidfd.Process
	// Cgroup is the directory of the process's group: the memory controller's on cgroup v1, the
	// unified hierarchy's on v2. Empty means that it is not known.
	Cgroup string `json:"cgroup,omitempty"`
	// PodOOMKills is how often the OOM killer had fired in the pod's group, the parent of the
	// container's, before the process ran, other than in containers that the pod had then. It is
	// known only if PodOOMKillsKnown is set.
	PodOOMKills      uint64 `json:"podOOMKills,omitempty"`
	PodOOMKillsKnown bool   `json:"podOOMKillsKnown,omitempty"`
}

// Endpoint is where a task service is reached: an address such as ttrpc+unix:///path, and the
// version of its protocol.
type Endpoint struct {
	Address string `json:"address"`
	Version uint32 `json:"version"`
}

// Network is CNI's result for a sandbox.
type Network struct {
	IPs []string `json:"ips,omitempty"` // primary first
	// Result is CNI's result, and Conf the configuration list that was used: DEL needs both.
	Result json.RawMessage `json:"result,omitempty"`
	Conf   json.RawMessage `json:"conf,omitempty"`
	// Firewall is the one that holds the rules of the pod; "" if that is not known.
	Firewall string `json:"firewall,omitempty"`
}

// Status is the part of a record that changes. A value is replaced as a whole and never changed, so
// a reader may keep one.
type Status struct {
	Phase     Phase         `json:"phase"`
	CreatedAt clock.Instant `json:"createdAt,omitzero"`
	StartedAt clock.Instant `json:"startedAt,omitzero"`
	Process   Process       `json:"process,omitzero"`
	// Exit is the settled exit. It is zero while the process lives.
	Exit exit.Fact `json:"exit,omitzero"`
	// Holds lists the objects that are still to be released.
	Holds Hold `json:"holds"`
	// Stopping is set if a stop of the sandbox was requested: it takes no more containers, and its
	// network is released once its process has ended. Its processes are ended without the call, too.
	Stopping bool `json:"stopping,omitempty"`
	// Stop is the stop of a container that runs. It is nil if none was requested, and once the
	// container has ended.
	Stop *Stop `json:"stop,omitempty"`
	// Removing is set if a removal was requested: everything is released once the process has
	// ended, and then the record is deleted. That goes on by itself, through a crash too.
	Removing bool `json:"removing,omitempty"`
	// SELinuxLabel is the label of the process, which stays allocated until the removal.
	SELinuxLabel string `json:"selinuxLabel,omitempty"`
	// Undone is the reason why a creation was given up. It is empty if none was.
	Undone string `json:"undone,omitempty"`
	// Network is CNI's result for a sandbox. It is nil for containers and for sandboxes in the
	// host's network.
	Network *Network `json:"network,omitempty"`
	// Endpoint is where the tasks of a sandbox are reached, if that is not the shim that containerd
	// knows.
	Endpoint Endpoint `json:"endpoint,omitzero"`
	// Applied holds the values a container was made with. It is nil for sandboxes, for containers
	// that are being made, and in records of an earlier berth.
	Applied *Applied `json:"applied,omitempty"`
	// Resources holds the changes of a container's resources by updates. It is nil if there was none.
	Resources *Resources `json:"resources,omitempty"`
	// PodResources holds the resources of a sandbox from an update. It is nil if there was none.
	PodResources *PodResources `json:"podResources,omitempty"`
	// Owner tells which program owns an adopted sandbox and its containers. It is empty for
	// sandboxes that berth made.
	Owner Owner `json:"owner,omitempty"`
	// OOMKills is how often the OOM killer is known to have fired in the cgroup of a container, and
	// OOMKilledAt when that was seen last. A container that runs has survived that.
	OOMKills    uint64        `json:"oomKills,omitempty"`
	OOMKilledAt clock.Instant `json:"oomKilledAt,omitzero"`
	// Start is how far the start of a container has come. On disk its fields are the status's own.
	Start
}

// Stop is a stop of a container that was requested. It is on record before the stop signal is sent,
// and goes on without the call that asked for it, through a crash too. A berth that is older than
// it ignores it: there the client repeats the request.
type Stop struct {
	At    clock.Instant `json:"at"`            // of the request
	Until clock.Instant `json:"until"`         // when SIGKILL follows
	Sent  clock.Instant `json:"sent,omitzero"` // when the stop signal was; zero: perhaps not
}

// Start holds the progress of a CREATED container's start, besides Process, so that the next berth
// knows how to treat a start that was cut off. The zero value means nothing is known.
//
// On disk its fields keep the names that they had before they were one type, so a record is the
// same in both directions: after a downgrade, the older berth finishes a start that a newer one
// began. A berth that is older than the fields treats a process that was ended while its start was
// taken back as one that ended by itself, with code 137, and does not look for the remains of a
// restore.
type Start struct {
	// Restoring is the cgroup, as the OCI specification names it, of a container that the shim was
	// asked to restore from a checkpoint: there may be processes in it, or there may have been,
	// that the record does not name. It is empty once Process is known. It outlives the start: the
	// release of an EXITED container looks there, too.
	Restoring string `json:"restoring,omitempty"`
	// TakingBack is set while a start that was cut off, or failed, before the program ran is being
	// taken back: berth itself ended the process by SIGKILL, and that is not an exit of the container.
	TakingBack bool `json:"undoing,omitempty"`
}

// Container is the request for a container. It is written once, before anything is made.
type Container struct {
	ID      string `json:"id"`
	PodID   string `json:"podID"`
	Handler string `json:"handler"`
	ImageID string `json:"imageID"`
	// CRI's image_ref: a repository digest or an ID
	ImageRef    string                      `json:"imageRef"`
	Snapshotter string                      `json:"snapshotter"`
	LogPath     string                      `json:"logPath,omitempty"`
	StopSignal  string                      `json:"stopSignal,omitempty"` // SIGTERM, for example
	CreatedAt   clock.Instant               `json:"createdAt"`
	Config      *runtimeapi.ContainerConfig `json:"-"`
	Raw         []byte                      `json:"config"` // Config on disk, as protobuf
	// ImageVolumes are the images that the container mounts, in the order of its mounts.
	ImageVolumes []ImageVolume `json:"imageVolumes,omitempty"`
	// Checkpoint is the source of a container that is restored. It is nil for one that starts anew.
	Checkpoint *Checkpoint `json:"checkpoint,omitempty"`
	// Adopted lists the container's objects from containerd's CRI plug-in. It is nil for one that
	// berth has made.
	Adopted *Adopted `json:"adopted,omitempty"`
}

// Checkpoint is the source of a container that is restored. The archive is unpacked when the
// container is made, and not needed afterwards.
type Checkpoint struct {
	Archive string `json:"archive"`
	Image   string `json:"image"` // the name of the image, as the checkpoint has it
}

// ImageVolume is an image that a container mounts. The record has it before the image's view and
// mount are made.
type ImageVolume struct {
	Mount       int    `json:"mount"` // index in the container's mounts
	ImageID     string `json:"imageID"`
	ChainID     string `json:"chainID"`
	Snapshotter string `json:"snapshotter"`
}

// Sandbox is the request for a sandbox. It is written once, before anything is made.
type Sandbox struct {
	ID      string `json:"id"`
	Handler string `json:"handler"`
	// RuntimeHandler is the handler as it was asked for. It is empty for the default.
	RuntimeHandler string `json:"runtimeHandler,omitempty"`
	NetNS          string `json:"netns,omitempty"` // empty for the host's network
	// Sandboxer is the sandbox controller of containerd that makes it. It is empty for berth's own.
	Sandboxer string                       `json:"sandboxer,omitempty"`
	CreatedAt clock.Instant                `json:"createdAt"`
	Config    *runtimeapi.PodSandboxConfig `json:"-"`
	Raw       []byte                       `json:"config"` // Config on disk, as protobuf
	// Image is the image that the pause process comes from. It is nil for the built-in program.
	Image *SandboxImage `json:"image,omitempty"`
	// Pinned is set if no process holds the sandbox's namespaces: they are pinned as files.
	Pinned bool `json:"pinned,omitempty"`
	// Adopted lists the pod's objects from containerd's CRI plug-in. It is nil for one that berth
	// has made.
	Adopted *Adopted `json:"adopted,omitempty"`
	// ShimGroup is the group of sandboxes that share a shim. It is empty if the sandbox has one to
	// itself.
	ShimGroup string `json:"shimGroup,omitempty"`
}

// SandboxImage is the image of a pause process. The record has it before the image is mounted.
type SandboxImage struct {
	ID          string `json:"id"`
	ChainID     string `json:"chainID"`
	Snapshotter string `json:"snapshotter"`
}

func (c Container) encode() ([]byte, error) {
	raw, err := proto.Marshal(c.Config)
	if err != nil {
		return nil, err
	}
	c.Raw = raw
	return json.Marshal(c)
}

func (s Sandbox) encode() ([]byte, error) {
	raw, err := proto.Marshal(s.Config)
	if err != nil {
		return nil, err
	}
	s.Raw = raw
	return json.Marshal(s)
}
