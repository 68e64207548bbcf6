// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/heart/state"
	"berth/internal/host/logs"
	"berth/internal/host/network"
	"berth/internal/host/pidfd"
	"berth/internal/host/pins"
	"berth/internal/host/podfiles"
	"berth/internal/host/spec"
)

// Handler is one configured runtime handler.
type Handler struct {
	Name string
	// Type is containerd's runtime: a name such as io.containerd.runc.v2, or the path of a shim.
	Type string
	// Binary is the OCI runtime's path; "" for the shim's default.
	Binary string
	// Root is where the OCI runtime keeps its state; "" for its default.
	Root          string
	SystemdCgroup bool
	// Sandboxer is the sandbox controller of containerd that makes the pods' sandboxes; "" for the
	// built-in one.
	Sandboxer string
	// HostProcess is set if a container's init is a process of this host, so that the kernel can
	// report its end. It is false for VM runtimes.
	HostProcess bool
	// Logger is the path of berth-logger where the runtime's shim starts it to keep a container's
	// output while berth is away; "" for shims that copy the output into FIFOs.
	Logger                       string
	PrivilegedWithoutHostDevices bool
	PodAnnotations               []string
	ContainerAnnotations         []string
	// Options is the type in which the shim takes its options. Binary, Root and SystemdCgroup are
	// options of runc's shim; ConfigPath and ConfigBody are generic ones.
	Options    Options
	ConfigPath string
	ConfigBody string
	// ShimPods is how many pods without a process may share a shim; less than 2: each has its own.
	ShimPods int
	// SandboxImage is the image that the pause process of a sandbox comes from; "" for the built-in
	// program. It has no effect with a Sandboxer.
	SandboxImage string
	// Snapshotter of the containers; "" for the one that images are unpacked into when they come.
	Snapshotter string
	// BaseSpec is the specification that those of containers start from; nil for an empty one. It
	// is never changed.
	BaseSpec *specs.Spec
	// Defaults are what its containers get if their requests say nothing about it.
	Defaults spec.Defaults
	// NoPivotRoot and NoNewKeyring are options of runc's shim.
	NoPivotRoot, NoNewKeyring bool
}

// Options is a type of options of shims.
type Options string

// Types of shim options.
const (
	OptionsRunc    Options = "runc"
	OptionsGeneric Options = "generic" // runtimeoptions.v1: Kata, runsc and most others
	OptionsNone    Options = "none"
)

// Object is a container object to be made in containerd.
type Object struct {
	ID        string
	SandboxID string // "" for a sandbox itself
	Image     string
	Handler   Handler
	Spec      *specs.Spec
	// Snapshotter and SnapshotKey name the writable layer; empty for the built-in pause process.
	Snapshotter string
	SnapshotKey string
	Labels      map[string]string
}

// TaskIO holds the paths of FIFOs, or the logging URIs, of a task; empty for none.
type TaskIO struct {
	Stdin    string
	Stdout   string
	Stderr   string
	Terminal bool
}

// TaskState is the state of a task in containerd.
type TaskState struct {
	Pid      uint32 // 0 for a task whose process is not restored yet
	Running  bool   // running or paused: its program runs; false of a task that was not started
	Stopped  bool   // ended; Code and ExitedAt are the shim's
	Code     uint32
	ExitedAt clock.Instant
	NoCode   bool // it ended, and the shim does not know the code yet
}

// TaskUsage is what a shim says that a container uses: CPU time in nanoseconds, and bytes. A figure
// that it does not give is 0, and so is a limit that there is none of.
type TaskUsage struct {
	CPU, Memory, MemoryLimit, InactiveFile, Anon uint64
}

// Runtime is containerd, as far as pods need it. Errors wrap errdefs' sentinels: ErrNotFound if the
// object is absent, ErrUnavailable if containerd cannot be reached. Deleting an absent object
// returns ErrNotFound and is harmless.
type Runtime interface {
	Objects
	Layers
	Tasks
	Shims
	// Inventory lists berth's objects in containerd. It does not wait for shims that do not answer.
	Inventory(ctx context.Context) (Inventory, error)
}

// Objects are the records of sandboxes and containers in containerd.
type Objects interface {
	// CreateSandbox makes a sandbox object: a pod's, or a container's of the same ID, which keeps
	// an ended task from being cleaned away by a containerd that starts.
	CreateSandbox(ctx context.Context, id string, h Handler) error
	DeleteSandbox(ctx context.Context, id string) error
	CreateContainer(ctx context.Context, o Object) error
	DeleteContainer(ctx context.Context, id string) error
	// Spec returns the OCI spec of a container object, UpdateSpec replaces it.
	Spec(ctx context.Context, id string) (*specs.Spec, error)
	UpdateSpec(ctx context.Context, id string, s *specs.Spec) error
}

