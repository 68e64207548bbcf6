// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/kernelversion"
	"golang.org/x/sys/unix"

	"berth/internal/base/retry"
)

// finished is the attribute of a group whose run finished by itself, and left processes that are to
// live on. It is in the kernel's memory, as the group is, so both are there after a kill of berth.
const finished = "user.berth.finished"

// Groups are the groups of one kind of program that berth starts: each run of a program has a group
// of its own, which the program is in before its first instruction. The processes that a run leaves
// are found by their group, also by the next berth, and by nothing else.
//
// The groups are in the unified hierarchy, because every kernel has it beside those of cgroup v1.
// They have no controllers.
type Groups struct {
	name  string    // begins the names of the groups
	bases []string  // directories for the groups; new groups go into the first
	keep  *os.File  // holds a mount that bases are in; nil without one
	left  time.Time // until then, runs that an earlier berth cut off may finish their step

	mu struct {
		sync.Mutex
		running map[string]bool // the paths of groups whose run has not ended
	}
}

// NewGroups returns the groups of a name, which the next berth gives again. It makes none.
// Processes that an earlier berth left behind may go on for the grace period, because a program
// that is killed between two steps may leak resources that are never found again. The error has
// the reason why this host cannot make groups: the kernel is older than Linux 5.7, the first that
// can start a program in a group, or the unified hierarchy cannot be mounted.
func NewGroups(name string, grace time.Duration) (*Groups, error) {
	switch ok, err := kernelversion.GreaterEqualThan(kernelversion.KernelVersion{Kernel: 5, Major: 7}); {
	case err != nil:
		return nil, fmt.Errorf("find out whether programs can be started in a cgroup: %w", err)
	case !ok:
		return nil, errors.New("a program can be started in a cgroup from Linux 5.7 on, and this kernel is older")
	}
	g := &Groups{name: "berth-" + name + "-", left: time.Now().Add(grace)}
	g.mu.running = map[string]bool{}
	root, err := unified()
	if err != nil {
		if g.keep, err = mountUnified(); err != nil {
			return nil, err
		}
		root = fmt.Sprintf("/proc/self/fd/%d", g.keep.Fd())
	}
	// systemd leaves alone the groups below one that it delegated, and groups below the root that
	// it did not make. Both places are used, because berth may have been started by systemd once
	// and from a terminal before.
	if own := ownGroup(); own != "/" && delegated(root+own) {
		g.bases = append(g.bases, root+own)
	}
	g.bases = append(g.bases, root)
	return g, nil
}

// unified returns where the unified hierarchy is mounted.
func unified() (string, error) {
	for _, dir := range []string{mount, mount + "/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir, nil
		}
	}
	return "", fmt.Errorf("the unified cgroup hierarchy is not mounted: %w", fs.ErrNotExist)
}

// mountUnified mounts the unified hierarchy without attaching it anywhere: no other process sees
// the mount, and it ends with the file. The caller closes the file.
func mountUnified() (*os.File, error) {
	ctx, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err == nil {
		defer unix.Close(ctx)
		err = unix.FsconfigCreate(ctx)
	}
	fd := -1
	if err == nil {
		fd, err = unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("mount the unified cgroup hierarchy: %w", err)
	}
	return os.NewFile(uintptr(fd), "cgroup2"), nil
}

// ownGroup returns the path of berth's own group in the unified hierarchy.
func ownGroup() string {
	b, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return filepath.Clean("/" + path)
		}
	}
	return "/"
}

// delegated reports whether systemd delegated a group (Delegate= in systemd.resource-control(5)).
func delegated(dir string) bool {
	for _, attr := range []string{"trusted.delegate", "user.delegate"} {
		if b := make([]byte, 1); getAttr(dir, attr, b) == nil && b[0] == '1' {
			return true
		}
	}
	return false
}

