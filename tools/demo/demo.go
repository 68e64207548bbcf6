// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// Options configure the demo. All of them are needed.
type Options struct {
	Berth   string // path of the berth binary that serves and shows the results
	Image   string // archive with the image Name, in the OCI layout
	Verbose bool   // also write the log of the started berth to Err
	Out     io.Writer
	Err     io.Writer
}

// Name is the name of the image in the archive.
const Name = "localhost/berth-demo:latest"

// Image returns where the archive is that comes with a berth binary, whether it is installed, in an
// unpacked archive or in a tree that was built.
func Image(berth string) string {
	return filepath.Join(filepath.Dir(berth), "..", "share", "berth", "busybox.tar")
}

// Run runs the demo until it is done or ctx ends. It needs root, possibly that of a user namespace
// (berth rootless). If memory cannot be limited, the container that runs out of it is left out.
func Run(ctx context.Context, o Options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("the demo runs real containers: run it as root, or as another user by `berth rootless demo`")
	}
	if _, err := os.Stat(o.Image); err != nil {
		return fmt.Errorf("find the image of the demo: %w: it comes with an archive or a package of berth, "+
			"and `make demo` makes it; --image names another one, which has %s", err, Name)
	}
	// The kernel ends the started berth when the thread that started it ends (PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dir, err := os.MkdirTemp("", "bd") // a short name: paths of sockets are limited to 107 bytes
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := start(ctx, o, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	return show(ctx, s)
}
