// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/internal/base/retry"
)

const (
	// answerTimeout is how long containerd may take to answer, also after it was restarted.
	answerTimeout = time.Minute
	// askInterval is the time between two questions whether containerd answers. It does not grow: until
	// there is an answer, nobody serves the pods.
	askInterval = 20 * time.Millisecond
	// slowestAsk is the longest time between two looks at all pods, while shims do not answer.
	slowestAsk = time.Second
)

// command runs a command of the operator's.
func (n *node) command(ctx context.Context, flag, line string) error {
	began := time.Now()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", line)
	cmd.Stdout, cmd.Stderr = n.request.Output, n.request.Output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %q: %w", flag, line, err)
	}
	n.said("%s took %s", flag, time.Since(began).Round(time.Millisecond))
	return nil
}

// reach waits until containerd answers.
func (n *node) reach(ctx context.Context) error {
	err := n.within(ctx, n.ctrd.Answers)
	if err != nil {
		return fmt.Errorf("containerd at %s does not answer: %w", n.cfg.Containerd.Address, err)
	}
	return nil
}

// ready waits until the plug-in, which is on, has its pods and serves them.
func (n *node) ready(ctx context.Context) error {
	c, err := client.Dial(n.cfg.Containerd.Address)
	if err != nil {
		return err
	}
	defer c.Close()
	err = n.within(ctx, func(ctx context.Context) error {
		_, err := c.Status(ctx, &runtimeapi.StatusRequest{})
		return err
	})
	if err != nil {
		return fmt.Errorf("containerd's CRI plug-in does not serve after --switch: %w", client.Explain(err))
	}
	return nil
}

// whileSilent looks again and again while look says that shims do not answer and nothing else is in the
// way, until [node.patience] is over. A shim that is slow, as they all are right after a start of
// containerd, has not said that its pod cannot be moved. A dry run looks once: it says how it is now.
func (n *node) whileSilent(ctx context.Context, look func(context.Context) (silent int, err error)) error {
	within, cancel := context.WithTimeout(ctx, n.patience)
	defer cancel()
	for wait := range retry.Doubling(within.Done(), askInterval, slowestAsk) {
		silent, err := look(ctx)
		if err != nil || silent == 0 || n.request.DryRun {
			return err
		}
		if wait == askInterval {
			n.said("%d shims do not answer; they are asked again for up to %s", silent, n.patience)
		}
	}
	return nil
}

// within asks containerd again and again until ask returns nil, or [answerTimeout] is over.
func (n *node) within(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var err error
	for range retry.Doubling(ctx.Done(), askInterval, askInterval) {
		if err = ask(ctx); err == nil {
			return nil
		}
	}
	return errors.Join(err, ctx.Err())
}
