// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// How the plug-ins of a network are asked whether pods can be connected (STATUS of CNI 1.1).
const (
	// statusInterval is the time between two questions while the plug-ins are ready.
	statusInterval = 10 * time.Second
	// statusAgain is the same while they do not.
	statusAgain = 2 * time.Second
	// statusTimeout is how long an answer of all plug-ins of a network may take.
	statusTimeout = 5 * time.Second
	// silentAnswers is how many questions in a row must remain without an answer until that counts as
	// an answer. A plug-in may be slow on a busy node, or be replaced by a newer one just now.
	silentAnswers = 3
	// statusVersion is the version of CNI in which STATUS came.
	statusVersion = "1.1.0"
)

// answer is the last status of the plug-ins of a network.
type answer struct {
	of     string // the configuration of the network
	err    error  // nil: pods can be connected
	silent int    // questions without an answer since
}

// notReady is the error of a plug-in that cannot connect pods.
type notReady struct{ said *types.Error }

func (e notReady) Error() string {
	text := e.said.Msg
	if e.said.Details != "" {
		text += ": " + e.said.Details
	}
	return fmt.Sprintf("its plug-in is not ready: %s (CNI's code %d)", text, e.said.Code)
}

// watchStatus asks the plug-ins of the active network at intervals, and at once when another
// network becomes active, until ctx ends. Status has the last answer, so that nothing waits for a
// plug-in.
func (n *Network) watchStatus(ctx context.Context) {
	for ctx.Err() == nil {
		wait := statusInterval
		if !n.askStatus(ctx) {
			wait = statusAgain
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		case <-n.changed:
		}
	}
}

// askStatus asks once. It returns false if the next question is not to wait.
func (n *Network) askStatus(ctx context.Context) (ready bool) {
	n.mu.RLock()
	list, own := n.mu.active, n.mu.own
	n.mu.RUnlock()
	if list == nil {
		return true
	}
	asking, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	err := n.ask(asking, list, own)
	if ctx.Err() != nil {
		return true
	}
	return n.answered(list, err)
}

// answered takes note of an answer. The error of a plug-in counts at once. If a question was not
// answered, the previous answer holds at first. A lack of resources in this process is not counted
// against a plug-in, however often it occurs.
func (n *Network) answered(list *libcni.NetworkConfigList, err error) (ready bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.active != list {
		return false // it was about a network that is not in use any more
	}
	last := n.answerLocked()
	next := answer{of: string(list.Bytes), err: err}
	log := n.cfg.Logger.With("network", list.Name)
	switch said := (*types.Error)(nil); {
	case err == nil:
		if last.err != nil || last.silent > 0 {
			log.Info("plug-ins of the network are ready again")
		}
	case errors.As(err, &said) && said.Code == types.ErrInvalidEnvironmentVariables:
		next.err = nil // it does not know the question
		if last.silent == 0 {
			log.Warn("plug-in of the network does not support STATUS although it declares CNI 1.1: readiness unknown", "err", err)
		}
		next.silent = 1
		n.mu.answer = next
		return true
	case errors.As(err, &said):
		next.err = fmt.Errorf("network %s: %w: %w", list.Name, notReady{said}, errdefs.ErrUnavailable)
	case unread(err):
		next.err, next.silent = last.err, last.silent
	default:
		next.silent = last.silent + 1
		next.err = last.err
		if next.silent == 1 {
			log.Warn("plug-in of the network does not answer STATUS", "err", err)
		}
		if next.silent >= silentAnswers {
			next.err = fmt.Errorf("network %s: a plug-in cannot be asked whether it is ready: %w: %w", list.Name, err, errdefs.ErrUnavailable)
		}
	}
	if next.err != nil && (last.err == nil || next.err.Error() != last.err.Error()) {
		log.Warn("pods cannot be connected to the network", "err", next.err)
	}
	n.mu.answer = next
	return err == nil
}

// answerLocked returns the last answer about the active network.
func (n *Network) answerLocked() answer {
	if n.mu.active == nil || n.mu.answer.of != string(n.mu.active.Bytes) {
		return answer{}
	}
	return n.mu.answer
}

// askPlugins asks the plug-ins of a network. The programs of its plug-ins must be there, in
// each version: they may have been removed since the configuration was read. A network of a version
// before 1.1 has no STATUS.
func (n *Network) askPlugins(ctx context.Context, list *libcni.NetworkConfigList, own bool) error {
	for _, p := range list.Plugins {
		if _, err := n.exec.FindInPath(p.Network.Type, n.cfg.BinDirs); err != nil {
			return err
		}
	}
	if own {
		if n.cfg.Default.watch() {
			n.cfg.Logger.Warn("berth's bridge was deleted by another process: its pods have no network until they are recreated", "bridge", n.cfg.Default.Name)
		}
		// Pods are connected with the version that every bridge plug-in has; the node's own may be old.
		newer, err := libcni.NetworkConfFromBytes(n.cfg.Default.conf(statusVersion))
		if err != nil {
			return err
		}
		if _, err := n.cni.ValidateNetworkList(ctx, newer); err != nil {
			if ctx.Err() != nil || unread(err) {
				return err
			}
			return nil // its plug-ins are of an older version, and have no STATUS
		}
		list = newer
	}
	return n.cni.GetStatusNetworkList(ctx, list)
}
