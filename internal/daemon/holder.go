// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/base/version"
	"berth/internal/engine/ctrd"
	"berth/internal/host/cgroup"
	"berth/internal/serve/stream"
)

// HolderCommand is the hidden command that is a holder of streams. Its argument is a directory.
const HolderCommand = "hold-streams"

const (
	// holderName is what a holder is called in lists of processes, where it must not be taken for berth.
	holderName = "berth-streams"
	// holderSocket is the descriptor of the socket on which berths come.
	holderSocket = 3
)

// holders starts the processes that keep streams.
type holders struct {
	groups *cgroup.Groups // nil: none can be made
	log    *slog.Logger
}

func (d *daemon) holders() holders {
	h := holders{log: d.log.Logger}
	if !d.cfg.Streams.Keep {
		return h
	}
	var err error
	if h.groups, err = cgroup.NewGroups("streams-"+d.store.Owner(), 0); err != nil {
		d.log.Warn("the processes that keep streams run without cgroups of their own", "err", err)
		return h
	}
	_ = h.groups.Sweep() // those of holders that have ended
	return h
}

// spawn starts a holder, in a session and a cgroup of its own, so that what ends berth leaves it alone.
func (h holders) spawn(dir string, lis *os.File) error {
	said, err := os.OpenFile(filepath.Join(dir, "output"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("start a process that keeps streams: %w", err)
	}
	defer said.Close()
	cmd := exec.Command("/proc/self/exe", HolderCommand, dir) //nolint:gosec // it is this program
	cmd.Args[0] = holderName
	cmd.Env = []string{} // what systemd has given berth is not for it
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = said, said
	cmd.ExtraFiles = []*os.File{lis}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var group *cgroup.Group
	if h.groups != nil {
		if group, err = h.groups.New(filepath.Base(dir)); err != nil {
			return err
		}
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, group.FD()
	}
	err = cmd.Start()
	finish := func() error { return nil }
	if group != nil {
		finish = group.Finish // what is in it lives on
	}
	if err != nil {
		err = errors.Join(err, finish())
	} else {
		err = h.follow(cmd, finish)
	}
	if err != nil {
		return fmt.Errorf("start a process that keeps streams: %w", err)
	}
	return nil
}

// follow lets a holder that was started go on, and waits for its end in the background. If it cannot
// live on by itself, it is ended before the error is returned: nobody would give it a stream.
func (h holders) follow(cmd *exec.Cmd, finish func() error) error {
	if err := finish(); err != nil {
		err = errors.Join(err, cmd.Process.Kill())
		_ = cmd.Wait()
		h.sweep()
		return err
	}
	go func() {
		_ = cmd.Wait()
		h.sweep()
	}()
	return nil
}

// sweep removes the cgroups of holders that were killed.
func (h holders) sweep() {
	if h.groups != nil {
		_ = h.groups.Sweep()
	}
}

// HoldStreams is a process that keeps the streams that berth gives it, until there are none any more.
func HoldStreams(ctx context.Context, dir string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	unix.CloseOnExec(holderSocket)
	f := os.NewFile(holderSocket, "berth")
	lis, err := net.FileListener(f)
	_ = f.Close()
	socket, ok := lis.(*net.UnixListener)
	if err != nil || !ok {
		return errors.New("this command is for berth itself: it has to be given a socket")
	}
	_ = os.WriteFile("/proc/self/comm", []byte(holderName), 0)
	// berth is the last that the OOM killer takes. This process is like any other.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0)
	boundGarbage()
	defer func() { _ = cgroup.Leave() }() // otherwise the next berth removes the group
	return stream.Hold(ctx, stream.HolderConfig{
		Dir:      dir,
		Listener: socket,
		Version:  version.String(),
		Tasks:    func(s stream.Shim) stream.Tasks { return ctrd.NewDirect(s) },
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}
