// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/errkind"
	"berth/internal/base/inroot"
	"berth/internal/heart/pod"
)

// Names in the archive.
const (
	configFile    = "config.dump"
	specFile      = "spec.dump"
	statusFile    = "status"
	criStatusFile = "status.dump"
	imagesDir     = "checkpoint"
	changesFile   = "rootfs-diff.tar"
	logFile       = "container.log"
)

// config is config.dump.
type config struct {
	ID              string    `json:"id"`
	Name            string    `json:"name"`
	RootfsImage     string    `json:"rootfsImage,omitempty"`
	RootfsImageRef  string    `json:"rootfsImageRef,omitempty"`
	RootfsImageName string    `json:"rootfsImageName,omitempty"`
	Runtime         string    `json:"runtime,omitempty"`
	CreatedTime     time.Time `json:"createdTime"`
	CheckpointTime  time.Time `json:"checkpointedTime"`
	RestoredTime    time.Time `json:"restoredTime"`
	Restored        bool      `json:"restored"`
}

// shimState is status. Its fields have their Go names, as in containerd's.
type shimState struct {
	CreatedAt  int64
	StartedAt  int64
	FinishedAt int64
	ExitCode   int32
	Pid        uint32
	Reason     string
	Message    string
}

// describe writes the description of the container: its names, its image, its specification and its
// status.
func (s *Service) describe(ctx context.Context, t pod.Target, st *runtimeapi.ContainerStatus, dir string) error {
	spec, err := s.cfg.Runtime.Spec(ctx, t.ID)
	if err != nil {
		return err
	}
	for name, v := range map[string]any{
		specFile:      spec,
		criStatusFile: st,
		statusFile: shimState{
			CreatedAt: st.GetCreatedAt(),
			StartedAt: st.GetStartedAt(),
			Pid:       t.Process.Pid,
		},
		configFile: config{
			ID:              t.ID,
			Name:            st.GetMetadata().GetName(),
			RootfsImage:     st.GetImage().GetImage(),
			RootfsImageRef:  st.GetImageRef(),
			RootfsImageName: st.GetImage().GetImage(),
			Runtime:         t.Handler.Type,
			CreatedTime:     time.Unix(0, st.GetCreatedAt()).UTC(),
			CheckpointTime:  time.Now().UTC(),
		},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// checkLocation refuses a place for an archive before anything is done.
func checkLocation(location string) error {
	if !filepath.IsAbs(location) || filepath.Clean(location) != location || strings.Contains(location, "\x00") {
		return fmt.Errorf("location %q is not an absolute path without . and ..: %w", location, errdefs.ErrInvalidArgument)
	}
	st, err := os.Stat(filepath.Dir(location))
	if err != nil || !st.IsDir() {
		return fmt.Errorf("location %s: %s is not a directory: %w", location, filepath.Dir(location), errdefs.ErrInvalidArgument)
	}
	if _, err := os.Lstat(location); err == nil {
		return occupied(location)
	}
	return nil
}

func occupied(location string) error {
	return fmt.Errorf("location %s: something is there already; choose another name: %w", location, errdefs.ErrAlreadyExists)
}

// publish makes a file at location with the output of write. The file appears when all of it is on
// disk, or not at all.
func publish(location string, write func(io.Writer) error) error {
	dir, err := os.Open(filepath.Dir(location))
	if err != nil {
		return fmt.Errorf("location %s: %w", location, err)
	}
	defer dir.Close()
	f, err := writeUnnamed(dir, filepath.Base(location), write)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.link(dir); err != nil {
		return err
	}
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("name %s: %w", location, err)
	}
	return nil
}

// unnamed is a file on disk without a name yet, so that a kill leaves nothing of it (open(2),
// O_TMPFILE). Its owner closes it.
type unnamed struct {
	*os.File        // its Name is the one it is to get
	name     string // in its directory
}

// writeUnnamed makes a file in dir with the output of write.
func writeUnnamed(dir *os.File, name string, write func(io.Writer) error) (unnamed, error) {
	location := filepath.Join(dir.Name(), name)
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		return unnamed{}, fmt.Errorf("write %s: its file system cannot make a file without a name (O_TMPFILE); choose a local one: %w", location, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return unnamed{}, fmt.Errorf("write %s: %w", location, ofDisk(err))
	}
	f := unnamed{os.NewFile(uintptr(fd), location), name}
	to := newSparse(f.File, 0)
	w := bufio.NewWriterSize(to, 1<<20)
	err = write(w)
	if err == nil {
		if err = errors.Join(w.Flush(), to.finish(), f.Chmod(0o600), f.Sync()); err != nil {
			err = fmt.Errorf("write %s: %w", location, err)
		}
	}
	if err != nil {
		return unnamed{}, errors.Join(ofDisk(err), f.Close())
	}
	return f, nil
}

// ofDisk classifies an error of the kernel by whether the caller can do something about it: choose
// another directory, or make room.
func ofDisk(err error) error {
	switch {
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
	case errkind.Full(err):
		return fmt.Errorf("%w: %w", err, errdefs.ErrResourceExhausted)
	}
	return err
}

// link gives the file its name in dir, unless something has it.
func (f unnamed) link(dir *os.File) error {
	err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), int(dir.Fd()), f.name, unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, unix.EEXIST) {
		return occupied(f.Name())
	}
	if err != nil {
		return fmt.Errorf("name %s: %w", f.Name(), ofDisk(err))
	}
	return nil
}

// pack writes a tar of the directories and regular files of a dump, and of the log. It follows no
// symbolic link in the directory of the dump.
func (d dump) pack(ctx context.Context, w io.Writer) error {
	root, err := os.OpenRoot(d.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	out := tar.NewWriter(w)
	err = fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case path == ".":
			return nil
		case e.IsDir():
			return out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: path + "/", Mode: 0o700, ModTime: time.Now()})
		case !e.Type().IsRegular():
			return nil
		}
		f, err := root.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return add(ctx, out, path, f)
	})
	if err == nil {
		err = addLog(ctx, out, d.target)
	}
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}

// addLog adds the log as it is now. A log that is not there, because it was rotated or removed, or
// the container has none, is not an error.
func addLog(ctx context.Context, out *tar.Writer, t pod.Target) error {
	f, err := inroot.OpenLog(t.PodConfig.GetLogDirectory(), t.Config.GetLogPath())
	if err != nil {
		return nil // a checkpoint is complete without the log
	}
	defer f.Close()
	return add(ctx, out, logFile, f)
}

// add adds a regular file with the size that it has now.
func add(ctx context.Context, out *tar.Writer, name string, f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err := out.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg,
		Name:     name,
		Size:     st.Size(),
		Mode:     0o600,
		ModTime:  st.ModTime(),
	}); err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(until{ctx, f}, st.Size()))
	return err
}

// until reads until its context ends.
type until struct {
	ctx context.Context
	r   io.Reader
}

func (u until) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}
