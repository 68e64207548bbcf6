// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/exit"
	"berth/internal/pidfd"
)

// Phase is where the life of a sandbox or container stands.
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

// Ended reports whether the phase is final: its exit is settled.
func (p Phase) Ended() bool { return p == Exited || p == NotReady }

// Hold is a set of things that an object holds outside berth, committed before they are
// made and struck off after they were given back. A hold says "may exist": giving back
// what is absent succeeds.
type Hold uint16

const (
	HoldTask      Hold = 1 << iota // the task, its process and its shim's record
	HoldIO                         // stdio: FIFOs, spool and the pump
	HoldContainer                  // the container object in containerd
	HoldSnapshot                   // the writable snapshot
	HoldSandbox                    // the sandbox object in containerd's sandbox store
	HoldNetwork                    // CNI's allocation
	HoldNetNS                      // the pinned network namespace
	HoldFiles                      // directories and mounts of berth's own (shm, resolv.conf, volumes)
)

var holdNames = []string{"task", "io", "container", "snapshot", "sandbox", "network", "netns", "files"}

// Has reports whether all of x is held.
func (h Hold) Has(x Hold) bool { return h&x == x && x != 0 }

// Names lists what is held, in the order of release.
func (h Hold) Names() []string {
	var names []string
	for i, n := range holdNames {
		if h&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return names
}

func (h Hold) String() string { return strings.Join(h.Names(), ",") }

// MarshalJSON writes the names, so that a record reads without this file.
func (h Hold) MarshalJSON() ([]byte, error) { return json.Marshal(h.Names()) }

// UnmarshalJSON reads the names; an unknown one is an error, since what it names could
// not be given back.
func (h *Hold) UnmarshalJSON(b []byte) error {
	var names []string
	if err := json.Unmarshal(b, &names); err != nil {
		return err
	}
	*h = 0
next:
	for _, n := range names {
		for i, known := range holdNames {
			if n == known {
				*h |= 1 << i
				continue next
			}
		}
		return fmt.Errorf("read hold: %q is not known to this berth", n)
	}
	return nil
}

// Process is the init process of a container or pod sandbox, as a record names it.
type Process struct {
	pidfd.Process
	// Cgroup is the directory of the process's group: the memory controller's on cgroup v1, the
	// unified hierarchy's on v2. Empty means that it is not known.
	Cgroup string `json:"cgroup,omitempty"`
}

// Endpoint is a task service: an address such as ttrpc+unix:///path, and the version of its protocol.
type Endpoint struct {
	Address string `json:"address"`
	Version uint32 `json:"version"`
}

// Network is what CNI gave a sandbox.
type Network struct {
	IPs []string `json:"ips,omitempty"` // primary first
	// Result and Conf are CNI's result and the configuration list used, for DEL.
	Result json.RawMessage `json:"result,omitempty"`
	Conf   json.RawMessage `json:"conf,omitempty"`
}

// Status is the part of a record that changes. Values are replaced whole, never edited in
// place: a reader may keep one.
type Status struct {
	Phase     Phase     `json:"phase"`
	CreatedAt time.Time `json:"createdAt,omitzero"`
	StartedAt time.Time `json:"startedAt,omitzero"`
	Process   Process   `json:"process,omitzero"`
	// Exit is the settled exit; zero while the process lives.
	Exit exit.Fact `json:"exit,omitzero"`
	// Holds is what is still to be given back.
	Holds Hold `json:"holds"`
	// Stopping says that a stop was asked for; Removing that a removal was: after a crash
	// it goes on.
	Stopping bool `json:"stopping,omitempty"`
	Removing bool `json:"removing,omitempty"`
	// Undone says why a creation was given up, if it was.
	Undone string `json:"undone,omitempty"`
	// Network is the sandbox's; nil for containers and host networking.
	Network *Network `json:"network,omitempty"`
	// Endpoint is where a sandbox's tasks are reached, if it is not the shim that containerd knows.
	Endpoint Endpoint `json:"endpoint,omitzero"`
}

// Container is what was asked for: written once, before anything is made.
type Container struct {
	ID          string                      `json:"id"`
	PodID       string                      `json:"podID"`
	Handler     string                      `json:"handler"`
	ImageID     string                      `json:"imageID"`
	ImageRef    string                      `json:"imageRef"` // repo digest or ID, as CRI's image_ref
	Snapshotter string                      `json:"snapshotter"`
	LogPath     string                      `json:"logPath,omitempty"`
	StopSignal  string                      `json:"stopSignal,omitempty"` // e.g. SIGTERM
	CreatedAt   time.Time                   `json:"createdAt"`
	Config      *runtimeapi.ContainerConfig `json:"-"`
	Raw         []byte                      `json:"config"` // Config as protobuf
}

// Sandbox is what was asked for: written once, before anything is made.
type Sandbox struct {
	ID      string `json:"id"`
	Handler string `json:"handler"`
	// RuntimeHandler is the handler as it was asked for; "" for the default.
	RuntimeHandler string `json:"runtimeHandler,omitempty"`
	NetNS   string `json:"netns,omitempty"` // "" for host networking
	// Sandboxer is containerd's that made it; "" for the built-in one.
	Sandboxer string                       `json:"sandboxer,omitempty"`
	CreatedAt time.Time                    `json:"createdAt"`
	Config    *runtimeapi.PodSandboxConfig `json:"-"`
	Raw       []byte                       `json:"config"` // Config as protobuf
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

func decodeContainer(b []byte) (Container, error) {
	var c Container
	if err := json.Unmarshal(b, &c); err != nil {
		return c, err
	}
	c.Config = &runtimeapi.ContainerConfig{}
	err := proto.Unmarshal(c.Raw, c.Config)
	c.Raw = nil
	return c, err
}

func decodeSandbox(b []byte) (Sandbox, error) {
	var s Sandbox
	if err := json.Unmarshal(b, &s); err != nil {
		return s, err
	}
	s.Config = &runtimeapi.PodSandboxConfig{}
	err := proto.Unmarshal(s.Raw, s.Config)
	s.Raw = nil
	return s, err
}
