// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/peercred"
	"berth/internal/host/pidfd"
)

// step is one thing that is broken around a canary.
type step struct {
	name string
	does string // the activity of the canary
	end  string // how it has to end
	// perhapsUnknown is set if a kernel that reports no codes may leave this one unknown.
	perhapsUnknown bool
	// polled is set if berth is away for a while, so that no event is received.
	polled bool
	// possible returns the reason if the step cannot be tried here, before anything is made; nil if
	// every host can.
	possible func(ctx context.Context, c *canary) error
	// fault breaks something, and sets c.broken to the time. restore mends it once the exit was seen.
	fault func(ctx context.Context, c *canary) (restore func(), err error)
}

var steps = []step{
	{
		name:  "it ends by itself",
		does:  ends,
		end:   fmt.Sprint(ownCode, " Error"),
		fault: func(context.Context, *canary) (func(), error) { return nil, nil },
	},
	{
		name:  "its process is killed",
		does:  waits,
		end:   "137 Error",
		fault: func(ctx context.Context, c *canary) (func(), error) { return nil, c.kill(ctx) },
	},
	{
		name:  "it reaches its memory limit",
		does:  eats,
		end:   "137 OOMKilled",
		fault: func(context.Context, *canary) (func(), error) { return nil, nil },
	},
	{
		name:  "its output is held open",
		does:  waits,
		end:   "137 Error",
		fault: holdOutput,
	},
	{
		name:     "the disk of its log is full",
		does:     talks,
		end:      "137 Error",
		possible: fullLogs,
		fault: func(ctx context.Context, c *canary) (func(), error) {
			if err := c.logIsFull(ctx); err != nil {
				return nil, err
			}
			return nil, c.kill(ctx)
		},
	},
	{
		name:           "its release is held, its shim hangs",
		does:           waits,
		end:            "137 Error",
		perhapsUnknown: true,
		fault:          hangShim,
	},
	{
		name:           "its shim is killed",
		does:           waits,
		end:            "137 Error",
		perhapsUnknown: true,
		fault:          killShim,
	},
	{
		name:           "its process is killed while berth is away",
		does:           waits,
		end:            "137 Error",
		perhapsUnknown: true,
		polled:         true,
		possible:       mayRestart,
		fault:          restartBerth,
	},
}

// open returns a pidfd of a process that is certain to be the canary's, and its pid.
func (c *canary) open(ctx context.Context) (fd, pid int, err error) {
	st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.id, Verbose: true})
	if err != nil {
		return -1, 0, fmt.Errorf("ask for the process of the canary: %w", err)
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(st.GetInfo()["info"]), &info); err != nil || info.Pid <= 1 {
		return -1, 0, notTried("berth does not say which process the canary is: %v", err)
	}
	fd, err = openOwn(info.Pid, "/cgroup", "/"+c.drill.name)
	return fd, info.Pid, err
}

// openOwn returns a pidfd of a process whose file in /proc contains a text that only this drill's
// have. A process that took over the pid is not taken for it: the pidfd was opened before.
func openOwn(pid int, file, text string) (int, error) {
	fd, err := pidfd.Open(pid)
	if err != nil {
		return -1, fmt.Errorf("process %d: %w", pid, err)
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + file)
	if err == nil && !bytes.Contains(b, []byte(text)) {
		err = notTried("process %d is not this drill's", pid)
	}
	if err == nil && pidfd.Ask(fd) != pidfd.Alive {
		err = fmt.Errorf("process %d has ended before anything was broken", pid)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (c *canary) kill(ctx context.Context) error {
	fd, _, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	c.broken = time.Now()
	return pidfd.Send(fd, unix.SIGKILL)
}

// holdOutput keeps the canary's standard output open, as a background process does that has left
// its container, and kills the canary.
func holdOutput(ctx context.Context, c *canary) (restore func(), err error) {
	fd, pid, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	held, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/1", pid), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, notTried("the output of the canary cannot be opened: %v", err)
	}
	c.broken = time.Now()
	return func() { _ = held.Close() }, pidfd.Send(fd, unix.SIGKILL)
}

// logsSize is how much the full log disk takes.
const logsSize = 1 << 20

// fullLogs mounts a small file system for the canary's log.
func fullLogs(ctx context.Context, c *canary) error {
	at := filepath.Join(c.dir, "small")
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	// An interruption must not end mount(8) between the mount and its answer.
	whole, done := context.WithTimeout(context.WithoutCancel(ctx), c.cleaningHere())
	defer done()
	if _, err := program(whole, "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d,mode=0755", logsSize), "berth-drill", at); err != nil {
		again, done := context.WithTimeout(context.WithoutCancel(ctx), c.cleaningHere())
		defer done()
		_, _ = program(again, "umount", at) // it may be mounted all the same
		return notTried("no file system can be mounted for its log: %v", err)
	}
	c.mounted = append(c.mounted, at)
	c.logs = filepath.Join(at, "logs")
	return nil
}