// Layers are the root file systems of containers, and images that are mounted.
type Layers interface {
	// PrepareSnapshot makes a writable layer on the image's chain, safe from containerd's garbage
	// collection until it is deleted.
	PrepareSnapshot(ctx context.Context, l Layer) error
	DeleteSnapshot(ctx context.Context, snapshotter, key string) error
	// DeleteLease deletes a lease of the runtime that a pod was adopted from.
	DeleteLease(ctx context.Context, id string) error
	// RenewSnapshot undoes all changes in a writable layer. It can be cut off and called again: a
	// view named spare keeps the layers below meanwhile.
	RenewSnapshot(ctx context.Context, snapshotter, key, spare string) error
	// ApplyChanges makes the changes that a tar of a layer has in a writable layer. It can be cut
	// off and called again.
	ApplyChanges(ctx context.Context, snapshotter, key, changes string) error
	// MountImage makes a view of an image's chain, safe from containerd's garbage collection until
	// it is deleted (DeleteSnapshot), and mounts it at dir: nosuid, nodev, and read-only unless a
	// writable one is asked for. It returns ErrNotFound if the image is not unpacked.
	MountImage(ctx context.Context, v ImageView) error
}

// ErrLayerLost means that a directory of the layers which a container runs on is not on the disk.
var ErrLayerLost = errors.New("a directory of its layers is missing")

// Tasks are the processes that shims run.
type Tasks interface {
	// CreateTask makes the task and its process, which does not run the user's program yet. The
	// task of a container that is restored has no process; its PID is 0. It returns ErrLayerLost if
	// a directory of its layers is missing.
	CreateTask(ctx context.Context, o TaskRequest) (pid uint32, err error)
	StartTask(ctx context.Context, id string) error
	// RestoreTask has the task's process, which CreateTask did not make, restored from the
	// checkpoint. The error names CRIU's reason, from its log in the directory work.
	RestoreTask(ctx context.Context, id, work string) error
	KillTask(ctx context.Context, id string, sig unix.Signal) error
	// DeleteTask removes the task and ensures that nothing of it is left: neither in containerd's
	// task list nor as a shim.
	DeleteTask(ctx context.Context, id string) error
	// EndLeft ends and removes, without containerd and the shim, all that the node has of a task,
	// or of a sandbox's place in a shim: processes, records of the OCI runtime, the bundle, the
	// control group. It looks through the node's processes. If nothing is left, it succeeds.
	EndLeft(ctx context.Context, id string) error
	TaskState(ctx context.Context, id string) (TaskState, error)
	// WaitTask returns the shim's measurement when the task's process has ended.
	WaitTask(ctx context.Context, id string) (TaskState, error)
	// Publishes reports whether berth is told of the ends of tasks by containerd's event stream now.
	Publishes() bool
	// UpdateTask changes the cgroup settings of a task that runs: those that r sets. With
	// ErrInvalidArgument or ErrFailedPrecondition the OCI runtime has refused, and may have set a
	// part before; after any other error but ErrNotFound it may have carried out the change.
	UpdateTask(ctx context.Context, id string, r *specs.LinuxResources) error
}

// Shims are the shims of sandboxes.
type Shims interface {
	// Sandboxer returns a sandbox controller of containerd's.
	Sandboxer(name string) Sandboxer
	// StartShim starts the shim of a sandbox without a process. It serves the containers' tasks
	// until EndShim, also while there are none. It returns ErrAlreadyExists if containerd knows
	// one. CreateTask is ErrNotFound for a container whose sandbox has lost its shim.
	StartShim(ctx context.Context, r SandboxRequest) error
	// EndShim ends it, and ensures that nothing of it is left. A shim that other pods share goes on.
	EndShim(ctx context.Context, id string) error
	// JoinGroup chooses the group of sandboxes without a process that a new one of the handler
	// shares a shim with; "" for a shim of its own. It may ask a shim, which takes a second at
	// most. The caller puts the group on record before anything is made, or calls LeaveGroup.
	JoinGroup(ctx context.Context, id string, h Handler) string
	// RejoinGroup takes up the group that an earlier berth has recorded for a sandbox. It is called
	// for all of them before any sandbox is asked about. stays is set if the shim still serves the
	// sandbox: EndShim has not succeeded.
	RejoinGroup(id, group string, h Handler, stays bool)
	// LeaveGroup takes JoinGroup back.
	LeaveGroup(id string)
	// Hangs reports whether the shim that a sandbox shares with others does not answer a question
	// that needs nothing of any container. It takes some seconds at most.
	Hangs(ctx context.Context, id string) bool
	// ShimDied reports whether the clean-up after a dead shim may have ended the processes of a
	// sandbox. It asks the kernel alone, and looks over the node if the shim is not known.
	ShimDied(ctx context.Context, id string) bool
}

