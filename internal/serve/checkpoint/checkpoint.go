// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
)

const (
	// DefaultTimeout is how long a checkpoint may take when the request has no timeout.
	DefaultTimeout = time.Minute
	// resumeTimeout bounds one attempt to let a container go on.
	resumeTimeout = 10 * time.Second
	// stopPatience is how long a container that is to be stopped stays frozen if its shim does not
	// answer. On cgroup v1 nothing ends a process that is frozen.
	stopPatience = time.Second
)

// Pods describes containers. Its methods answer from memory.
type Pods interface {
	Target(id string) (pod.Target, error)
	ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error)
}

// Runtime is containerd, as far as checkpoints need it. Errors wrap the sentinels of errdefs.
type Runtime interface {
	// PauseTask reports whether it has asked for a pause. If it has, the task, or some of its
	// processes, may be paused even after an error. If it has not, another client may have paused it.
	PauseTask(ctx context.Context, id string) (asked bool, err error)
	// ResumeTask succeeds for a task that is not paused, or that is not there.
	ResumeTask(ctx context.Context, id string) error
	// CheckpointTask writes CRIU's images of the processes into one directory, and its log into the
	// other. Both exist.
	CheckpointTask(ctx context.Context, id, images, work string) error
	// WriteChanges writes the changes in the writable layer of a container, as a tar.
	WriteChanges(ctx context.Context, snapshotter, key string, w io.Writer) error
	Spec(ctx context.Context, id string) (*specs.Spec, error)
}

// Config holds the settings and ports of a Service.
type Config struct {
	// Dir is a directory of the Service's own, on a disk with room for the memory of a container.
	// It is made when it is needed.
	Dir     string
	Pods    Pods
	Runtime Runtime
	// Begin puts on record that a container or a pod is about to be written to a place. An error
	// refuses that. end is called once, with why it failed, or nil. Nil: no record is kept.
	Begin func(ctx context.Context, t pod.Target, location string) (end func(error), err error)
	// Thaw lets the processes of a cgroup run on. Absence is a success.
	Thaw func(cgroup string) error
	// MaxBytes bounds the files that a container has changed, holes included; 0: DefaultMaxBytes.
	MaxBytes int64
	Logger   *slog.Logger
}

// Service writes checkpoints. Its methods may be called by any number of goroutines.
type Service struct {
	cfg Config
	// the directory of each checkpoint that is being made, by the ID of the container
	paused *unfinished
}

// New makes a Service. Run has to run for it, once the records are restored, to let containers go
// on that an earlier berth has paused.
func New(cfg Config) *Service {
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	if cfg.Begin == nil {
		cfg.Begin = func(context.Context, pod.Target, string) (func(error), error) { return func(error) {}, nil }
	}
	s := &Service{cfg: cfg}
	s.paused = newUnfinished(unfinishedConfig{
		dir:    cfg.Dir,
		undo:   s.undo,
		undone: "a checkpoint that was cut off is removed; its container goes on",
		stays:  "a container may still be paused after a checkpoint",
		logger: cfg.Logger,
	})
	return s
}

// Run resumes the containers that a killed berth had paused, and those that this berth could not
// resume, and removes the remains of their checkpoints. It tries until it succeeds, and ends with
// ctx.
func (s *Service) Run(ctx context.Context) error { return s.paused.run(ctx) }

// Checkpoint writes a checkpoint of a container that runs into a new file. The container goes on.
// timeout 0 is DefaultTimeout. The error is ErrInvalidArgument for a location that cannot be,
// ErrAlreadyExists when something is there, ErrFailedPrecondition when the container does not run
// or CRIU is not installed.
func (s *Service) Checkpoint(ctx context.Context, id, location string, timeout time.Duration) error {
	t, err := s.cfg.Pods.Target(id)
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("checkpoint container %q: %w", id, errdefs.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if t.ID == t.PodID {
		return fmt.Errorf("checkpoint container %s: it is a sandbox: %w", t.ID, errdefs.ErrNotFound)
	}
	if err := checkLocation(location); err != nil {
		return fmt.Errorf("checkpoint container %s: %w", t.ID, err)
	}
	end, err := s.cfg.Begin(ctx, t, location)
	if err != nil {
		return fmt.Errorf("checkpoint container %s: %w", t.ID, err)
	}
	defer func() { end(err) }()
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = s.capture(ctx, []pod.Target{t}, func(ctx context.Context, dumps []dump) error {
		return publish(location, dumps[0].packer(ctx))
	})
	if err != nil {
		return fmt.Errorf("checkpoint %w", err)
	}
	return nil
}
