// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// lock takes the directory for this server alone, until the file is closed or
// the process ends, however it ends. It never waits: containerd itself would
// wait for ever on its database. The file is close-on-exec, so no shim inherits
// the lock. The error is ErrFailedPrecondition when another holds it.
func lock(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock directory %s: %w", dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock directory %s: flock %s: %w", dir, path, err)
		}
		holder := "another process"
		if pid, err := os.ReadFile(path); err == nil && len(pid) > 0 {
			holder = "process " + strings.TrimSpace(string(pid))
		}
		return nil, fmt.Errorf("lock directory %s: %s uses it: stop that one or choose another directory: %w",
			dir, holder, errdefs.ErrFailedPrecondition)
	}
	// The holder's pid is for the message above alone (so a failure to write it changes nothing); the
	// lock is the flock. The file is never removed: a lock on an unlinked file locks nothing.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}
