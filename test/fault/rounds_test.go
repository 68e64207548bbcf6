// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// claim is what the test knows of one container, whatever berth says. It is found by the label of
// its number.
type claim struct {
	number  int
	long    bool  // runs until it is asked to end
	code    int32 // with which it ends
	started bool  // its start was answered
	stopped bool  // somebody may have killed it: a stop, a removal, or the end of its shim
}

// round is one kill -9 under churn.
type round struct {
	t    *testing.T
	n    *node.Node
	name string

	mu       sync.Mutex
	claims   []*claim
	shimDied bool
}

func (r *round) claim(rnd *rand.Rand) *claim {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &claim{number: len(r.claims), long: rnd.IntN(3) == 0, code: 1 + rnd.Int32N(99)}
	r.claims = append(r.claims, c)
	return c
}

func (r *round) note(edit func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	edit()
}

// churn makes pods, containers, stops and removals until ctx ends. What it asks for may fail, since
// somebody is being killed.
func (r *round) churn(ctx context.Context, rnd *rand.Rand) {
	for ctx.Err() == nil {
		cfg := r.n.PodConfig()
		if rnd.IntN(3) == 0 {
			cfg.PortMappings = []*runtimeapi.PortMapping{{HostPort: 20000 + rnd.Int32N(10000), ContainerPort: 80}}
		}
		made, err := r.n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
		if err != nil {
			continue
		}
		pod := made.GetPodSandboxId()
		var claims []*claim
		for range 1 + rnd.IntN(2) {
			c := r.claim(rnd)
			claims = append(claims, c)
			script := fmt.Sprintf("exit %d", c.code)
			if c.long {
				script = exitOnTerm(int(c.code))
			} else if rnd.IntN(2) == 0 {
				script = "sleep 0.3; " + script
			}
			cc := node.ContainerConfig(fmt.Sprint("c", c.number), "sh", "-c", script)
			cc.Labels["claim"] = strconv.Itoa(c.number)
			made, err := r.n.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, SandboxConfig: cfg, Config: cc})
			if err != nil {
				continue
			}
			if _, err := r.n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: made.GetContainerId()}); err == nil {
				r.note(func() { c.started = true })
			}
		}
		ask := rnd.IntN(4)
		if ask < 2 {
			r.note(func() {
				for _, c := range claims {
					c.stopped = true
				}
			})
		}
		switch ask {
		case 0:
			_, _ = r.n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
		case 1:
			_, _ = r.n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
		}
	}
}

// check compares what berth says of every container with what is known, and returns what it said.
func (r *round) check() map[string]*runtimeapi.ContainerStatus {
	r.t.Helper()
	said := map[string]*runtimeapi.ContainerStatus{}
	r.n.Until(r.name+": every short container is EXITED", func() bool {
		clear(said)
		list, err := r.n.ListContainers(r.t.Context(), &runtimeapi.ListContainersRequest{})
		if err != nil {
			r.t.Fatal(err)
		}
		for _, c := range list.GetContainers() {
			resp, err := r.n.ContainerStatus(r.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()})
			if err != nil {
				continue // a removal that was asked for goes on
			}
			st := resp.GetStatus()
			if st.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING && !r.of(st).long {
				return false
			}
			said[c.GetId()] = st
		}
		return true
	})
	names := map[string]string{}
	for id, st := range said {
		if why := r.wrong(st); why != "" {
			r.t.Errorf("%s: container %s: %s: %v\n%s", r.name, id, why, st, timeline(r.t, r.n, id))
		}
		name := st.GetLabels()["claim"]
		if other, taken := names[name]; taken {
			r.t.Errorf("%s: containers %s and %s are the same one", r.name, id, other)
		}
		names[name] = id
	}
	return said
}

func (r *round) of(st *runtimeapi.ContainerStatus) *claim {
	k, err := strconv.Atoi(st.GetLabels()["claim"])
	if err != nil || k >= len(r.claims) {
		r.t.Fatalf("%s: nobody asked for %v", r.name, st)
	}
	return r.claims[k]
}

