// SPDX-License-Identifier: Apache-2.0

package join

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/pkg/kernelversion"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/host/pidfd"
)

// Config holds the settings and ports of a Joiner.
type Config struct {
	// Libexec is the directory of berth-exec and berth-seccomp.
	Libexec string
	// Spec is the stored OCI specification of a container. It is asked for once.
	Spec func(ctx context.Context, id string) (*specs.Spec, error)
}

// Joiner makes processes in containers. Its methods may be called from any goroutine.
type Joiner struct {
	cfg     Config
	proc    *os.File // the host's /proc
	lastCap uint32
	filters *filters

	mu      sync.Mutex
	program *os.File         // berth-exec, sealed
	plans   map[string]known // by container
}

// known is the plan of one container, as long as that one has not ended.
type known struct {
	plan   *plan
	groups groups
	null   *null
	first  pidfd.Process
	ended  <-chan struct{}
}

// New makes a Joiner. The error is the reason why this host has none. The caller closes it.
func New(cfg Config) (_ *Joiner, err error) {
	j := &Joiner{cfg: cfg, filters: newFilters(cfg.Libexec), plans: map[string]known{}}
	defer func() {
		if err != nil {
			j.Close()
		}
	}()
	b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return nil, err
	}
	last, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 6)
	if err != nil {
		return nil, fmt.Errorf("read cap_last_cap: %w", err)
	}
	j.lastCap = uint32(last)
	if j.proc, err = os.OpenFile("/proc", unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(rawFD(j.proc)), &st); err != nil {
		return nil, fmt.Errorf("look at /proc: %w", err)
	}
	if st.Type != unix.PROC_SUPER_MAGIC {
		return nil, errors.New("/proc is not the kernel's")
	}
	if err := canJoin(); err != nil {
		return nil, err
	}
	program, err := os.Open(filepath.Join(cfg.Libexec, "berth-exec"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("berth-exec is not installed: %w", err)
	}
	if err != nil {
		return nil, err
	}
	defer program.Close()
	j.program, err = seal(program)
	return j, err
}

// canJoin returns an error if the kernel lacks a call that berth-exec needs: it joins the
// namespaces of a pidfd, from Linux 5.8 on, and uses close_range, from 5.9 on.
func canJoin() error {
	ok, err := kernelversion.GreaterEqualThan(kernelversion.KernelVersion{Kernel: 5, Major: 9})
	if err != nil {
		return fmt.Errorf("read the kernel's release: %w", err)
	}
	if !ok {
		return errors.New("the kernel is too old, it takes Linux 5.9")
	}
	return nil
}

// Close closes the descriptors of a Joiner. Started processes go on.
func (j *Joiner) Close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	closeAll([]*os.File{j.program, j.proc})
	for _, k := range j.plans {
		k.null.close()
	}
	clear(j.plans)
}

// Program returns a path of the sealed copy of berth-exec, for this process alone.
func (j *Joiner) Program() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return fmt.Sprintf("/proc/self/fd/%d", rawFD(j.program))
}

// Container is one in which a program is to run.
type Container struct {
	ID string
	// Runtime is its OCI runtime. Records is the directory that the OCI runtime has for the
	// container, with its state.
	Runtime Runtime
	Records string
	// Process is its first process, and Cgroup the path of its control group within a hierarchy.
	Process pidfd.Process
	Cgroup  string
	// Ended is closed when it has ended.
	Ended <-chan struct{}
}

// Plan is a program that is to run in a container.
type Plan struct {
	of *Joiner
	known
	args []string
}

// Prepare plans to run a program. The error is a [Refusal] if this room does not cover the request,
// and otherwise that of asking for the specification.
func (j *Joiner) Prepare(ctx context.Context, c Container, args []string) (*Plan, error) {
	if len(args) == 0 {
		return nil, refuse(Specification, "there is no program")
	}
	if err := c.Runtime.check(); err != nil {
		return nil, err
	}
	if c.Process.Pid == 0 || c.Process.StartTicks == 0 {
		return nil, refuse(Groups, "the container's process is not known")
	}
	j.mu.Lock()
	k, ok := j.plans[c.ID]
	j.mu.Unlock()
	if !ok || k.first != c.Process {
		var err error
		if k, err = j.learn(ctx, c); err != nil {
			return nil, err
		}
	}
	return &Plan{j, k, args}, nil
}

func (j *Joiner) learn(ctx context.Context, c Container) (known, error) {
	s, err := j.cfg.Spec(ctx, c.ID)
	if err != nil {
		return known{}, fmt.Errorf("read specification of container %s: %w", c.ID, err)
	}
	if err := c.Runtime.made(c.Records); err != nil {
		return known{}, err
	}
	p, err := planned(c.ID, c.Runtime.Name, s, j.lastCap)
	if err != nil {
		return known{}, err
	}
	var f filter
	if c.Runtime.Name == crun {
		f, err = kept(c.Records, s.Linux.Seccomp)
	} else {
		f, err = j.filters.of(ctx, s.Linux.Seccomp, c.Runtime.Libseccomp)
	}
	if err != nil {
		return known{}, err
	}
	p.filter, p.head.Flags = f.code, f.flags
	g, err := find(c.Cgroup, c.Process.Pid)
	if err != nil {
		return known{}, err
	}
	n, err := newNull()
	if err != nil {
		return known{}, refuse(Failed, "%v", err)
	}
	k := known{plan: p, groups: g, null: n, first: c.Process, ended: c.Ended}
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, old := range j.plans {
		select {
		case <-old.ended:
		default:
			if id != c.ID {
				continue
			}
		}
		delete(j.plans, id)
		go old.null.close() // the kernel may take its time for the end of a file system
	}
	j.plans[c.ID] = k
	return k, nil
}
