// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"fmt"
	"io"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"berth/internal/heart/pod"
)

// Exec runs a command in a container and connects it with a client until the command has ended or
// the client is gone. An exit code other than 0 is a utilexec.CodeExitError. Streams that the
// client does not want are nil. resize is closed when the client is gone.
func (s *Service) Exec(ctx context.Context, id string, args []string, stdin io.Reader, stdout, stderr io.WriteCloser,
	terminal bool, resize <-chan remotecommand.TerminalSize,
) error {
	t, err := s.container(id)
	if err != nil {
		return fmt.Errorf("exec in container %s: %w", id, err)
	}
	c := client{stdin, stdout, stderr, resize}
	var code uint32
	err = s.visited(ctx, Access{What: "exec", Target: t, Args: args, Terminal: terminal}, &c, func(ctx context.Context) (int32, error) {
		code, err = s.exec(ctx, t, args, c, terminal)
		return int32(code), err
	})
	switch {
	case err != nil:
		return fmt.Errorf("exec in container %s: %w", id, err)
	case code != 0:
		return utilexec.CodeExitError{Err: fmt.Errorf("the command ended with exit code %d", code), Code: int(code)}
	}
	return nil
}

// client is the other side of a stream.
type client struct {
	stdin  io.Reader      // nil: not wanted
	stdout io.WriteCloser // nil: not wanted
	stderr io.WriteCloser // nil: not wanted
	resize <-chan remotecommand.TerminalSize
}

func (s *Service) exec(ctx context.Context, t pod.Target, args []string, c client, terminal bool) (uint32, error) {
	// Streams that the client does not want are read and dropped. A shim that is given no path for
	// it fails after it has started the process, and then forgets the process.
	want := streams{stdin: c.stdin != nil, stdout: true, stderr: !terminal}
	p, err := s.start(ctx, t, command{
		args:     args,
		terminal: terminal,
		streams:  want,
		of:       s.sessions,
	})
	if err != nil {
		return 0, err
	}
	defer p.abandon()
	out := copyOutput(p.pipes, writer(c.stdout), writer(c.stderr))
	if c.stdin != nil {
		// It ends when the client is gone or the pipe is closed, which abandon brings about.
		go p.copyStdin(c.stdin)
	}
	if terminal && c.resize != nil {
		go s.follow(ctx, p.key, c.resize, p.exited)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-out.failed:
			cancel(errGone)
		case <-ctx.Done():
		}
	}()
	if err := p.result(ctx); err != nil {
		return 0, err
	}
	out.drain(ctx.Done())
	return p.code, nil
}

// writer returns w, or a writer that drops everything if there is none.
func writer(w io.WriteCloser) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// copyStdin passes on the client's input, and its end.
func (p *process) copyStdin(stdin io.Reader) {
	p.pipes.awaitReader(p.exited)
	_, _ = io.Copy(p.pipes.stdin, stdin)
	_ = p.pipes.stdin.Close()
	ctx, cancel := context.WithTimeout(p.s.life, stepTimeout)
	defer cancel()
	// An error is not reported: the process has ended, or its shim does not answer, and then the
	// end of the input changes nothing.
	_ = p.s.cfg.Processes.CloseExecStdin(ctx, p.key)
}

// follow keeps a terminal at the size of the client's until done is closed or the client is gone.
func (s *Service) follow(ctx context.Context, key Key, resize <-chan remotecommand.TerminalSize, done <-chan struct{}) {
	for {
		select {
		case size, ok := <-resize:
			if !ok {
				return
			}
			if size.Width == 0 || size.Height == 0 {
				continue
			}
			one, cancel := context.WithTimeout(ctx, stepTimeout)
			if err := s.cfg.Processes.ResizeExec(one, key, size.Width, size.Height); err != nil {
				s.cfg.Logger.Debug("a terminal cannot be resized", "container", key.Container, "exec", key.Exec, "err", err)
			}
			cancel()
		case <-done:
			return
		case <-ctx.Done():
			return
		}
	}
}
