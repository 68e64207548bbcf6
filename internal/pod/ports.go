// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/logs"
	"berth/internal/network"
	"berth/internal/state"
)

// Handler is one configured runtime handler.
type Handler struct {
	Name string
	// Type is containerd's runtime: a name such as io.containerd.runc.v2, or the path of a shim.
	Type string
	// Binary is the OCI runtime's path; "" for the shim's default. Root is where it keeps its
	// state; "" for its default.
	Binary, Root  string
	SystemdCgroup bool
	// Sandboxer is the sandbox controller of containerd's that makes the pods' sandboxes; "" for the built-in one.
	Sandboxer string
	// HostProcess says that a container's init is a process of this host, so that the kernel
	// can speak for it. False for VM runtimes.
	HostProcess bool
	// Logger is the path of berth-logger where the runtime's shim starts it to keep a container's
	// output while berth is away; "" for shims that copy the output into FIFOs.
	Logger                       string
	PrivilegedWithoutHostDevices bool
	PodAnnotations               []string
	ContainerAnnotations         []string
}

// Object is a container object to be made in containerd.
type Object struct {
	ID        string
	SandboxID string // "" for a sandbox itself
	Image     string
	Handler   Handler
	Spec      *specs.Spec
	// Snapshotter and SnapshotKey name the writable layer; empty for the built-in pause.
	Snapshotter, SnapshotKey string
	Labels                   map[string]string
}

// TaskIO are the paths of FIFOs, or logging URIs, of a task; empty for none.
type TaskIO struct {
	Stdin, Stdout, Stderr string
	Terminal              bool
}

// TaskState is what containerd knows of a task.
type TaskState struct {
	Pid      uint32
	Running  bool // created, running or paused: its process lives
	Stopped  bool // ended; Code and ExitedAt are the shim's
	Code     uint32
	ExitedAt time.Time
}

// Runtime is containerd, as far as pods need it. Errors wrap errdefs' sentinels: ErrNotFound for what
// is absent, ErrUnavailable when containerd cannot be reached. Every Delete of what is absent
// is ErrNotFound and harmless.
type Runtime interface {
	// CreateSandbox makes a sandbox object: a pod's, or a container's of the same ID, which keeps an ended task
	// from being cleaned away by a containerd that starts.
	CreateSandbox(ctx context.Context, id string, h Handler) error
	DeleteSandbox(ctx context.Context, id string) error
	CreateContainer(ctx context.Context, o Object) error
	DeleteContainer(ctx context.Context, id string) error
	// PrepareSnapshot makes a writable layer on the image's chain, safe from containerd's
	// garbage collection until it is deleted.
	PrepareSnapshot(ctx context.Context, snapshotter, key, chainID string) error
	DeleteSnapshot(ctx context.Context, snapshotter, key string) error

	// CreateTask makes the task and its process, not yet running the user's program.
	CreateTask(ctx context.Context, o TaskRequest) (pid uint32, err error)
	StartTask(ctx context.Context, id string) error
	KillTask(ctx context.Context, id string, sig unix.Signal) error
	// DeleteTask removes the task and makes sure that nothing of it is left: neither in
	// containerd's task list nor as a shim.
	DeleteTask(ctx context.Context, id string) error
	TaskState(ctx context.Context, id string) (TaskState, error)
	// WaitTask returns when the task's process ended, with the shim's word.
	WaitTask(ctx context.Context, id string) (TaskState, error)

	// Inventory lists what containerd has of ours.
	Inventory(ctx context.Context) (Inventory, error)
	// TaskMetrics is the shim's account of a task.
	TaskMetrics(ctx context.Context, id string) (Metric, error)
	// Sandboxer is a sandbox controller of containerd's.
	Sandboxer(name string) Sandboxer

	// Spec is the OCI spec of a container object, for verbose status.
	Spec(ctx context.Context, id string) (*specs.Spec, error)
}

// TaskRequest asks for a task.
type TaskRequest struct {
	ID                       string
	Endpoint                 state.Endpoint // of the sandbox; zero: the sandbox's shim, or one of its own
	IO                       TaskIO
	Snapshotter, SnapshotKey string // of the root filesystem; empty when the spec names a directory
}