// wrong returns what contradicts what is known of a container.
func (r *round) wrong(st *runtimeapi.ContainerStatus) string {
	c := r.of(st)
	killed := c.stopped || r.shimDied
	switch st.GetState() {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		if c.started {
			return "it was started"
		}
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		if !c.long {
			return "it has ended"
		}
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		switch code := st.GetExitCode(); {
		case code == c.code && st.GetReason() == "Error" && (!c.long || c.stopped):
		case code == 137 && st.GetReason() == "Error" && killed:
		case code == 137 && st.GetReason() == "Error" && !c.started && strings.HasPrefix(st.GetMessage(), "its start failed"):
			// containerd was killed with the start under way, so no shim could answer whether the
			// program ran by the time that berth killed it.
		case code == 128 && st.GetReason() == "StartError" && !c.started:
		case code == 255 && st.GetReason() == "Error" && !c.started:
			// runc's own init, which ends so when its runc is killed with the start. Nobody can
			// distinguish it from the program's.
		case code == 255 && st.GetReason() == "Unknown" && !r.n.Exact():
		default:
			return fmt.Sprintf("ended with %d %s, want %d (%+v)", code, st.GetReason(), c.code, c)
		}
	default:
		return "its state is not known"
	}
	return ""
}

// same expects that what berth once reported of an exit does not change.
func (r *round) same(before, after map[string]*runtimeapi.ContainerStatus) {
	r.t.Helper()
	for id, st := range before {
		now, there := after[id]
		if st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || !there {
			continue
		}
		if now.GetExitCode() != st.GetExitCode() || now.GetReason() != st.GetReason() || now.GetFinishedAt() != st.GetFinishedAt() || now.GetState() != st.GetState() {
			r.t.Errorf("%s: %s was %v and is %v", r.name, id, st, now)
		}
	}
}

// kill -9 at random instants under churn, of berth, of containerd, of both, of shims: nothing is
// unknown that could be known, nothing exists twice, no code is lost, wrong or changes, what runs
// goes on running, and once all is removed nothing is left.
func TestKill9AtRandomInstants(t *testing.T) {
	both(t, quick, func(t *testing.T, n *node.Node, _ *faults) {
		victims := []string{"berth", "shims"}
		if n.Containerd != nil {
			victims = []string{"berth", "containerd", "both", "shims"}
		}
		rnd := seeded(t)
		for i := range times(t, 8) {
			victim := victims[i%len(victims)]
			r := &round{t: t, n: n, name: fmt.Sprintf("round %d, %s", i, victim), shimDied: victim == "shims"}
			r.run(rnd, victim)
			if t.Failed() {
				t.Fatal(r.name)
			}
		}
	})
}

func (r *round) run(rnd *rand.Rand, victim string) {
	n, ctx := r.n, r.t.Context()
	churning, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range 3 {
		own := rand.New(rand.NewPCG(rnd.Uint64(), rnd.Uint64()))
		wg.Go(func() { r.churn(churning, own) })
	}
	pause := func(most time.Duration) { time.Sleep(time.Duration(rnd.Int64N(int64(most)))) }
	pause(1200 * time.Millisecond)
	switch victim {
	case "shims":
		for range 3 {
			for _, pid := range n.Shims() {
				if rnd.IntN(2) == 0 {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			pause(300 * time.Millisecond)
		}
	case "containerd":
		n.Containerd.Kill(syscall.SIGKILL)
		pause(400 * time.Millisecond)
		n.StartContainerd()
		n.Until("berth is connected again", n.Connected)
	case "berth", "both":
		n.Berth.Kill(syscall.SIGKILL)
		if victim == "both" {
			n.Containerd.Kill(syscall.SIGKILL)
			n.StartContainerd()
		}
	}
	stop()
	wg.Wait()
	if victim == "berth" || victim == "both" {
		pause(400 * time.Millisecond)
		for range rnd.IntN(3) { // also while it comes up
			p := n.SpawnBerth()
			pause(300 * time.Millisecond)
			p.Kill(syscall.SIGKILL)
		}
		n.StartBerth()
	}
	said := r.check()
	r.t.Logf("%s: %d containers were asked for, %d are there", r.name, len(r.claims), len(said))
	n.Berth.Kill(syscall.SIGKILL)
	n.StartBerth()
	again := r.check()
	r.same(said, again)
	for id, st := range again {
		if st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || !strings.Contains(n.Log(id), "ready") {
			continue
		}
		c := r.of(st)
		asked := c.stopped // a stop of its pod that was cut off may have killed it
		c.stopped = true
		if _, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 100}); err != nil {
			r.t.Errorf("%s: %v", r.name, err)
			continue
		}
		if now := n.Container(id); !r.shimDied && (!asked || now.GetExitCode() != 137) {
			node.ExpectExit(r.t, now, c.code, "Error")
		}
	}
	n.RemoveAll(ctx)
	n.NoLeaks(ctx)
}