// TaskRequest asks for a task.
type TaskRequest struct {
	ID string
	// Pod is the sandbox without a process that the container is in; "" for one with a process.
	Pod string
	// Endpoint is the sandbox's task service; zero: the sandbox's shim, or a shim of its own.
	Endpoint state.Endpoint
	IO       TaskIO
	// Snapshotter and SnapshotKey name the root filesystem; empty when the spec names a directory.
	Snapshotter string
	SnapshotKey string
	// Restore is the checkpoint that the container is restored from; nil for one that starts anew.
	Restore *Unpacked
}

// Layer asks for a writable layer.
type Layer struct {
	Snapshotter string
	Key         string
	ChainID     string
	// IDs shift the owners of all files, for a pod in a user namespace of its own; zero: they stay.
	IDs spec.UserIDs
}

// ImageView asks for a view of an image.
type ImageView struct {
	Snapshotter string
	Key         string
	ChainID     string
	Dir         string       // to mount it at
	IDs         spec.UserIDs // as of a Layer
	Writable    bool         // it takes changes, which are lost with it
	Label       string       // the SELinux label of its files; "" for those that they have
}

// Inventory is everything of ours that containerd has, by ID.
type Inventory struct {
	Containers  map[string]map[string]string // labels by container ID
	Tasks       map[string]TaskState
	Unreachable map[string]bool // there may be a task: its shim did not answer in time
	Sandboxes   map[string]bool
	Snapshots   map[string]string // snapshotter by key, of those that berth made
	Orphans     map[string]bool   // tasks without a container, of any client
}

// Kernel is the kernel as a witness: package pidfd, which describes the methods.
type Kernel interface {
	Watch(id string, p pidfd.Process) (pidfd.Process, error)
	Forget(id string)
	Signal(id string, sig unix.Signal) error
	Look(id string) (a pidfd.Answer, watched bool)
	Program(pid uint32) (pidfd.Program, error)
	// Pipe opens the read end of a pipe that a process, or its parent, has open; ErrNotFound when
	// neither has.
	Pipe(p pidfd.Process, inode uint64) (fd int, err error)
	Exact() bool
}

// Cgroups reads and ends control groups: package cgroup, which describes the methods.
type Cgroups interface {
	Of(pid uint32) (string, error)
	Dir(path string) string
	OOMKills(dir string) (uint64, error)
	OOMKillsBelow(dir string) (uint64, error)
	LimitHits(dir string) ([]uint64, error)
	// WatchOOM has [Controller.OOMNoted] called when the OOM killer may have fired in the group of
	// an ID. all is true if every kill is noticed. ForgetOOM ends that.
	WatchOOM(id, dir string) (all bool, err error)
	ForgetOOM(id string)
	Unnoticed(dir string) bool
	Delegate(dir string, uid int) error
	KillAll(ctx context.Context, dir string) error
	Force(dir string, p pidfd.Process) (held string, err error)
	ThawAll(dir string) (thawed bool, err error)
	RemoveAll(ctx context.Context, path string) (found bool, err error)
}

// Network connects sandboxes.
type Network interface {
	// Setup fails where the pod gets no address.
	Setup(ctx context.Context, p network.Pod) (network.Result, error)
	// SetSysctls sets sysctls of the pod's network, and returns once they are read back. connected
	// is the result of Setup, because the plug-ins would undo sysctls set before, and some do not
	// exist yet.
	SetSysctls(p network.Pod, connected network.Result, values map[string]string) error
	Teardown(ctx context.Context, p network.Pod, recorded network.Result) error
	// Restore takes a connected pod of the records, before any other call for it.
	Restore(p network.Pod, connected network.Result)
	Status() error
}

// NetNS makes and removes the network namespaces of sandboxes: package pins, which describes the
// methods.
type NetNS interface {
	PathFor(podID string) string
	Create(ctx context.Context, path string) error
	CreateOwned(ctx context.Context, path string, ids pins.UserIDs) error
	Owner(path string) (*os.File, error)
	Remove(ctx context.Context, path string) error
	RemoveAdopted(ctx context.Context, path string) error
	Pinned(ctx context.Context) (podIDs []string, err error)
}

