// SPDX-License-Identifier: Apache-2.0

// Package browser tells the story of a node, for tests of the page of its history, and its own
// tests open that page in a browser.
package browser

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	berthv1 "berth/api/berth/v1"
	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/serve/nodeapi"
)

// Story is a sequence of events on a node, told in any order.
type Story struct {
	told []told
	ids  int
}

type told struct {
	of event.Names
	event.Entry
}

// Tell adds an event.
func (s *Story) Tell(at time.Time, id string, of event.Names, e event.Event) {
	s.told = append(s.told, told{of, event.Entry{At: clock.Stamped(at), ID: id, Event: e}})
}

// Records returns the events in the form of the API.
func (s *Story) Records() []*berthv1.Record {
	slices.SortStableFunc(s.told, func(x, y told) int { return x.At.Compare(y.At) })
	out := make([]*berthv1.Record, 0, len(s.told))
	for i, t := range s.told {
		raw, err := json.Marshal(t.Entry)
		if err != nil {
			panic(err)
		}
		out = append(out, &berthv1.Record{Number: uint64(i + 1), Of: nodeapi.Names(t.of), Entry: string(raw)})
	}
	return out
}

// Pod is a pod of a story.
type Pod struct {
	s     *Story
	ID    string
	Names event.Names
	tries map[string]uint32
}

func (s *Story) id() string {
	s.ids++
	return strings.Repeat(fmt.Sprintf("%016x", uint64(s.ids)*0x9e3779b97f4a7c15), 4)
}

var kubelet = event.Client{Pid: 812, Name: "kubelet"}

// Pod makes a pod, with its image pulled.
func (s *Story) Pod(at time.Time, namespace, name, image string) *Pod {
	p := &Pod{s: s, ID: s.id(), tries: map[string]uint32{}}
	p.Names = event.Names{Namespace: namespace, Pod: name, UID: fmt.Sprintf("%08x-4f1c-4c2a-9d55-%012x", s.ids*7919, s.ids)}
	s.Tell(at.Add(300*time.Millisecond), p.ID, p.Names, event.SandboxReady{Names: p.Names, By: kubelet, Took: 280 * time.Millisecond})
	if image != "" {
		s.Tell(at.Add(400*time.Millisecond), p.ID, p.Names, event.PullBegan{By: kubelet, Image: image})
		s.Tell(at.Add(6*time.Second), p.ID, p.Names, event.ImagePulled{Image: image, Took: 5600 * time.Millisecond})
	}
	return p
}

// Container is a container of a story.
type Container struct {
	p     *Pod
	ID    string
	Names event.Names
}

// Start makes and starts a container.
func (p *Pod) Start(at time.Time, name string) *Container {
	c := &Container{p: p, ID: p.s.id(), Names: p.Names}
	c.Names.Sandbox, c.Names.Container, c.Names.Attempt = p.ID, name, p.tries[name]
	p.tries[name]++
	c.tell(at.Add(60*time.Millisecond), event.ContainerCreated{Names: c.Names, By: kubelet, Took: 52 * time.Millisecond})
	c.tell(at.Add(220*time.Millisecond), event.ContainerRunning{By: kubelet, Pid: uint32(4000 + p.s.ids), Took: 148 * time.Millisecond})
	return c
}

func (c *Container) tell(at time.Time, e event.Event) { c.p.s.Tell(at, c.ID, c.Names, e) }

// Exit returns an end that was measured.
func Exit(at time.Time, code uint32) event.Exit {
	e := event.Exit{Code: code, Measured: true, Reason: exit.ReasonError, Witness: exit.Kernel, Ended: clock.Stamped(at)}
	if code == 0 {
		e.Reason = exit.ReasonCompleted
	}
	return e
}

// OOM returns an end by the OOM killer.
func OOM(at time.Time) event.Exit {
	return event.Exit{Code: 137, Measured: true, Reason: exit.ReasonOOMKilled, Witness: exit.Kernel, Ended: clock.Stamped(at), OOM: true, Limit: exit.LimitContainer}
}

