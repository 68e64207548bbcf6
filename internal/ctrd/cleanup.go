// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/typeurl/v2"

	"berth/internal/connection"
)

// cleanupScript stands before a shim's program where containerd runs that to clean up after a dead
// shim. Containerd does so whenever the connection to a shim ends, and each task has a connection
// of its own that ends with the task's deletion. So each deletion of a container is followed by the
// start of a shim, which starts an OCI runtime to delete what is deleted already: more than half of
// what a deletion takes. The script says in their place that nothing is left when the OCI runtime
// has no record of the container, and lets the shim's program do everything else.
//
// It answers with a containerd.task.v2.DeleteResponse whose exit_status is 255, an unknown code:
// containerd publishes the answer as the task's end when the shim has died between its deletion of
// the container and its own answer.
const cleanupScript = `#!/bin/sh
# Written by berth: see internal/ctrd/cleanup.go. It can be deleted when no container is left.
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

// probeTimeout bounds the trial run of a script.
const probeTimeout = 5 * time.Second

// cleanupProgram is the program by which containerd is to clean up after a container of a pod; ""
// for the shim's own. Only containers of runc's kind have one, in pods whose shim runs in this
// mount namespace.
func (c *Containerd) cleanupProgram(ctx context.Context, id string) string {
	if c.cleanupDir == "" {
		return ""
	}
	o, err := c.client.ContainerService().Get(connection.Namespaced(ctx), id)
	if err != nil || o.SandboxID == "" {
		return ""
	}
	var opts runcoptions.Options
	if err := typeurl.UnmarshalTo(o.Runtime.Options, &opts); err != nil {
		return "" // another kind
	}
	return c.cleanupFor(ctx, o.SandboxID, opts.GetRoot())
}

// cleanupFor is the program for the containers of a pod, and for its shim, whose OCI runtime keeps
// its records in root; "" for the shim's own.
func (c *Containerd) cleanupFor(ctx context.Context, pod, root string) string {
	shim := c.shims.program(pod)
	if shim == "" || !strings.Contains(filepath.Base(shim), "runc") {
		return ""
	}
	if root == "" {
		root = shimRuncRoot
	}
	path, err := c.writeCleanup(ctx, shim, filepath.Join(root, connection.Namespace))
	if err != nil {
		c.cleanupFails.Do(func() {
			c.log.Warn("deletions take longer than they need to, since the program that would speed them up cannot be run", "err", err)
		})
		return ""
	}
	return path
}

// writeCleanup makes a script for a shim's program and a directory of records, once, and tries
// whether it can be run.
func (c *Containerd) writeCleanup(ctx context.Context, shim, records string) (string, error) {
	text := fmt.Sprintf(cleanupScript, quote(records), quote(shim))
	path := filepath.Join(c.cleanupDir, fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16])
	c.cleanupMu.Lock()
	defer c.cleanupMu.Unlock()
	if known, ok := c.cleanups[path]; ok {
		return path, known
	}
	err := func() error {
		if err := os.MkdirAll(c.cleanupDir, 0o700); err != nil {
			return err
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o700), os.Rename(path+".new", path)); err != nil { //nolint:gosec // a program
				return err
			}
		}
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		return exec.CommandContext(ctx, path, "probe").Run()
	}()
	if err != nil {
		err = fmt.Errorf("make %s: %w", path, err)
	}
	// What may fail for a passing reason is tried again; that the program may not be run here, as on a
	// file system mounted with noexec, is kept.
	if err == nil || errors.Is(err, fs.ErrPermission) {
		if c.cleanups == nil {
			c.cleanups = map[string]error{}
		}
		c.cleanups[path] = err
	}
	return path, err
}

// quote makes a word of the shell's of any text.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