// Files is the pods' own files on this host: package podfiles, which describes the methods.
type Files interface {
	MakeSandbox(s podfiles.Sandbox) error
	SetHosts(id string, hosts []byte) error
	Shared(podID string, hostIPC bool) map[string]string
	MakeVolume(id string, n int) (string, error)
	MakeImageVolume(id string, n int) (string, error)
	MakeRootfs(id string, uid int) (string, error)
	MakeCheckpoint(id string) (string, error)
	Checkpoint(id string) string
	RemoveCheckpoint(id string) error
	Below(dir, path string) (string, error)
	MakeHostPath(ctx context.Context, path string) error
	IO(id string) string
	Remove(id string) error
	RemoveAdopted(id string, dirs, files []string) error
	IDs() ([]string, error)
}

// Pins are the IPC and UTS namespaces of sandboxes without a process: package pins, which describes
// the methods.
type Pins interface {
	IPC(id string) string
	UTS(id string) string
	Make(r pins.Request) error
	Check(id string) error
	Remove(id string) error
	IDs() ([]string, error)
}

// Stdio is one container's stdin, stdout and stderr.
type Stdio interface {
	FIFOs() (stdin, stdout, stderr string)
	// Started is called once the shim holds its ends, or never will. With an error, a container
	// that is started would lose its output.
	Started() error
	Run(ctx context.Context) error
	// Drained is closed when the output has ended and is logged. Drain waits for the output that a
	// container wrote before its processes ended; Flush for the output written so far.
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
	// Open continues with the stdio that an earlier berth made; ErrNotFound when there is none. It
	// does not wait for the log's disk.
	Open(o logs.Options) (Stdio, error)
	// RemoveAll removes the stdio in a directory, berth's or that of another runtime.
	RemoveAll(dir string) error
}

// Image is the part of an image that a container needs.
type Image struct {
	ID          string // config digest; for an artifact or a checkpoint, the digest of its manifest
	Ref         string // repo digest if there is one, else ID
	Names       []ImageName
	ChainID     string
	Snapshotter string
	Config      ocispec.ImageConfig
	Checkpoint  bool // it is not an image to run, but holds a checkpoint of a container
	Artifact    bool // it is not an image to run, but files to mount
}

// ImageName is a name of an image on this node, with a tag or a digest.
type ImageName struct {
	Name   string
	Target ocispec.Descriptor // the manifest or index that it stood for when the image was found
}

// Images resolves images. A reference is resolved once: every later step uses the Image that was
// found.
type Images interface {
	// Resolve finds an image that is on this node; ErrNotFound names the reference.
	Resolve(ref string) (Image, error)
	// Pull fetches an image from its registry and returns it. Concurrent calls share the work. No
	// policy is asked: the image is one that berth needs.
	Pull(ctx context.Context, ref string) (Image, error)
	// PullFor does the same for a pod. ErrPermissionDenied: the policy does not let the image in.
	PullFor(ctx context.Context, pod *runtimeapi.PodSandboxMetadata, ref string) (Image, error)
	// Name is how people call the image of an ID now: the name that was asked for, if it is one of the
	// image, else its first tag, else its digest reference, else the ID. It reads memory alone.
	Name(id, asked string) string
	// Files returns the image's /etc/passwd and /etc/group.
	Files(ctx context.Context, img Image) (passwd, group []byte, err error)
	// Unpack makes the snapshots of an image that is on this node without them: it was fetched by
	// another client, or they were lost. Concurrent calls share the work.
	Unpack(ctx context.Context, img Image) error
	// CopyOut copies the content that the image has under each path of dirs into the directory of
	// that path, ownership and modes kept. A path that the image does not have leaves its directory
	// empty. It returns ErrInvalidArgument if the content is too large.
	CopyOut(ctx context.Context, img Image, dirs map[string]string) error
	// Checkpoint returns the archive in an image that holds a checkpoint. The caller closes it; until
	// then it can be read, also if the image is removed. ErrNotFound: the archive is not on this node.
	Checkpoint(ctx context.Context, img Image) (io.ReadCloser, error)
}

// Policy decides which images containers may be made from: package policy.
type Policy interface {
	// Allow returns nil if a container of a pod in a namespace may be made from an image that is on
	// this node, or mount it. It decides by the names that the image had when it was found. asked
	// is the pod's reference to the image, which may be its ID; "" if that is not known. It may ask
	// a registry, and then takes a minute at most. ErrPermissionDenied names the rule that does not
	// allow it; ErrUnavailable: that could not be asked.
	Allow(ctx context.Context, namespace, asked string, img Image) error
	// Restore returns nil if a container may be restored from the checkpoint that the image holds.
	// It is as Allow otherwise.
	Restore(ctx context.Context, namespace, asked string, img Image) error
}

