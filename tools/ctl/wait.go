// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
)

const (
	// defaultPatience is how long a command waits before it prints the cause.
	defaultPatience = 2 * time.Second
	// lookAgain is how often it then checks for a new cause.
	lookAgain = time.Second
	// exitInterrupted is the exit code of a command that Ctrl-C ended: 128 plus SIGINT, as shells
	// have it.
	exitInterrupted = 130
)

// waiter tells a person the cause of a delay of a call on an object.
type waiter struct {
	client      *client.Client
	object      object
	out         io.Writer
	after       time.Duration // how long it stays silent
	interrupted string        // the state of the object if the person stops waiting
}

// wait calls f, which ends when ctx ends, and prints the cause if that takes long. If the person
// stops waiting, the error explains which work goes on.
func (w *waiter) wait(ctx context.Context, f func() error) error {
	watching, done := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.watch(watching) })
	err := f()
	done()
	wg.Wait()
	if err != nil && ctx.Err() != nil {
		return exitError{exitInterrupted, errors.New("interrupted: " + w.interrupted)}
	}
	return err
}

// watch prints the cause of the delay whenever that changes, until ctx ends.
func (w *waiter) watch(ctx context.Context) {
	t := time.NewTimer(w.after)
	defer t.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if text, err := w.look(ctx); err == nil && text != last {
			fmt.Fprintln(w.out, text)
			last = text
		}
		t.Reset(lookAgain)
	}
}

// look returns the pending work of the object, one item a line.
func (w *waiter) look(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookAgain)
	defer cancel()
	units, err := w.units(ctx)
	if err != nil {
		return "", err
	}
	lanes, err := w.client.Node.Lanes(ctx, &berthv1.LanesRequest{})
	if err != nil {
		return "", err
	}
	var lines []string
	for _, u := range units {
		own := slices.DeleteFunc(slices.Clone(lanes.GetLanes()), func(l *berthv1.Lane) bool { return !strings.HasPrefix(l.GetId(), u.id) })
		switch {
		case len(own) > 0:
			for _, l := range own {
				lines = append(lines, "waiting for "+u.text+": "+explainLane(l))
			}
		case u.running:
			lines = append(lines, "waiting for "+u.text+": its process has not ended yet")
		}
	}
	if len(lines) == 0 {
		lines = []string{fmt.Sprintf("waiting for %s %s", w.object.kind(), w.object.name)}
	}
	return strings.Join(lines, "\n"), nil
}

// unitText is a sandbox or container of an object, for a person to read.
type unitText struct {
	id, text string
	running  bool
}

// units are the parts of an object: the containers of a pod, and the pod's sandbox.
func (w *waiter) units(ctx context.Context) ([]unitText, error) {
	o, f := w.object, &runtimeapi.ContainerFilter{}
	if o.pod {
		f.PodSandboxId = o.id
	} else {
		f.Id = o.id
	}
	list, err := w.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: f})
	if err != nil {
		return nil, err
	}
	var units []unitText
	for _, ct := range list.GetContainers() {
		units = append(units, unitText{
			id:      ct.GetId(),
			text:    fmt.Sprintf("container %s (%s)", ct.GetMetadata().GetName(), short(ct.GetId())),
			running: ct.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING,
		})
	}
	if o.pod {
		units = append(units, unitText{id: o.id, text: fmt.Sprintf("pod %s (%s)", o.name, short(o.id))})
	}
	return units, nil
}

// explainLane describes the state of a lane, and the error of its last attempt.
func explainLane(l *berthv1.Lane) string {
	at := func(t *timestamppb.Timestamp) string { return t.AsTime().Local().Format(time.TimeOnly) }
	var text string
	switch {
	case l.GetState() == "backing off":
		text = fmt.Sprintf("attempt %d to %s failed, the next one is at %s", l.GetTries(), l.GetHead(), at(l.GetUntil()))
	case l.GetTries() == 0:
		text = fmt.Sprintf("the first attempt to %s is about to begin", l.GetHead())
	default:
		text = fmt.Sprintf("attempt %d to %s goes on since %s", l.GetTries(), l.GetHead(), at(l.GetSince()))
	}
	if l.GetError() != "" {
		text += "; last error: " + oneLine(l.GetError())
	}
	return text
}
