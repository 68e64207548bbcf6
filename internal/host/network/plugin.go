// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"go.opentelemetry.io/otel/propagation"
	"golang.org/x/sys/unix"

	"berth/internal/base/ops"
	"berth/internal/base/retry"
)

const (
	// Grace is how long a plug-in whose call is over, or whose berth was killed, may go on before it
	// is killed. A plug-in that is killed between two of its steps may leak resources that no later
	// call finds: host-local creates the file of an address first, and then writes the owner into it.
	Grace = time.Second
	// lingering is how long a call waits for a plug-in that was killed, or for one that has ended
	// and whose output another process holds open.
	lingering = time.Second
	// busyAttempts is how often a plug-in is started whose file is being written.
	busyAttempts = 6
	// Limits of the output kept of a plug-in, in bytes.
	maxOutput  = 4 << 20
	maxMessage = 64 << 10
)

// Groups makes cgroups, one for each call of a plug-in. Package cgroup has them.
type Groups interface {
	// New makes a group for a call that works for id.
	New(id string) (Group, error)
	// End ends the processes of calls for id that were cut off, in this berth or an earlier one. It
	// returns when they have ended. Processes that finished calls left are not touched. The calls
	// of an earlier berth have the Grace from the start of this one.
	End(ctx context.Context, id string) error
	// Sweep kills the processes of all calls that were cut off, except during the Grace, and
	// removes empty groups.
	Sweep() error
}

// Group is the cgroup of one call.
type Group interface {
	// FD is the group's descriptor. It is open until Finish or Abandon.
	FD() int
	// Kill kills everything in the group, and does not wait for its end.
	Kill() error
	// Finish is called when the plug-in ended by itself: processes that it left live on.
	Finish() error
	// Abandon is called when the plug-in was cut off: processes that it left are killed.
	Abandon() error
}

// plugins runs plug-ins for the CNI library.
type plugins struct {
	version.PluginDecoder
	groups Groups // nil: calls have no groups, and processes that a call leaves are not known
	log    *slog.Logger
	// programs is a directory in which plug-ins look for programs first; "" for none.
	programs string
	list     *ops.List
}

// FindInPath returns the path of a plug-in's file.
func (p *plugins) FindInPath(plugin string, dirs []string) (string, error) {
	return invoke.FindInPath(plugin, dirs)
}

// ExecPlugin runs a plug-in in a cgroup of its own, and returns its standard output.
//
// A call finishes when the plug-in exits by itself, with any code. It is cut off when ctx ended a
// second before (see Grace), when a signal ends the plug-in, or when berth is killed: then all
// processes that it started are killed as well, because they would go on with work that is being
// undone. A plug-in that is killed and does not end, because it hangs in the kernel, is not waited
// for. No plug-in is started once ctx has ended.
func (p *plugins) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	environ = traced(ctx, environ)
	if p.programs != "" {
		environ = append(environ, "PATH="+p.programs+":"+os.Getenv("PATH")) // the last one counts
	}
	ctx, op := p.list.Part(ctx, ops.Work{
		Kind: ops.Plugin,
		What: fmt.Sprintf("the CNI plug-in %s (%s)", filepath.Base(path), valueOf("CNI_COMMAND", environ)),
	})
	defer op.End()
	for attempt := 1; ; attempt++ {
		out, err := p.run(ctx, op, path, stdin, environ)
		if !errors.Is(err, unix.ETXTBSY) || attempt == busyAttempts {
			return out, err
		}
		if !retry.Sleep(ctx.Done(), time.Second) {
			return nil, err
		}
	}
}

// run runs a plug-in once, in the operation op.
func (p *plugins) run(ctx context.Context, _ *ops.Op, path string, stdin []byte, environ []string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start plug-in %s: %w", filepath.Base(path), err)
	}
	ctx, done := prolonged(ctx, Grace)
	defer done()
	c := &call{name: filepath.Base(path), log: p.log}
	c.stdout.most, c.stderr.most = maxOutput, maxMessage
	c.cmd = exec.CommandContext(ctx, path)
	c.cmd.Env, c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = environ, bytes.NewReader(stdin), &c.stdout, &c.stderr
	c.cmd.Cancel, c.cmd.WaitDelay = c.cutOff, lingering
	if p.groups != nil {
		var err error
		if c.group, err = p.groups.New(cmp.Or(valueOf("CNI_CONTAINERID", environ), "version")); err != nil {
			return nil, fmt.Errorf("start plug-in %s: %w", c.name, err)
		}
		c.cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: c.group.FD()}
	}
	if err := c.cmd.Start(); err != nil {
		if c.group != nil {
			err = errors.Join(err, c.group.Abandon())
		}
		return nil, fmt.Errorf("start plug-in %s: %w", c.name, err)
	}
	type result struct {
		out []byte
		err error
	}
	ended := make(chan result, 1)
	go func() {
		out, err := c.wait(ctx)
		ended <- result{out, err}
	}()
	select {
	case r := <-ended:
		return r.out, r.err
	case <-ctx.Done():
	}
	t := time.NewTimer(2 * lingering)
	defer t.Stop()
	select {
	case r := <-ended:
		return r.out, r.err
	case <-t.C:
		return nil, fmt.Errorf("plug-in %s was killed, and process %d has not ended: %w", c.name, c.cmd.Process.Pid, context.Cause(ctx))
	}
}