// logIsFull waits until the log grows no more, and has taken half of its disk at least, because a
// line that does not fit as a whole leaves some room.
func (c *canary) logIsFull(ctx context.Context) error {
	const still = 40
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	size, same := int64(0), 0
	for {
		st, err := os.Stat(filepath.Join(c.logs, "canary.log"))
		if err != nil {
			return err
		}
		if same++; st.Size() != size {
			size, same = st.Size(), 0
		}
		if size >= logsSize/2 && same >= still {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until the log has filled its disk, of which it takes %d KiB of %d: %w", size>>10, logsSize>>10, ctx.Err())
		case <-t.C:
		}
	}
}

// shim returns a pidfd of the shim that serves the canary and no other pod.
func (c *canary) shim(ctx context.Context) (fd int, err error) {
	own, pid, err := c.open(ctx)
	if err != nil {
		return -1, err
	}
	defer unix.Close(own)
	st, err := pidfd.ReadStat(uint32(pid))
	if err != nil {
		return -1, fmt.Errorf("ask for the parent of the canary's process: %w", err)
	}
	parent, err := pidfd.ReadStat(uint32(st.Parent))
	if err != nil {
		return -1, fmt.Errorf("ask for the canary's shim: %w", err)
	}
	if !strings.HasPrefix(parent.Program.Command, "containerd-shim") {
		return -1, notTried("the parent of the canary's process is %s, and not a shim", parent.Program.Command)
	}
	// A shim is started for the ID of the pod that it serves.
	return openOwn(st.Parent, "/cmdline", "-id\x00"+c.pod+"\x00")
}

// hangShim stops the shim, so that the container cannot be deleted, and kills the canary.
func hangShim(ctx context.Context, c *canary) (restore func(), err error) {
	shim, err := c.shim(ctx)
	if err != nil {
		return nil, err
	}
	if err := pidfd.Send(shim, unix.SIGSTOP); err != nil {
		_ = unix.Close(shim)
		return nil, fmt.Errorf("stop the canary's shim: %w", err)
	}
	return func() {
		_ = pidfd.Send(shim, unix.SIGCONT) // gone is as well
		_ = unix.Close(shim)
	}, c.kill(ctx)
}

// killShim kills the shim. A shim without a process is killed by the cleanup of the shim's remains.
func killShim(ctx context.Context, c *canary) (restore func(), err error) {
	shim, err := c.shim(ctx)
	if err != nil {
		return nil, err
	}
	defer unix.Close(shim)
	c.broken = time.Now()
	return nil, pidfd.Send(shim, unix.SIGKILL)
}

const berthUnit = "berth.service"

// mainPID is the process of berth's unit.
func mainPID(ctx context.Context) (int, error) {
	out, err := program(ctx, "systemctl", "show", "--property=MainPID", "--value", berthUnit)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(out)
}

// mayRestart looks whether berth may be restarted, and whether the one that systemd would restart
// is the one that is drilled.
func mayRestart(ctx context.Context, c *canary) error {
	if !c.o.Restart {
		return notTried("berth is restarted with --restart-berth only")
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return notTried("systemd does not run here")
	}
	pid, err := mainPID(ctx)
	if err != nil || pid <= 1 {
		return notTried("systemd does not run %s: %v", berthUnit, err)
	}
	peer, err := c.peer(ctx)
	if err != nil {
		return notTried("it cannot be told which process serves: %v", err)
	}
	if peer != pid && peer != 1 { // systemd made the socket
		return notTried("the berth that answers is process %d, and that of %s is %d", peer, berthUnit, pid)
	}
	return nil
}

// peer is the process that listens on berth's socket.
func (c *canary) peer(ctx context.Context) (int, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", strings.TrimPrefix(c.o.Endpoint, "unix://"))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	cred, err := peercred.Of(conn.(*net.UnixConn))
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// restartBerth lets systemd restart berth, and kills the canary once berth has ended.
func restartBerth(ctx context.Context, c *canary) (restore func(), err error) {
	own, _, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	defer unix.Close(own)
	pid, err := mainPID(ctx)
	if err != nil {
		return nil, err
	}
	berth, err := pidfd.Open(pid)
	if err != nil {
		return nil, fmt.Errorf("berth, process %d: %w", pid, err)
	}
	defer unix.Close(berth)
	began := time.Now()
	restarted := make(chan error, 1)
	go func() {
		_, err := program(context.WithoutCancel(ctx), "systemctl", "restart", berthUnit)
		restarted <- err
	}()
	if pidfd.WaitEnd(ctx, berth, c.oneStep()) != pidfd.Gone {
		return nil, errors.New("berth has not ended after systemctl restart")
	}
	c.broken = time.Now()
	if err := pidfd.Send(own, unix.SIGKILL); err != nil {
		return nil, err
	}
	select {
	case err := <-restarted:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for systemctl restart: %w", ctx.Err())
	}
	c.out.Note = fmt.Sprintf("berth served again after %s", time.Since(began).Round(time.Millisecond))
	return nil, nil
}
