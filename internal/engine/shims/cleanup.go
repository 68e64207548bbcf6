// SPDX-License-Identifier: Apache-2.0

// This file holds a trick whole: a shell script in the place of a shim's program. It relies on
// behaviour that containerd does not promise: it runs the program that a task or a sandbox was
// created with, with the arguments -id ID and delete as the last one, and takes its output as an
// encoded DeleteResponse. It relies on runc, too, which keeps a directory ROOT/ID as long as a
// container exists. The setting tricks.cleanup_script turns it off; it is not used where the script
// cannot be run, nor with shims that are not for runc. Delete when containerd does not run a shim's
// program after a deletion that has succeeded: https://github.com/containerd/containerd/pull/4804.

package shims

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"berth/internal/base/connection"
)

// cleanupScript stands before a shim's program where containerd runs that to clean up after a dead
// shim. Containerd does so whenever the connection to a shim ends, and each task has a connection
// of its own that ends with the task's deletion. So each deletion of a container is followed by the
// start of a shim, which starts an OCI runtime to delete a container that is deleted already: more
// than half of the time of a deletion. The script instead reports at once that nothing is left if
// the OCI runtime has no record of the container, and lets the shim's program do everything else.
//
// It answers with a containerd.task.v2.DeleteResponse whose exit_status is 255, an unknown code:
// containerd publishes the answer as the task's end when the shim has died between its deletion of
// the container and its own answer.
const cleanupScript = `#!/bin/sh
# Written by berth: see internal/engine/shims/cleanup.go. It can be deleted when no container is left.
id= last=
for arg in "$@"; do
	if [ "$last" = -id ]; then id=$arg; fi
	last=$arg
done
case $last in
probe) exit 0 ;;
delete) if [ -n "$id" ] && [ -d %[1]s ] && [ ! -e %[1]s/"$id" ]; then printf '\020\377\001'; exit 0; fi ;;
esac
exec %[2]s "$@"
`

// spareScript is a cleanupScript for the containers of pods that share a shim. When the shim dies,
// containerd would have it delete the container of each task, running or not: the death of one shim
// would end all pods of a group. The script does nothing, so that they go on. Containerd forgets
// their tasks, the kernel tells of their ends, and a release ends and removes the remains of a task
// that containerd does not know: see left.go.
const spareScript = `#!/bin/sh
# Written by berth: see internal/engine/shims/cleanup.go. It can be deleted when no container is left.
last=
for arg in "$@"; do last=$arg; done
case $last in
probe) exit 0 ;;
delete) if [ -d %[1]s ]; then printf '\020\377\001'; exit 0; fi ;;
esac
exec %[2]s "$@"
`

// probeTimeout bounds the trial run of a script.
const probeTimeout = 5 * time.Second

// Cleanups makes the programs by which containerd cleans up after containers of pods and after
// their shims: faster than the shims' own programs do, and so that the death of a shared shim ends
// no container. Its methods may be called from any goroutine. A nil Cleanups makes none.
type Cleanups struct {
	shims *Shims
	dir   string // where they are
	log   *slog.Logger
	fails sync.Once

	// handlers has, by handlerKey, the path of the script that stands before the shims of a
	// handler's pods. Reading it waits for no trial run.
	handlers sync.Map

	mu    sync.Mutex
	tried map[string]bool // by path of the script: it can be run
}

// NewCleanups returns a Cleanups for shims, whose programs are in a directory that is made when it
// is needed.
func NewCleanups(s *Shims, dir string, log *slog.Logger) *Cleanups {
	return &Cleanups{shims: s, dir: dir, log: log}
}

