// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
	"berth/internal/retry"
)

const (
	// answerTimeout is how long containerd may take to answer, also after it was restarted.
	answerTimeout = time.Minute
	// askInterval is the time between two questions whether containerd answers. It does not grow: until
	// there is an answer, nobody serves the pods.
	askInterval = 20 * time.Millisecond
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
	c, err := cri.Dial(n.cfg.Containerd.Address)
	if err != nil {
		return err
	}
	defer c.Close()
	err = n.within(ctx, func(ctx context.Context) error {
		_, err := c.Status(ctx, &runtimeapi.StatusRequest{})
		return err
	})
	if err != nil {
		return fmt.Errorf("containerd's CRI plug-in does not serve after --switch: %w", cri.Explain(err))
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