// Labels keeps the SELinux labels that package spec has allocated: package selinux, which describes
// the methods.
type Labels interface {
	Reserve(process string) error
	Relabel(path, mount string) error
	ReadOnly() string
	Shared(mount string) (string, error)
	Release(process string)
}

// Checkpoints reads archives of checkpoints: package checkpoint. ErrInvalidArgument names the fault
// in an archive.
type Checkpoints interface {
	// Receive writes an archive from another source to a file, which Read and Unpack accept until
	// the caller calls done. The file is removed then, and also if berth is killed.
	Receive(ctx context.Context, from io.Reader) (archive string, done func(), err error)
	// Read checks an archive and returns its description of the container.
	Read(ctx context.Context, archive string) (Checkpoint, error)
	// Unpack checks an archive, unpacks it into the empty directory dir, and changes the
	// specification of the container as the restore needs it.
	Unpack(ctx context.Context, archive, dir string, s *specs.Spec) error
}

// Checkpoint is an archive's description of its container.
type Checkpoint struct {
	Image    string // the image's name; it may be ""
	ImageRef string // the image's digest reference, or its ID; it may be ""
}

// Unpacked is where the parts of an unpacked checkpoint are.
type Unpacked struct {
	Images  string // a directory with CRIU's images of the processes
	Work    string // a directory for CRIU's log
	Changes string // a tar of the changes in the writable layer; absent if there were none
}

// UnpackedIn returns the parts in the directory that a checkpoint is unpacked into.
func UnpackedIn(dir string) Unpacked {
	return Unpacked{
		Images:  filepath.Join(dir, "images"),
		Work:    filepath.Join(dir, "work"),
		Changes: filepath.Join(dir, "changes.tar"),
	}
}

// Store commits records.
type Store interface {
	Commit(changes ...state.Change) error
}

// Feed publishes container events to subscribers.
type Feed interface {
	// Stamp is the next instant for an event of a pod, taken before the snapshot it comes with.
	Stamp(podID string, now time.Time) int64
	// Instant is for an answer whose snapshot is taken after the call: not below any stamp so far.
	Instant(now time.Time) int64
	Publish(ev *runtimeapi.ContainerEventResponse)
	Forget(podID string)
}

// Devices adds CDI devices to containers: package cdi.
type Devices interface {
	// Inject changes the OCI spec of a container as the devices of the qualified names ask for.
	// ErrNotFound names those that do not exist. It is called in CreateContainer, before Hooks.
	Inject(s *specs.Spec, names []string) error
}

// Observer is notified of events, for logs, metrics and timelines. It must not block.
type Observer interface {
	// Note takes an event of the sandbox or container id, or of the node if id is "".
	Note(id string, e event.Event)
}

type noObserver struct{}

func (noObserver) Note(string, event.Event) {}

// Sandboxer makes, asks and ends pod sandboxes of one kind, with the verbs of containerd's sandbox
// controllers. Of the built-in ones, [pinner] pins a pod's namespaces as files and [pauser] holds
// them by a process; those of containerd implement the same verbs, by runtime handler. They return
// ErrNotFound for an absent sandbox. A verb that fails is retried by the lane of the sandbox, never
// by a sandboxer.
type Sandboxer interface {
	// Create makes the sandbox, which does not run yet. The instance has the PID if there is a
	// process by now.
	Create(ctx context.Context, r SandboxRequest) (Instance, error)
	Start(ctx context.Context, id string) (Instance, error)
	// Stop asks the sandbox to end, and ends it after timeout; 0 ends it at once.
	Stop(ctx context.Context, id string, timeout time.Duration) error
	// Wait returns when the sandbox ended.
	Wait(ctx context.Context, id string) (TaskState, error)
	Status(ctx context.Context, id string) (TaskState, error)
	// Shutdown gives back everything that Create and Start made.
	Shutdown(ctx context.Context, id string) error
}

// SandboxRequest is the input of a sandboxer.
type SandboxRequest struct {
	ID        string
	Handler   Handler
	Config    *runtimeapi.PodSandboxConfig
	CreatedAt time.Time // wall time
	NetNS     string    // "" for the host's network
	Group     string    // of sandboxes without a process that share a shim; "" for none
	// Spec is the specification of the pause process. Other sandboxers use parts of it:
	// annotations, the cgroup.
	Spec   *specs.Spec
	Labels map[string]string
}

// Instance is a sandbox that was made or started.
type Instance struct {
	Pid uint32 // 0: it has no process on this host, or not yet
	// Endpoint is where its tasks are reached; zero: its shim.
	Endpoint state.Endpoint
}