// prolonged returns a context that ends some time after ctx, with its cause. The caller calls done
// to free the context's resources.
func prolonged(ctx context.Context, by time.Duration) (_ context.Context, done func()) {
	later, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if retry.Sleep(later.Done(), by) {
			cancel(context.Cause(ctx))
		}
	})
	return later, func() {
		stop()
		cancel(nil)
	}
}

// valueOf returns a variable that the library passes to a plug-in. The ID of the container is empty
// for a question about versions.
func valueOf(name string, environ []string) (value string) {
	for _, e := range environ {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			value = v
		}
	}
	return value
}

// call is one call of a plug-in.
type call struct {
	name           string
	log            *slog.Logger
	cmd            *exec.Cmd
	group          Group // nil without one
	stdout, stderr output
	killed         atomic.Bool
}

// cutOff kills the plug-in and all that it has started.
func (c *call) cutOff() error {
	c.killed.Store(true)
	if c.group != nil {
		if err := c.group.Kill(); err != nil {
			c.log.Warn("processes of a plug-in not killed", "plugin", c.name, "err", err)
		}
	}
	return c.cmd.Process.Kill()
}

// wait waits for the end of the plug-in, finishes or abandons its group, and returns its output.
func (c *call) wait(ctx context.Context) ([]byte, error) {
	err := c.cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) && !c.killed.Load() {
		err = nil // it ended well; a process that it started holds its output open
	}
	if c.group != nil {
		leave, what := c.group.Finish, "cgroup of a finished plug-in not released: its processes may be killed with the pod"
		if c.killed.Load() || !c.cmd.ProcessState.Exited() {
			leave, what = c.group.Abandon, "processes of an interrupted plug-in not killed, retrying"
		}
		if err := leave(); err != nil {
			c.log.Warn(what, "plugin", c.name, "err", err)
		}
	}
	switch stderr := strings.TrimSpace(c.stderr.buf.String()); {
	case c.killed.Load() && err != nil:
		return nil, fmt.Errorf("plug-in %s did not end in time and was killed: %w", c.name, context.Cause(ctx))
	case err != nil:
		return nil, c.failure(err, stderr)
	case c.stdout.lost:
		return nil, fmt.Errorf("plug-in %s wrote more than %d bytes", c.name, maxOutput)
	case stderr != "":
		c.log.Info("plug-in wrote to standard error", "plugin", c.name, "text", stderr)
	}
	return c.stdout.buf.Bytes(), nil
}

// failure returns the error of a plug-in that ended with err. By CNI it is on standard output.
func (c *call) failure(err error, stderr string) error {
	var said types.Error
	if json.Unmarshal(c.stdout.buf.Bytes(), &said) == nil && said.Msg != "" {
		return &said
	}
	text := strings.TrimSpace(strings.TrimSpace(c.stdout.buf.String()) + " " + stderr)
	return fmt.Errorf("plug-in %s: %w: %q", c.name, err, text)
}

// output keeps the beginning of the bytes written to it.
type output struct {
	buf  bytes.Buffer
	most int
	lost bool // there was more
}

// Write never fails, so that a plug-in that writes too much is not ended by that.
func (o *output) Write(b []byte) (int, error) {
	kept := b[:min(len(b), o.most-o.buf.Len())]
	o.lost = o.lost || len(kept) < len(b)
	_, _ = o.buf.Write(kept) // never fails
	return len(b), nil
}

// traced adds the trace of a call to the environment of a plug-in, in the variables that
// OpenTelemetry has for it.
func traced(ctx context.Context, environ []string) []string {
	trace := propagation.MapCarrier{}
	propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}).Inject(ctx, trace)
	for _, key := range trace.Keys() {
		environ = append(environ, strings.ToUpper(key)+"="+trace.Get(key))
	}
	return environ
}