// Inventory is everything of ours that containerd has, by ID.
type Inventory struct {
	Containers map[string]map[string]string // labels by container ID
	Tasks      map[string]TaskState
	Unknown    map[string]bool // there may be a task, its shim does not say
	Sandboxes  map[string]bool
	Snapshots  map[string]string // snapshotter by key, of those that berth made
	Orphans    map[string]bool   // tasks of which there is no container, by whomever they were made
}

// Kernel is the kernel witness.
type Kernel interface {
	// Watch identifies and watches a process; ErrNotFound when it is gone.
	Watch(id string, p state.Process) (state.Process, error)
	Forget(id string)
	// Signal is ErrNotFound when the process is not watched or gone.
	Signal(id string, sig unix.Signal) error
	Look(id string) (alive, watched bool)
	Exact() bool
}

// Cgroups reads and ends control groups.
type Cgroups interface {
	Of(pid uint32) (string, error)
	OOMKills(dir string) (uint64, error)
	KillAll(ctx context.Context, dir string) error
}

// Network plumbs sandboxes.
type Network interface {
	PathFor(podID string) string
	CreateNS(ctx context.Context, path string) error
	RemoveNS(ctx context.Context, path string) error
	Setup(ctx context.Context, p network.Pod) (network.Result, error)
	Teardown(ctx context.Context, p network.Pod, recorded network.Result) error
	// Pinned lists the pods that have a namespace.
	Pinned(ctx context.Context) (podIDs []string, err error)
	Status() error
}

// Stdio is one container's stdin, stdout and stderr.
type Stdio interface {
	FIFOs() (stdin, stdout, stderr string)
	// Started says that the shim holds its ends now, or never will. With an error, a container that
	// is started would lose its output.
	Started() error
	Run(ctx context.Context) error
	// Drained is closed when the output has ended and is logged. Drain waits for what a container
	// wrote before its processes ended; Flush for what is there now.
	Drained() <-chan struct{}
	Drain(ctx context.Context) error
	Flush(ctx context.Context) error
	Reopen(ctx context.Context) error
	Close() error
	Remove() error
}

// Stdios makes them.
type Stdios interface {
	Create(o logs.Options) (Stdio, error)
	Open(o logs.Options) (Stdio, error)
}

// Image is what a container needs of an image.
type Image struct {
	ID          string // config digest
	Ref         string // repo digest where there is one, else ID
	ChainID     string
	Snapshotter string
	Config      ocispec.ImageConfig
}

// Images resolves images.
type Images interface {
	// Resolve finds an image that is on this node; ErrNotFound names the reference.
	Resolve(ref string) (Image, error)
	// Files returns the image's /etc/passwd and /etc/group.
	Files(ctx context.Context, img Image) (passwd, group []byte, err error)
	// CopyOut copies what the image has under path into dir, ownership and modes kept. A path that the
	// image does not have leaves dir empty.
	CopyOut(ctx context.Context, img Image, path, dir string) error
}

// Store commits records.
type Store interface {
	Commit(changes ...state.Change) error
}

// Feed tells subscribers.
type Feed interface {
	// Stamp is the next instant for an event of a pod, taken before the snapshot it comes with.
	Stamp(podID string, now time.Time) int64
	// Instant is for an answer whose snapshot is taken after the call: not below any stamp so far.
	Instant(now time.Time) int64
	Publish(ev *runtimeapi.ContainerEventResponse)
	Forget(podID string)
}

// Events by which others know where a unit stands.
const (
	EventReleased = "released" // with the names of what was given back
	EventRemoved  = "removed"
)

// Observer hears what happens, for logs, metrics and timelines. Its methods must not block.
type Observer interface {
	// Event is one thing that happened to id. err may be nil.
	Event(id, what string, err error, fields ...any)
	// Repaired tells of something that nobody had told, and the audit found.
	Repaired(what string)
	// Settled tells of a settled exit: the lag is from the process's end to its being durable.
	Settled(id, origin string, lag time.Duration)
}