// End ends a container, and releases its holds, except for those that wait for its removal.
func (c *Container) End(e event.Exit) {
	at := e.Ended.Stamp()
	c.tell(at.Add(time.Millisecond), event.ExitReported{Exit: e})
	c.tell(at.Add(3*time.Millisecond), event.ExitSettled{Exit: e, Lag: 3 * time.Millisecond})
	c.tell(at.Add(4*time.Millisecond), event.ExitReported{Exit: event.Exit{Code: e.Code, Measured: true, Reason: e.Reason, Witness: exit.Stream, Ended: clock.Stamped(at)}})
	c.tell(at.Add(60*time.Millisecond), event.Released{What: []string{"task", "stdio"}, Holds: []string{"container", "snapshot", "files"}})
}

// Crash makes an end one of a series.
func (c *Container) Crash(e, first event.Exit, count int, log ...string) {
	c.tell(e.Ended.Stamp().Add(30*time.Millisecond), event.ContainerCrashed{
		Names: c.Names,
		Count: count,
		First: event.Crash{Exit: first},
		Last:  event.Crash{Exit: e, Attempt: c.Names.Attempt, Log: log, Memory: 61 << 20, CPU: 380 * time.Millisecond},
	})
}

// Stop asks for the end of a container.
func (c *Container) Stop(at time.Time, pod bool) {
	c.tell(at, event.StopRequested{By: kubelet, Pod: pod, Timeout: 30 * time.Second})
}

// Remove removes a container.
func (c *Container) Remove(at time.Time) {
	c.tell(at, event.RemovalRequested{By: kubelet})
	c.tell(at.Add(40*time.Millisecond), event.Released{What: []string{"container", "snapshot", "files"}})
	c.tell(at.Add(42*time.Millisecond), event.Removed{})
}

// Hang makes a release fail again and again.
func (c *Container) Hang(from, to time.Time, err string) {
	wait := time.Second
	for at, n := from, 1; at.Before(to); at, n = at.Add(wait), n+1 {
		c.tell(at, event.AttemptFailed{Step: "release", Attempt: n, Err: err})
		wait = min(2*wait, 10*time.Minute)
	}
}

// Stop stops and removes a pod with its containers.
func (p *Pod) Stop(at time.Time, cts ...*Container) {
	for _, c := range cts {
		c.Stop(at, false)
		c.End(Exit(at.Add(700*time.Millisecond), 0))
	}
	p.s.Tell(at.Add(time.Second), p.ID, p.Names, event.StopRequested{By: kubelet})
	e := Exit(at.Add(1100*time.Millisecond), 0)
	p.s.Tell(at.Add(1101*time.Millisecond), p.ID, p.Names, event.ExitSettled{Exit: e})
	for _, c := range cts {
		c.Remove(at.Add(2 * time.Second))
	}
	p.s.Tell(at.Add(3*time.Second), p.ID, p.Names, event.RemovalRequested{By: kubelet})
	p.s.Tell(at.Add(3200*time.Millisecond), p.ID, p.Names, event.Released{What: []string{"network", "files"}})
	p.s.Tell(at.Add(3201*time.Millisecond), p.ID, p.Names, event.Removed{})
}

// Loop lets a container crash again and again, with the waits of a kubelet, and returns the last.
func (p *Pod) Loop(from, to time.Time, name string, end func(time.Time) event.Exit, log ...string) *Container {
	var c, before *Container
	var first event.Exit
	wait := 10 * time.Second
	for at, n := from, 1; at.Before(to); n++ {
		c = p.Start(at, name)
		e := end(at.Add(time.Duration(1200+n%7*300) * time.Millisecond))
		if n == 1 {
			first = e
		}
		c.End(e)
		c.Crash(e, first, n, log...)
		if before != nil {
			before.Remove(e.Ended.Stamp().Add(time.Second))
		}
		before = c
		at = e.Ended.Stamp().Add(wait)
		wait = min(2*wait, 5*time.Minute)
	}
	return c
}