// For returns the program by which containerd is to clean up after the containers of a pod,
// and after its shim, whose OCI runtime keeps its records in root; "" for the shim's own. Only
// shims for runc have one, and only if they run in this mount namespace. For a pod that shares its
// shim, the program leaves containers alone that run.
func (c *Cleanups) For(ctx context.Context, pod, root string) string {
	if c == nil {
		return ""
	}
	script := cleanupScript
	if c.shims.Key(pod) != pod {
		script = spareScript
		// containers made without the program are not spared as long as the shim exists
		c.shims.find(ctx, pod)
	}
	shim := c.shims.program(pod)
	if shim == "" || !strings.Contains(filepath.Base(shim), "runc") {
		return ""
	}
	if script == cleanupScript && !isThere(shim) { // it would have nothing to run
		return ""
	}
	path, err := c.write(ctx, script, shim, RecordsIn(root))
	if err != nil {
		c.fails.Do(func() {
			c.log.Warn("clean-up program of containerd cannot be run: deletions are slower, and no pods share a shim from now on", "err", err)
		})
		return ""
	}
	return path
}

// RecordsIn is where an OCI runtime whose root is configured so keeps its records: a directory for
// each container, which has its ID.
func RecordsIn(root string) string {
	return filepath.Join(cmp.Or(root, shimRuncRoot), connection.Namespace)
}

// CanSpare reports whether a program can be made and run here that leaves containers alone when
// their shim has died. Without one, no shim may be shared: its death would end the containers of
// all its pods.
func (c *Cleanups) CanSpare(ctx context.Context, root string) bool {
	if c == nil {
		return false
	}
	_, err := c.write(ctx, spareScript, anyProgram, RecordsIn(root))
	if err != nil {
		c.log.Debug("a pod gets a shim of its own, since the program that would spare the containers of a shared one cannot be run", "err", err)
	}
	return err == nil
}

// anyProgram stands for a shim's program in a script that is made to try whether scripts can be
// run.
const anyProgram = "/bin/false"

// handlerKey holds the inputs of the scripts for a handler's pods.
type handlerKey struct {
	kind, root string
	shared     bool // the pod shares its shim
}

// HandlerProgram returns the program with which containerd is to start the shim of a pod that has
// no process, so that it also cleans up by it; "" for the handler's own, and if it is not known.
// kind and root are those of the handler. The path is learned from the first shim of a handler: see
// [Cleanups.LearnHandler].
func (c *Cleanups) HandlerProgram(pod, kind, root string) string {
	if c == nil {
		return ""
	}
	program, _ := c.handlers.Load(handlerKey{kind, root, c.shims.Key(pod) != pod})
	path, _ := program.(string)
	return path
}

// LearnHandler notes that the shim of a pod is one of a handler's. It looks for the shim of a pod
// that shares one, if it is not known.
func (c *Cleanups) LearnHandler(ctx context.Context, pod, kind, root string) {
	if c == nil || c.HandlerProgram(pod, kind, root) != "" {
		return
	}
	// If the program of a shim is gone, the next one is started from an unknown path.
	if program := c.For(ctx, pod, root); program != "" && isThere(c.shims.program(pod)) {
		c.handlers.Store(handlerKey{kind, root, c.shims.Key(pod) != pod}, program)
	}
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// write makes a script for a shim's program and a directory of records, and tries whether it can be
// run. That it can is remembered. A cause of failure such as a full disk may pass, and so it is
// tried again.
func (c *Cleanups) write(ctx context.Context, script, shim, records string) (string, error) {
	text := fmt.Sprintf(script, quote(records), quote(shim))
	path := filepath.Join(c.dir, fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16])
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tried[path] {
		return path, nil
	}
	err := func() error {
		if err := os.MkdirAll(c.dir, 0o700); err != nil {
			return err
		}
		// It is not synced: after a power cut it may be there and empty.
		if has, err := os.ReadFile(path); err != nil || string(has) != text {
			if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o700), os.Rename(path+".new", path)); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		return exec.CommandContext(ctx, path, "probe").Run()
	}()
	if err != nil {
		return "", fmt.Errorf("make %s: %w", path, err)
	}
	if c.tried == nil {
		c.tried = map[string]bool{}
	}
	c.tried[path] = true
	return path, nil
}

// quote turns any text into one word of the shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
