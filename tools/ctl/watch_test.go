// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/tools/manifest"
)

// direct calls a fake without a socket, so that a test may have virtual time.
type direct struct {
	runtimeapi.RuntimeServiceClient // nil: any other call panics
	f                               *fake
	healthy                         func() bool // what ExecSync finds
}

func (d *direct) CreateContainer(ctx context.Context, r *runtimeapi.CreateContainerRequest, _ ...grpc.CallOption) (*runtimeapi.CreateContainerResponse, error) {
	return d.f.CreateContainer(ctx, r)
}

func (d *direct) StartContainer(ctx context.Context, r *runtimeapi.StartContainerRequest, _ ...grpc.CallOption) (*runtimeapi.StartContainerResponse, error) {
	return d.f.StartContainer(ctx, r)
}

func (d *direct) StopContainer(ctx context.Context, r *runtimeapi.StopContainerRequest, _ ...grpc.CallOption) (*runtimeapi.StopContainerResponse, error) {
	return d.f.StopContainer(ctx, r)
}

func (d *direct) RemoveContainer(ctx context.Context, r *runtimeapi.RemoveContainerRequest, _ ...grpc.CallOption) (*runtimeapi.RemoveContainerResponse, error) {
	return d.f.RemoveContainer(ctx, r)
}

func (d *direct) ContainerStatus(ctx context.Context, r *runtimeapi.ContainerStatusRequest, _ ...grpc.CallOption) (*runtimeapi.ContainerStatusResponse, error) {
	return d.f.ContainerStatus(ctx, r)
}

func (d *direct) PodSandboxStatus(ctx context.Context, r *runtimeapi.PodSandboxStatusRequest, _ ...grpc.CallOption) (*runtimeapi.PodSandboxStatusResponse, error) {
	return d.f.PodSandboxStatus(ctx, r)
}

func (d *direct) ExecSync(context.Context, *runtimeapi.ExecSyncRequest, ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error) {
	if d.healthy() {
		return &runtimeapi.ExecSyncResponse{}, nil
	}
	return &runtimeapi.ExecSyncResponse{ExitCode: 1, Stderr: []byte("no answer\n")}, nil
}

// watched is a pod with one container, app, that is being watched.
func watched(t *testing.T, spec string) (*player, *direct, *lines) {
	t.Helper()
	pod, err := manifest.Parse([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n" + spec))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := manifest.Translate(pod, manifest.Options{UID: "u", Watched: true})
	if err != nil {
		t.Fatal(err)
	}
	d := &direct{f: newFake(), healthy: func() bool { return true }}
	d.f.addPod("pod0", "default", "p")
	out := &lines{}
	return &player{client: &client.Client{RuntimeServiceClient: d}, plan: plan, out: out, pod: "pod0", watched: true}, d, out
}

// watch starts app and watches it.
func (p *player) startAndWatch(t *testing.T, ctx context.Context) (int32, error) {
	t.Helper()
	ct, err := p.start(ctx, p.plan.Containers[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	p.containers = []played{ct}
	return p.watch(ctx)
}

func TestWatchRestartsAsThePodAsks(t *testing.T) {
	for _, c := range []struct {
		policy corev1.RestartPolicy
		code   int32
		starts int // within an hour
	}{
		{corev1.RestartPolicyNever, 3, 1},
		{corev1.RestartPolicyOnFailure, 0, 1},
		{corev1.RestartPolicyOnFailure, 3, 17},
		{corev1.RestartPolicyAlways, 0, 17}, // 0, 10, 20, 40, 80, 160, 300, 300 ... seconds apart
	} {
		t.Run(fmt.Sprint(c.policy, c.code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, d, out := watched(t, fmt.Sprintf("  restartPolicy: %s\n  containers: [{name: app, image: a}]\n", c.policy))
				d.f.ends["app"] = c.code
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				code, err := p.startAndWatch(t, ctx)
				if c.starts == 1 && (code != c.code || err != nil) || c.starts > 1 && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %d, %v", code, err)
				}
				if n := len(d.f.created); n != c.starts {
					t.Errorf("it was started %d times, not %d:\n%s", n, c.starts, out)
				}
				for i, cfg := range d.f.created {
					if cfg.GetMetadata().GetAttempt() != uint32(i) || cfg.GetLogPath() != fmt.Sprintf("app/%d.log", i) {
						t.Errorf("attempt %d is %v with its log at %s", i, cfg.GetMetadata(), cfg.GetLogPath())
					}
				}
				// All but the last two attempts are removed.
				removed := slices.DeleteFunc(slices.Clone(d.f.calls), func(s string) bool { return !strings.HasPrefix(s, "remove ") })
				if want := max(0, c.starts-2); len(removed) != want {
					t.Errorf("%d are removed, not %d", len(removed), want)
				}
			})
		})
	}
}

func TestWatchEndsWithThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, _ := watched(t, "  containers: [{name: app, image: a}]\n")
		d.f.ends["app"] = 1
		d.f.pods[0].State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		p.client = &client.Client{RuntimeServiceClient: &refusing{direct: d, after: 1}}
		_, err := p.startAndWatch(t, t.Context())
		says(t, "the error", fmt.Sprint(err), "pod p has ended")
	})
}