// Day tells a day of a node with many pods: most go on, some come and go, a twentieth crash all
// day, and as many have been killed by the OOM killer again and again.
func Day(began time.Time, pods int) *Story {
	s := &Story{}
	end := began.Add(24 * time.Hour)
	r := rand.New(rand.NewPCG(1, 2)) // the same day each time
	spaces := []string{"default", "kube-system", "payments", "shop", "batch"}
	log := []string{"connecting to postgres.payments.svc:5432", "dial tcp 10.96.4.20:5432: connect: connection refused", "giving up after 3 attempts"}
	s.Tell(began.Add(-time.Minute), "", event.Names{}, event.BerthStarted{Version: "v1.4.0", Boot: "a", After: event.AfterStop})
	for i := range pods {
		ns := spaces[r.IntN(len(spaces))]
		at := began.Add(time.Duration(r.IntN(3600)) * time.Second)
		switch i % 10 {
		case 0: // crashes
			p := s.Pod(at, ns, fmt.Sprintf("api-%04x-%03d", r.IntN(1<<16), i), "registry.example/api:1.9")
			p.Start(at.Add(7*time.Second), "proxy")
			code := uint32(1 + r.IntN(3))
			if i%20 != 0 {
				p.Start(at.Add(8*time.Second), "api")
				continue
			}
			p.Loop(at.Add(8*time.Second), end, "api", func(at time.Time) event.Exit { return Exit(at, code) }, log...)
		case 1, 2: // comes and goes
			for at.Before(end.Add(-time.Hour)) {
				p := s.Pod(at, ns, fmt.Sprintf("report-%d-%03d", at.Unix()/600, i), "")
				c := p.Start(at.Add(time.Second), "job")
				at = at.Add(time.Duration(60+r.IntN(1800)) * time.Second)
				p.Stop(at, c)
				at = at.Add(3 * time.Hour)
			}
		case 3:
			p := s.Pod(at, ns, fmt.Sprintf("cache-%04x-%03d", r.IntN(1<<16), i), "registry.example/cache:7")
			if i%20 == 3 {
				p.Loop(at.Add(7*time.Second), began.Add(8*time.Hour), "cache", OOM, "loading 48213 keys", "Killed")
			}
			p.Start(began.Add(9*time.Hour), "cache")
		default:
			p := s.Pod(at, ns, fmt.Sprintf("web-%04x-%03d", r.IntN(1<<16), i), "registry.example/web:3.2")
			p.Start(at.Add(7*time.Second), "web")
			p.Start(at.Add(7*time.Second), "sidecar")
		}
	}
	return s
}