func getAttr(dir, attr string, b []byte) error {
	for {
		if _, err := unix.Getxattr(dir, attr, b); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Group is the group of one run of a program.
type Group struct {
	groups *Groups
	path   string
	dir    *os.File
}

// New makes a group for a run that works for id. The caller starts the program in it (see FD), and
// calls Finish or Abandon after the program has ended, or could not be started.
func (g *Groups) New(id string) (*Group, error) {
	g.mu.Lock()
	defer g.mu.Unlock() // so that Sweep knows a group as soon as it is there
	path, err := os.MkdirTemp(g.bases[0], g.name+id+".")
	if err != nil {
		return nil, fmt.Errorf("make a cgroup for %s: %w", id, err)
	}
	dir, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the cgroup for %s: %w", id, err), unix.Rmdir(path))
	}
	g.mu.running[path] = true
	return &Group{groups: g, path: path, dir: dir}, nil
}

// FD returns the descriptor of the group, as clone3(2) takes it. It is open until Finish or
// Abandon.
func (c *Group) FD() int { return int(c.dir.Fd()) }

// Kill sends SIGKILL to everything in the group, and waits for nothing.
func (c *Group) Kill() error {
	_, err := killOnce(c.path)
	return err
}

// Finish releases the group of a run that finished by itself. Processes that the run left live on.
// The group is removed as soon as nothing is in it. After an error the group still counts as that
// of a run that was cut off.
func (c *Group) Finish() error {
	defer c.done()
	if remove(c.path) {
		return nil
	}
	if err := unix.Setxattr(c.path, finished, []byte("1"), 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("mark cgroup %s as finished: %w", c.path, err)
	}
	return nil
}

// Abandon kills the processes of a run that was cut off. It does not wait: End and Sweep see to
// those that do not end at once.
func (c *Group) Abandon() error {
	defer c.done()
	if remove(c.path) {
		return nil
	}
	if err := c.Kill(); err != nil {
		return err
	}
	remove(c.path)
	return nil
}

func (c *Group) done() {
	c.groups.mu.Lock()
	delete(c.groups.mu.running, c.path)
	c.groups.mu.Unlock()
	_ = c.dir.Close()
}

// remove removes a group if nothing is in it, and reports whether it is gone.
func remove(path string) bool {
	err := unix.Rmdir(path)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return true
	}
	// It is busy as well if there are groups below it.
	if empty, err := Empty(path); err != nil || !empty {
		return false
	}
	return rmdirs(path) == nil
}

// End ends the processes of runs for id that were cut off, in this berth or in an earlier one, and
// returns when all have ended. During the grace period (see NewGroups), End gives them time to end
// by themselves. A run that goes on is cut off. Processes of finished runs are not touched. If ctx
// ends before, the error wraps ctx's.
func (g *Groups) End(ctx context.Context, id string) error {
	paths, err := g.list(func(of string) bool { return of == id })
	var errs []error
	for _, path := range paths {
		if isFinished, err := hasFinished(path); err != nil || isFinished {
			errs = append(errs, err)
			continue
		}
		g.leave(ctx, path)
		_, err := removeTree(ctx, path)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, err)...)
}

// leave returns when nothing is in a group, or when the grace is over.
func (g *Groups) leave(ctx context.Context, path string) {
	ctx, cancel := context.WithDeadline(ctx, g.left)
	defer cancel()
	for range retry.Doubling(ctx.Done(), firstLook, slowestLook) {
		if empty, err := Empty(path); empty || err != nil {
			return
		}
	}
}

// Sweep kills the processes of all runs that were cut off, without waiting for their end, and
// removes empty groups. It does not touch runs that go on, and kills nothing while the grace lasts.
// Call it when the grace period is over, and now and then, because processes that finished runs
// left may have ended since.
func (g *Groups) Sweep() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	paths, err := g.list(func(string) bool { return true })
	errs := []error{err}
	for _, path := range paths {
		if g.mu.running[path] || remove(path) {
			continue
		}
		isFinished, err := hasFinished(path)
		if err == nil && !isFinished && time.Now().After(g.left) {
			_, err = killOnce(path)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// list returns the paths of the groups of the IDs that are wanted.
func (g *Groups) list(wanted func(id string) bool) ([]string, error) {
	var paths []string
	for _, base := range g.bases {
		entries, err := os.ReadDir(base)
		if err != nil {
			return paths, fmt.Errorf("list the cgroups in %s: %w", base, err)
		}
		for _, e := range entries {
			// MkdirTemp has put a dot and digits behind the ID.
			id, ok := strings.CutPrefix(e.Name(), g.name)
			if dot := strings.LastIndexByte(id, '.'); ok && dot >= 0 && wanted(id[:dot]) {
				paths = append(paths, filepath.Join(base, e.Name()))
			}
		}
	}
	return paths, nil
}

// hasFinished reports whether the group is marked as belonging to a run that finished. The group of
// a run that was cut off is not, and neither is one that is gone.
func hasFinished(path string) (bool, error) {
	switch err := getAttr(path, finished, make([]byte, 1)); {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOENT):
		return false, nil
	default:
		return false, fmt.Errorf("find out whether the run of cgroup %s finished: %w", path, err)
	}
}
