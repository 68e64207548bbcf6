// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/spec"
)

// Found is the data on a node about the pods of containerd's CRI plug-in. Its gatherer leaves the
// decoding to [MakePlan].
type Found struct {
	// Root and State are the plug-in's directories.
	Root, State string
	// Objects are containerd's container objects in the namespace k8s.io, all of them.
	Objects []Object
	// Statuses are the plug-in's files about the states of containers, by ID.
	Statuses map[string][]byte
	// Networks are CNI's cached results, by pod.
	Networks map[string][]Cached
	// ImageVolumes are the directories that images are mounted on as volumes, by pod.
	ImageVolumes map[string][]string
	// ImageRefs are the references of images in a status, by their IDs.
	ImageRefs map[string]string
	// Pinned are the paths of network namespaces that are there.
	Pinned map[string]bool
	// Shifts lists which snapshotters of the [MappedHandlers] shift the owners of files.
	Shifts map[string]bool
}

// Object is one container object of containerd.
type Object struct {
	ID   string
	Kind string // of the plug-in: "sandbox" or "container"; "" for an object of another client
	// Metadata is the plug-in's extension of the object; nil for none.
	Metadata    []byte
	Image       string
	Runtime     string // such as io.containerd.runc.v2
	Sandboxer   string // of the sandbox object with this ID; "" for none
	Snapshotter string
	SnapshotKey string
	CreatedAt   time.Time
	Spec        *specs.Spec
	Task        *Task // nil: there is none
	// Unasked is the reason why the shim of the object did not answer. It is empty if the shim did.
	Unasked string
	// Owner is the ID of the berth that has it; "" for none.
	Owner string
	// Half is set for a sandbox without a container object.
	Half bool
}

// Task is a shim's answer about a task.
type Task struct {
	Pid                   uint32
	Running               bool // or paused
	Stopped               bool // Code and ExitedAt are set
	Code                  uint32
	ExitedAt              time.Time
	Stdin, Stdout, Stderr string // FIFOs, or URIs
	Terminal              bool
}

// Cached is a file of CNI's cache of results.
type Cached struct {
	Path string
	Text []byte
}

// version is the version of all files that the plug-in writes.
const version = "v1"

// sandboxMetadata is the plug-in's metadata of a sandbox, of containerd 1.7 and 2.
type sandboxMetadata struct {
	ID             string
	Name           string
	Config         *runtimeapi.PodSandboxConfig
	NetNSPath      string
	IP             string
	AdditionalIPs  []string
	RuntimeHandler string
	ProcessLabel   string
	// CNIResult is the result of connecting the pod. The plug-in does not disconnect a pod without it.
	CNIResult json.RawMessage
}

// containerMetadata is the plug-in's metadata of a container. ImageDigest and ImageName are of
// containerd 2.4 and newer.
type containerMetadata struct {
	ID           string
	Name         string
	SandboxID    string
	Config       *runtimeapi.ContainerConfig
	ImageRef     string
	ImageDigest  string
	ImageName    string
	LogPath      string
	StopSignal   string
	ProcessLabel string
}

// containerStatus is the plug-in's file about the state of a container. Its instants are in
// nanoseconds since 1970, and 0 for events that have not happened.
type containerStatus struct {
	Version    string
	Pid        uint32
	CreatedAt  int64
	StartedAt  int64
	FinishedAt int64
	ExitCode   int32
	Reason     string
	Message    string
	Resources  *runtimeapi.ContainerResources
}

// readMetadata decodes the plug-in's extension of an object.
func readMetadata[T any](b []byte) (T, error) {
	var m struct {
		Version  string
		Metadata T
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m.Metadata, fmt.Errorf("read the plug-in's metadata: %w", err)
	}
	if m.Version != version {
		return m.Metadata, fmt.Errorf("the plug-in's metadata has version %q, and this berth reads %q", m.Version, version)
	}
	return m.Metadata, nil
}

// readStatus reads a file about the state of a container.
func readStatus(b []byte) (s containerStatus, err error) {
	if len(b) == 0 {
		return s, fmt.Errorf("the plug-in's status file is absent")
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("read the plug-in's status file: %w", err)
	}
	if s.Version != version {
		return s, fmt.Errorf("the plug-in's status file has version %q, and this berth reads %q", s.Version, version)
	}
	return s, nil
}

// MappedHandlers lists the runtime handlers of the plug-in's pods that have a user namespace of
// their own; "" is the default one.
func MappedHandlers(f Found) (names []string) {
	for _, o := range f.Objects {
		m, err := readMetadata[sandboxMetadata](o.Metadata)
		if _, mapped := spec.UserNamespace(m.Config); err == nil && o.Kind == spec.KindSandbox && mapped && !slices.Contains(names, m.RuntimeHandler) {
			names = append(names, m.RuntimeHandler)
		}
	}
	return names
}

// cachedResult is a file of CNI's cache.
type cachedResult struct {
	Kind        string          `json:"kind"`
	ContainerID string          `json:"containerId"`
	Config      []byte          `json:"config"`
	IfName      string          `json:"ifName"`
	NetworkName string          `json:"networkName"`
	Result      json.RawMessage `json:"result"`
}

// addresses returns the addresses of an interface in a result of CNI's.
func addresses(result []byte, ifName string) (ips []string, err error) {
	var r struct {
		Interfaces []struct{ Name string }
		IPs        []struct {
			Address   string
			Interface *int // an index, or nothing
		}
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return nil, err
	}
	for _, ip := range r.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(r.Interfaces) && r.Interfaces[*i].Name != ifName {
			continue
		}
		prefix, err := netip.ParsePrefix(ip.Address)
		if err != nil {
			return nil, err
		}
		ips = append(ips, prefix.Addr().String())
	}
	return ips, nil
}

// NetworkNamespaces lists the paths of the network namespaces of the plug-in's pods, pinned or not.
func NetworkNamespaces(f Found) (paths []string) {
	for _, o := range f.Objects {
		if m, err := readMetadata[sandboxMetadata](o.Metadata); err == nil && o.Kind == spec.KindSandbox && m.NetNSPath != "" {
			paths = append(paths, m.NetNSPath)
		}
	}
	return paths
}