// Troubles tells two hours with one of each trouble that the page is for.
func Troubles(began time.Time) *Story {
	s := &Story{}
	at := func(m float64) time.Time { return began.Add(time.Duration(m * float64(time.Minute))) }
	end := at(120)
	node := func(at time.Time, e event.Event) { s.Tell(at, "", event.Names{}, e) }
	node(at(0.1), event.BerthStarted{Version: "v1.4.0", Boot: "a", After: event.AfterStop})

	s.Pod(at(1), "kube-system", "coredns-7db6d8ff4d-2xk9p", "registry.example/coredns:1.12").Start(at(1.2), "coredns")
	proxy := s.Pod(at(1), "kube-system", "kube-proxy-x2x9p", "")
	proxy.Start(at(1.05), "kube-proxy")

	shop := s.Pod(at(4), "shop", "frontend-6c9f7b8d5c-m4x7z", "registry.example/frontend:2.1")
	shop.Start(at(4.2), "nginx")
	shop.Start(at(4.2), "app")
	shop.Start(at(4.3), "metrics")

	loop := s.Pod(at(10), "payments", "api-5f7d8c9b6d-kx2lp", "registry.example/api:1.9")
	loop.Start(at(10.2), "proxy")
	loop.Loop(at(10.3), end, "api", func(at time.Time) event.Exit { return Exit(at, 1) },
		"2026-11-23T20:01:11Z INFO  starting api 1.9.2", "2026-11-23T20:01:11Z INFO  connecting to postgres.payments.svc:5432",
		"2026-11-23T20:01:12Z ERROR dial tcp 10.96.4.20:5432: connect: connection refused", "2026-11-23T20:01:12Z FATAL giving up after 3 attempts")

	oom := s.Pod(at(20), "shop", "search-0", "registry.example/search:8")
	hog := oom.Start(at(20.5), "search")
	hog.tell(at(31), event.OOMKillSurvived{Kills: 1, Limit: exit.LimitContainer})
	e := OOM(at(44))
	hog.End(e)
	hog.Crash(e, e, 1, "indexing shard 7 of 12", "indexing shard 8 of 12")
	hog = oom.Start(at(44.3), "search")
	e2 := OOM(at(71))
	hog.End(e2)
	hog.Crash(e2, e, 2, "indexing shard 8 of 12", "indexing shard 9 of 12")
	oom.Start(at(71.5), "search")

	probe := s.Pod(at(12), "shop", "checkout-79b5f6c8d4-q8dwz", "registry.example/checkout:4")
	for m := 12.2; m < 100; m += 22 {
		c := probe.Start(at(m), "checkout")
		c.Stop(at(m+20), false)
		killed := Exit(at(m+20.5), 137)
		c.End(killed)
	}
	probe.Start(at(100.5), "checkout")

	hung := s.Pod(at(8), "batch", "import-nightly", "registry.example/import:1")
	c := hung.Start(at(8.3), "import")
	c.Stop(at(62), true)
	s.Tell(at(62), hung.ID, hung.Names, event.StopRequested{By: kubelet, Timeout: 30 * time.Second})
	c.tell(at(62.1), event.ExitSettled{Exit: Exit(at(62.1), 143), Lag: 2 * time.Millisecond})
	c.Hang(at(62.11), end, "release task: delete task: unmount rootfs: device or resource busy")

	pull := s.Pod(at(80), "payments", "ledger-migrate", "")
	for m := 80.1; m < 118; m += 9 {
		s.Tell(at(m), pull.ID, pull.Names, event.PullBegan{By: kubelet, Image: "registry.example/ledger:2.0.0-rc"})
		s.Tell(at(m+0.8), pull.ID, pull.Names, event.ImageNotPulled{Image: "registry.example/ledger:2.0.0-rc", Took: 48 * time.Second, Err: "registry.example/ledger:2.0.0-rc: not found"})
	}

	done := s.Pod(at(30), "batch", "backup-28811", "registry.example/backup:3")
	job := done.Start(at(30.3), "dump")
	job.End(Exit(at(47), 0))

	for _, k := range []struct {
		at  float64
		how string
	}{{52, event.AfterKill}, {90, event.AfterStop}} {
		if k.how == event.AfterStop {
			node(at(k.at-0.4), event.BerthStopped{})
		}
		node(at(k.at), event.BerthStarted{Version: "v1.4.1", Boot: "a", After: k.how})
	}
	node(at(97), event.ContainerdLost{Err: "read unix @->/run/containerd/containerd.sock: EOF"})
	return s
}

// Workloads adds pods of workloads, as controllers name them, of which one Deployment is killed by
// the OOM killer again and again.
func (s *Story) Workloads(began time.Time, pods int) {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	r := rand.New(rand.NewPCG(3, 4))
	random := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = letters[r.IntN(len(letters))]
		}
		return string(b)
	}
	hash := map[string]string{}
	for i := range pods {
		at := began.Add(time.Duration(30+r.IntN(1800)) * time.Second)
		if i%4 == 0 {
			p := s.Pod(at, "search", "ranker-7c5d8f9b6d-"+random(5), "registry.example/search/ranker:2.14.0")
			if i < 68 {
				p.Loop(at.Add(8*time.Second), at.Add(15*time.Second), "ranker", OOM, "loading the model", "Killed")
			}
			p.Start(at.Add(time.Minute), "ranker")
			continue
		}
		name := fmt.Sprintf("service-%02d", i%23)
		if hash[name] == "" {
			hash[name] = random(10)
		}
		p := s.Pod(at, "shop", name+"-"+hash[name]+"-"+random(5), "registry.example/shop/"+name+":1.4.2")
		p.Start(at.Add(7*time.Second), "app")
		if i%3 == 0 {
			p.Start(at.Add(7*time.Second), "proxy")
		}
	}
}
