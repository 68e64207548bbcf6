// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/engine/adopt"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/internal/host/logs"
)

// flushTimeout is how long what is in the pipes of a container may take to be in its log.
const flushTimeout = 2 * time.Second

// outputs are the pipes of containers while they have no reader.
type outputs struct {
	node *node
	held map[string]*logs.Held // by container
}

func newOutputs(n *node) *outputs { return &outputs{node: n, held: map[string]*logs.Held{}} }

// hold holds the pipes of a container open until release. It can be called again.
func (o *outputs) hold(id string, t *adopt.Task) error {
	if t == nil || o.held[id] != nil {
		return nil
	}
	held, err := logs.HoldPipes(pipesOf(t))
	if err != nil {
		return fmt.Errorf("container %s: %w", id, err)
	}
	o.held[id] = held
	return nil
}

// release closes the pipes that are held open.
func (o *outputs) release() {
	for _, h := range o.held {
		_ = h.Close()
	}
	clear(o.held)
}

// of returns what a container on record asks for of its stdio.
func (o *outputs) of(sb *state.Sandbox, ct *state.Container) logs.Options {
	return pod.StdioOptions(o.node.files.IO(ct.ID), sb, ct, o.node.cfg.Logs.MaxLine)
}

// flush brings what is in the pipes of a container of berth's into its log, with all that was taken
// from them before, and a line after it, unless that is empty. The caller may remove the stdio
// then.
func (o *outputs) flush(ctx context.Context, sb *state.Sandbox, ct *state.Container, line string) error {
	l, err := logs.Open(o.of(sb, ct))
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	ran := make(chan error, 1)
	go func() { ran <- l.Run(context.WithoutCancel(ctx)) }()
	within, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	err = l.Flush(within)
	err = errors.Join(err, l.Close(), <-ran)
	if err == nil { // more may have been taken since the flush
		err = logs.Settle(within, o.of(sb, ct), line)
	}
	if err != nil {
		return fmt.Errorf("write the rest of its output into its log: %w", err)
	}
	return nil
}

func pipesOf(t *adopt.Task) logs.Pipes {
	return logs.Pipes{Stdin: t.Stdin, Stdout: t.Stdout, Stderr: t.Stderr}
}
