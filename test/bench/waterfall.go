// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// phase is one call in the life of a pod, or the end of its container, with what went on inside
// berth, and which programs ran for it. All instants are milliseconds from its beginning.
type phase struct {
	Title string  `json:"title"`
	Took  float64 `json:"took"` // as the client sees it
	Bars  []bar   `json:"bars"`
}

// bar is one line of the picture.
type bar struct {
	What string  `json:"what"`
	Kind string  `json:"kind"` // spanBar, commitBar or programBar
	From float64 `json:"from"`
	To   float64 `json:"to"`
	// Open says that it goes on after To, in later phases.
	Open bool `json:"open,omitempty"`
}

const (
	spanBar    = "span"
	commitBar  = "commit"
	programBar = "program"
)

// shortest is the shortest bar that is drawn, in milliseconds.
const shortest = 0.1

// traced is a life of a pod while it is traced.
type traced struct {
	pod    string // its ID
	phases []tracedPhase
	ended  time.Time // of the time in which spans belong to the last phase
}

type tracedPhase struct {
	title      string
	began, end time.Time
}

func (t traced) took() (d time.Duration) {
	for _, p := range t.phases {
		d += p.end.Sub(p.began)
	}
	return d
}

// traceLives carries out lives of pods, one after the other, with pauses in which what a call left
// to do is done.
func (n *node) traceLives(ctx context.Context, count int) (lives []traced, err error) {
	for range count {
		var t traced
		var p pod
		var v victim
		cfg := n.podConfig()
		steps := []struct {
			title string
			call  func() error
		}{
			{"RunPodSandbox", func() (err error) { p, err = n.run(ctx, cfg, ""); t.pod = p.id; return err }},
			{"CreateContainer", func() (err error) {
				v.id, err = n.create(ctx, p, containerConfig("c", nil, sleeper...))
				return err
			}},
			{"StartContainer", func() error { return n.startContainer(ctx, v.id) }},
			{"", func() (err error) { v.pid, err = n.pid(ctx, v.id); return err }},
			{"SIGKILL to EXITED, then release", func() error {
				if err := v.kill(); err != nil {
					return err
				}
				_, err := n.exited(ctx, v.id, time.Now())
				return err
			}},
			{"RemoveContainer", func() error {
				_, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: v.id})
				return err
			}},
			{"StopPodSandbox", func() error {
				_, err := n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id})
				return err
			}},
			{"RemovePodSandbox", func() error {
				_, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id})
				return err
			}},
		}
		for _, s := range steps {
			began := time.Now()
			if err := s.call(); err != nil {
				return nil, fmt.Errorf("%s: %w", s.title, err)
			}
			if s.title != "" {
				t.phases = append(t.phases, tracedPhase{s.title, began, time.Now()})
			}
			time.Sleep(4 * idlePause)
		}
		t.ended = time.Now()
		lives = append(lives, t)
	}
	return lives, nil
}

// waterfall measures where the milliseconds of berth go: the life of median length of some.
func (b *bench) waterfall(ctx context.Context) error {
	c, err := newCollector()
	if err != nil {
		return err
	}
	defer c.stop()
	programs := watchPrograms(b.build)
	defer programs.stop()
	var lives []traced
	k := kind{"berth, traced", func(n *node) ([]string, error) {
		command, err := prepareBerth(n)
		return append(command, "--set", "tracing.endpoint=http://"+c.address), err
	}}
	err = b.with(ctx, k, "one trace", []step{{"waterfall", func(ctx context.Context, n *node, _ record) (err error) {
		lives, err = n.traceLives(ctx, b.sizes.Traced)
		return err
	}, false}})
	if err != nil || len(lives) == 0 {
		return err
	}
	slices.SortFunc(lives, func(a, b traced) int { return cmp.Compare(a.took(), b.took()) })
	c.stop() // berth has ended, and has sent all
	b.results.Trace = lives[(len(lives)-1)/2].draw(append(c.all(), programs.all()...))
	return nil
}

// activity is a span of berth's or a program that ran.
type activity struct {
	what, kind string
	id         string // of the pod or container
	began, end time.Time
}

// draw puts each activity into the phase in which it began.
func (t traced) draw(all []activity) (phases []phase) {
	slices.SortStableFunc(all, func(a, b activity) int { return a.began.Compare(b.began) })
	for i, p := range t.phases {
		next := t.ended
		if i+1 < len(t.phases) {
			next = t.phases[i+1].began
		}
		ph := phase{Title: p.title, Took: ms(p.end.Sub(p.began))}
		for _, a := range all {
			if a.began.Before(p.began) || !a.began.Before(next) || ms(a.end.Sub(a.began)) < shortest {
				continue
			}
			what := a.what
			if a.id == t.pod {
				what += ", pod"
			}
			b := bar{What: what, Kind: a.kind, From: ms(a.began.Sub(p.began)), To: ms(a.end.Sub(p.began))}
			if a.end.After(next) { // a shim, or a logger
				b.To, b.Open = max(ph.Took, b.From), true
			}
			ph.Bars = append(ph.Bars, b)
		}
		phases = append(phases, ph)
	}
	return phases
}

// plotWaterfall draws a line for each bar.
func plotWaterfall(phases []phase) string {
	const (
		row   = 18.
		left  = 290.
		right = plotWidth - 90
	)
	rows, longest := 0, 0.
	for _, p := range phases {
		rows += 2 + len(p.Bars)
		longest = max(longest, p.Took)
		for _, b := range p.Bars {
			longest = max(longest, b.To)
		}
	}
	p := newPicture(plotWidth, plotTop+row*float64(rows)+24, "Where the milliseconds go",
		"the life of one pod with one container; each call begins at 0; what takes less than "+tick(shortest)+" is left out")
	x := 24.
	for _, k := range []struct{ class, what string }{
		{"call", "the call, as its client sees it"}, {spanBar, "a step of berth's"}, {commitBar, "a commit of its records, on disk when it ends"}, {programBar, "a program that ran"},
	} {
		p.rect(x, 66, 10, 10, k.class)
		p.text(x+16, 76, "faint", "start", k.what)
		x += 40 + 6.2*float64(len(k.what))
	}
	a := axis{to: longest, x0: left, x1: right}
	y := plotTop
	line := func(name, text, class string, b bar) {
		p.text(24, y+13, text, "start", name)
		p.rect(a.at(b.From), y+4, max(a.at(b.To)-a.at(b.From), 1), row-7, class)
		took := fmt.Sprintf("%.1f ms", b.To-b.From)
		if b.Open {
			took = "goes on"
		}
		p.text(a.at(b.To)+6, y+13, "faint", "start", took)
		y += row
	}
	for _, ph := range phases {
		y += row / 2
		p.line(12, y, plotWidth-12, y, "grid")
		y += row / 2
		line(ph.Title, "strong", "call", bar{To: ph.Took})
		for _, b := range ph.Bars {
			line("\u2003"+b.What, "", b.Kind, b)
		}
	}
	return p.end()
}