// refusing creates no container any more after the first ones.
type refusing struct {
	*direct
	after int
}

func (r *refusing) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest, _ ...grpc.CallOption) (*runtimeapi.CreateContainerResponse, error) {
	if r.after--; r.after < 0 {
		return nil, errors.New("sandbox pod0 is NOTREADY")
	}
	return r.f.CreateContainer(ctx, req)
}

// berth was restarted, and play took the first call that was not answered for the end: the pod went
// on without probes, and the probe that was cut off counted as a failure.
func TestWatchGoesOnWhenBerthIsRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, out := watched(t, "  restartPolicy: OnFailure\n"+strings.ReplaceAll(probed, "failureThreshold: 4", "failureThreshold: 1"))
		began := time.Now()
		within := func(from, to time.Duration) func() bool {
			return func() bool { return time.Since(began) > from && time.Since(began) < to }
		}
		p.client = &client.Client{RuntimeServiceClient: &restarted{
			direct: d,
			away:   within(20*time.Second, 30*time.Second),
			stops:  within(50*time.Second, 65*time.Second),
		}}
		d.healthy = func() bool { return !within(55*time.Second, 65*time.Second)() }
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if _, err := p.startAndWatch(t, ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("play ended: %v", err)
		}
		got := out.String()
		before, after, _ := strings.Cut(got, "its liveness probe fails")
		if strings.Count(got, "berth does not answer, the pod goes on") != 2 || strings.Contains(before, "ended") || strings.Count(before, "not ready") > 1 || !strings.Contains(after, "container ct1  app") {
			t.Errorf("play says\n%s", got)
		}
	})
}

// restarted answers no call while it is away, or none that stops.
type restarted struct {
	*direct
	away, stops func() bool
}

var errAway = status.Error(codes.Unavailable, "the socket of berth is not there")

func (r *restarted) ContainerStatus(ctx context.Context, req *runtimeapi.ContainerStatusRequest, _ ...grpc.CallOption) (*runtimeapi.ContainerStatusResponse, error) {
	if r.away() {
		return nil, errAway
	}
	return r.f.ContainerStatus(ctx, req)
}

func (r *restarted) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest, _ ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error) {
	if r.away() {
		return nil, errAway
	}
	return r.direct.ExecSync(ctx, req)
}

func (r *restarted) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest, _ ...grpc.CallOption) (*runtimeapi.StopContainerResponse, error) {
	if r.stops() {
		return nil, errAway
	}
	return r.f.StopContainer(ctx, req)
}

const probed = `
  terminationGracePeriodSeconds: 7
  containers:
  - name: app
    image: a
    startupProbe: {exec: {command: [up]}, periodSeconds: 5, failureThreshold: 4}
    readinessProbe: {exec: {command: [ready]}, periodSeconds: 1}
    livenessProbe: {exec: {command: [live]}, initialDelaySeconds: 3, periodSeconds: 2, failureThreshold: 4}
`

func TestWatchProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, out := watched(t, probed)
		began := time.Now()
		d.healthy = func() bool { // it starts in 12 seconds and is unhealthy from 30 to 40
			s := time.Since(began).Seconds()
			return s >= 12 && s < 30 || s > 40
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		_, _ = p.startAndWatch(t, ctx)
		got := out.String()
		at := 0
		says(t, "play", got, "container ct0  app is not ready: the command ended with 1: no answer")
		for _, want := range []string{
			"container ct0  app has started",
			"container ct0  app is ready",
			"container ct0  app: its liveness probe fails and it is stopped: the command ended with 1: no answer",
			"container ct0  app ended with 0",
			"container ct1  app\n", // the first restart comes at once
			"container ct1  app has started",
			"container ct1  app is ready",
		} {
			i := strings.Index(got[at:], want)
			if i < 0 {
				t.Fatalf("no %q in its place in\n%s", want, got)
			}
			at += i
		}
		if !slices.Contains(d.f.calls, "stop ct0 7") || len(d.f.created) != 2 {
			t.Errorf("got %q", d.f.calls)
		}
	})
}

func TestAStartupProbeThatFailsEndsTheContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d, out := watched(t, "  restartPolicy: Never"+probed)
		d.healthy = func() bool { return false }
		began := time.Now()
		_, err := p.startAndWatch(t, t.Context())
		if took := time.Since(began); err != nil || took < 15*time.Second || took > 16*time.Second { // the fourth attempt
			t.Errorf("after %s: %v", took, err)
		}
		says(t, "play", out.String(), "its startup probe fails and it is stopped")
	})
}

func TestAProbeNeedsWatch(t *testing.T) {
	_, problem, _, _ := play(t, newFake(), "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:"+probed)
	says(t, "play", problem, "spec.containers[0].livenessProbe", "--watch")
}
