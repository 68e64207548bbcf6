// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/tools/manifest"
)

// The waits between restarts are the kubelet's: the first restart comes at once, then they double,
// and a container that ran for long begins anew.
const (
	firstRestartWait = 10 * time.Second
	maxRestartWait   = 5 * time.Minute
	ranForLong       = 2 * maxRestartWait
)

// restartWait is how long to wait before a container is restarted.
type restartWait struct{ next time.Duration }

// after returns the wait for a container that has run for this long.
func (w *restartWait) after(ran time.Duration) time.Duration {
	if ran >= ranForLong {
		w.next = 0
	}
	wait := w.next
	w.next = min(max(2*wait, firstRestartWait), maxRestartWait)
	return wait
}

// restarts reports whether a container that ended is to be started again.
func (p *player) restarts(failed bool) bool {
	switch p.plan.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return failed
	}
	return true
}

// watch probes the containers and restarts them as the pod asks, until all have ended for good. It
// returns the first code that is not 0, in the order of the manifest.
func (p *player) watch(ctx context.Context) (int32, error) {
	codes := make([]int32, len(p.containers))
	g, ctx := errgroup.WithContext(ctx)
	for i, ct := range p.containers {
		g.Go(func() (err error) {
			codes[i], err = p.watchOne(ctx, p.plan.Containers[i], ct)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	for _, code := range codes {
		if code != 0 {
			return code, nil
		}
	}
	return 0, nil
}

// watchOne keeps one container until it has ended for good, and returns its last code.
func (p *player) watchOne(ctx context.Context, pc manifest.Container, ct played) (int32, error) {
	var wait restartWait
	before := "" // the attempt before ct, kept for its logs and status
	for attempt := uint32(1); ; attempt++ {
		began := time.Now()
		probes, cancel := context.WithCancel(ctx)
		unhealthy := p.probe(probes, pc, ct)
		st, err := p.ended(ctx, ct.id)
		cancel()
		if err != nil {
			return 0, err
		}
		failed := <-unhealthy || st.GetExitCode() != 0
		p.say("container %s  %s ended with %d, %s\n", short(ct.id), ct.name, st.GetExitCode(), st.GetReason())
		if !p.restarts(failed) {
			return st.GetExitCode(), nil
		}
		for restarted := false; !restarted; {
			if d := wait.after(time.Since(began)); d > 0 {
				p.say("container %s is restarted in %s\n", ct.name, d)
				if !pause(ctx, d) {
					return 0, ctx.Err()
				}
			}
			if before != "" {
				if err := p.patiently(ctx, func() error {
					_, err := p.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: before})
					return err
				}); err != nil {
					p.say("container %s: an earlier attempt is left: %v\n", ct.name, client.Explain(err))
				}
				before = ""
			}
			began = time.Now()
			next, err := p.start(ctx, pc, attempt)
			if err != nil {
				if err := p.gone(ctx, err); err != nil {
					return 0, err
				}
				p.say("%v\n", client.Explain(err))
				attempt++
				continue
			}
			before, ct, restarted = ct.id, next, true
		}
	}
}

// gone returns why a container cannot be started any more at all: ctx has ended, or the pod has. It
// is nil if another try makes sense.
func (p *player) gone(ctx context.Context, why error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var st *runtimeapi.PodSandboxStatusResponse
	if err := p.patiently(ctx, func() (err error) {
		st, err = p.client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.pod})
		return err
	}); err != nil {
		return fmt.Errorf("%w; and the pod cannot be asked about: %w", why, err)
	}
	if st.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
		return fmt.Errorf("pod %s has ended: %w", p.plan.Name, why)
	}
	return nil
}

// probe runs the probes of a container until ctx ends. The result is sent then: whether the
// container was stopped because it is unhealthy.
func (p *player) probe(ctx context.Context, pc manifest.Container, ct played) <-chan bool {
	result := make(chan bool, 1)
	go func() {
		stopped := false
		defer func() { result <- stopped }()
		with := func(probe *corev1.Probe) *prober { return &prober{p.client, ct.id, p.ip, probe} }
		stop := func(what string, why error) {
			p.say("container %s  %s: its %s probe fails and it is stopped: %v\n", short(ct.id), ct.name, what, why)
			stopped = true
			if err := p.patiently(ctx, func() error {
				_, err := p.client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: ct.id, Timeout: p.plan.Grace})
				return err
			}); err != nil && ctx.Err() == nil {
				p.say("container %s: %v\n", ct.name, client.Explain(err))
			}
		}
		if pc.Probes.Startup != nil {
			started := false
			with(pc.Probes.Startup).watch(ctx, func(healthy bool, why error) bool {
				if started = healthy; !healthy {
					stop("startup", why)
				}
				return false
			})
			if !started {
				return
			}
			p.say("container %s  %s has started\n", short(ct.id), ct.name)
		}
		var g errgroup.Group
		if pc.Probes.Readiness != nil {
			g.Go(func() error {
				with(pc.Probes.Readiness).watch(ctx, func(healthy bool, why error) bool {
					if healthy {
						p.say("container %s  %s is ready\n", short(ct.id), ct.name)
					} else {
						p.say("container %s  %s is not ready: %v\n", short(ct.id), ct.name, why)
					}
					return true
				})
				return nil
			})
		}
		if pc.Probes.Liveness != nil {
			with(pc.Probes.Liveness).watch(ctx, func(healthy bool, why error) bool {
				if !healthy {
					stop("liveness", why)
				}
				return healthy
			})
		}
		_ = g.Wait() // they return nil
	}()
	return result
}
