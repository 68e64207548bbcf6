// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// pollPause is the pause between two polls. Together with the duration of the call, it is the
	// resolution of an exit's time, the same for both daemons.
	pollPause = 200 * time.Microsecond
	// idlePause gives the work that a start leaves behind time to end, so that it is not measured
	// with the exit.
	idlePause = 50 * time.Millisecond
	// bound is how long an exit is watched.
	bound = time.Minute
)

// exits kills containers of one pod one after the other, and measures how long after its end each
// is known to have ended. ready, unless nil, waits until a container may be killed.
func (n *node) exits(ctx context.Context, count int, name string, rec record, ready func(victim) error, known func(context.Context, victim) error) error {
	pods, err := n.pods(ctx, 1, 1, "")
	if err != nil {
		return err
	}
	for i := range count {
		v, err := n.victim(ctx, pods[0], fmt.Sprintf("c%d", i))
		if err == nil && ready != nil {
			err = ready(v)
		}
		if err != nil {
			return err
		}
		time.Sleep(idlePause)
		if err := rec.time(name, func() error { return v.killed(ctx, known) }); err != nil {
			return err
		}
	}
	return nil
}

// killed kills v and waits until its end is known.
func (v victim) killed(ctx context.Context, known func(context.Context, victim) error) error {
	if err := v.kill(); err != nil {
		return err
	}
	return known(ctx, v)
}

// exited polls until a container is EXITED. It gives up after bound.
func (n *node) exited(ctx context.Context, v victim) error {
	for began := time.Now(); ctx.Err() == nil; {
		resp, err := n.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: v.id})
		if err != nil {
			return fmt.Errorf("status of container %s: %w", v.id, err)
		}
		switch took := time.Since(began); {
		case resp.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED || took > bound:
			return nil
		case took > time.Second: // a higher resolution would only take the processor from others
			time.Sleep(5 * time.Millisecond)
		default:
			time.Sleep(pollPause)
		}
	}
	return ctx.Err()
}

// events are events of containers, as they come.
type events <-chan *runtimeapi.ContainerEventResponse

// listen subscribes to container events until stop is called.
func (n *node) listen(ctx context.Context) (events, func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := n.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("subscribe to events: %w", err)
	}
	got, done := make(chan *runtimeapi.ContainerEventResponse, 10000), make(chan struct{})
	go func() {
		defer close(done)
		defer close(got)
		for ev, err := stream.Recv(); err == nil; ev, err = stream.Recv() {
			got <- ev
		}
	}()
	return got, func() { cancel(); <-done }, nil
}

// await reads events until one of this kind comes for this container.
func (e events) await(id string, kind runtimeapi.ContainerEventType) error {
	timeout := time.After(bound)
	for {
		select {
		case ev, ok := <-e:
			if !ok {
				return fmt.Errorf("the event stream ended before %s of container %s", kind, id)
			}
			if ev.GetContainerId() == id && ev.GetContainerEventType() == kind {
				return nil
			}
		case <-timeout:
			return fmt.Errorf("no %s of container %s within %s", kind, id, bound)
		}
	}
}

func (e events) started(v victim) error {
	return e.await(v.id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
}

func (e events) stopped(_ context.Context, v victim) error {
	return e.await(v.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// publishedExits measures when a subscriber gets the event of an exit. It does not poll.
func (n *node) publishedExits(ctx context.Context, count int, rec record) error {
	events, stop, err := n.listen(ctx)
	if err != nil {
		return err
	}
	defer stop()
	return n.exits(ctx, count, killToEvent, rec, events.started, events.stopped)
}

// exitsAtOnce starts containers, kills all of them at once, and polls the list of exited
// containers.
func (n *node) exitsAtOnce(ctx context.Context, ids []string, rec record) error {
	victims, err := n.startAll(ctx, ids)
	if err != nil {
		return err
	}
	time.Sleep(time.Second)
	began := time.Now()
	for _, v := range victims {
		if err := v.kill(); err != nil {
			return err
		}
	}
	filter := &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_EXITED}}
	seen := map[string]bool{}
	for len(seen) < len(victims) {
		resp, err := n.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: filter})
		if err != nil {
			return fmt.Errorf("list containers: %w", err)
		}
		took := time.Since(began)
		for _, c := range resp.GetContainers() {
			if !seen[c.GetId()] {
				seen[c.GetId()] = true
				rec.line(exitsAtOnce, took, "ns/op")
				if len(seen) == len(victims) {
					rec.line("ExitsAtOnce/last", took, "ns/op")
				}
			}
		}
		if took > bound {
			return fmt.Errorf("%d of %d containers are not EXITED %s after their end", len(victims)-len(seen), len(victims), bound)
		}
		time.Sleep(pollPause)
	}
	return nil
}

// stuckExits makes the deletion of containers hang. It measures when their own exits are visible,
// and then, while all of them hang, the exits of other containers.
func (n *node) stuckExits(ctx context.Context, watched, wedged, others int, rec record) (err error) {
	pods, err := n.pods(ctx, wedged, 4, "hanging")
	if err != nil {
		return err
	}
	var victims []victim
	for _, p := range pods {
		v, err := n.victim(ctx, p, "wedged")
		if err != nil {
			return err
		}
		victims = append(victims, v)
		if err := syscall.Mkfifo(n.dir+"/hang/"+v.id, 0o600); err != nil {
			return fmt.Errorf("make FIFO of container %s: %w", v.id, err)
		}
	}
	var wg sync.WaitGroup
	errs := make([]error, watched)
	defer func() {
		wg.Wait()
		err = errors.Join(err, errors.Join(errs...))
		for _, v := range victims {
			n.unhang(v.id)
		}
	}()
	for i, v := range victims {
		if i >= watched {
			if err := v.kill(); err != nil {
				return err
			}
			continue
		}
		time.Sleep(time.Second) // so that these exits do not disturb each other
		wg.Go(func() {
			errs[i] = rec.time(stuckOwn, func() error { return v.killed(ctx, n.exited) })
		})
	}
	time.Sleep(time.Second)
	return n.exits(ctx, others, stuckOther, rec, nil, n.exited)
}

// unhang lets the deletion of a container go on, whether it waits already or begins later.
func (n *node) unhang(id string) {
	path := n.dir + "/hang/" + id
	f, err := os.OpenFile(path, os.O_RDWR, 0) // does not wait for a reader: fifo(7)
	_ = os.Remove(path)
	if err == nil {
		_ = f.Close()
	}
}
