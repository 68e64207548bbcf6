// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// pollPause is the pause between two polls. With the call itself it is the resolution of an
	// exit's time, the same for both daemons.
	pollPause = 200 * time.Microsecond
	// idlePause gives the work that a start leaves behind time to end, so that it is not measured
	// with the exit.
	idlePause = 50 * time.Millisecond
	// bound is how long an exit is watched.
	bound = time.Minute
)

// exited polls until a container is EXITED, and returns how long after since that was. It gives up
// after bound, and returns bound.
func (n *node) exited(ctx context.Context, id string, since time.Time) (time.Duration, error) {
	for ctx.Err() == nil {
		resp, err := n.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return 0, fmt.Errorf("status of container %s: %w", id, err)
		}
		took := time.Since(since)
		switch {
		case resp.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED:
			return took, nil
		case took > bound:
			return bound, nil
		case took > time.Second: // a higher resolution would only take the processor from others
			time.Sleep(5 * time.Millisecond)
		default:
			time.Sleep(pollPause)
		}
	}
	return 0, ctx.Err()
}

// polledExits kills the containers of one pod one after the other, and polls the status of each.
func (n *node) polledExits(ctx context.Context, count int, metric string, rec record) error {
	pods, err := n.pods(ctx, 1, "")
	if err != nil {
		return err
	}
	for i := range count {
		v, err := n.victim(ctx, pods[0], fmt.Sprintf("polled%d", i))
		if err != nil {
			return err
		}
		time.Sleep(idlePause)
		began := time.Now()
		if err := v.kill(); err != nil {
			return err
		}
		took, err := n.exited(ctx, v.id, began)
		if err != nil {
			return err
		}
		rec(metric, ms(took))
	}
	return nil
}

// arrival is an event and the instant at which it arrived.
type arrival struct {
	id   string
	kind runtimeapi.ContainerEventType
	at   time.Time
}

// listen subscribes to container events until stop is called.
func (n *node) listen(ctx context.Context) (<-chan arrival, func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := n.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("subscribe to events: %w", err)
	}
	events, done := make(chan arrival, 10000), make(chan struct{})
	go func() {
		defer close(done)
		defer close(events)
		for {
			ev, err := stream.Recv()
			if err != nil {
				return
			}
			events <- arrival{ev.GetContainerId(), ev.GetContainerEventType(), time.Now()}
		}
	}()
	return events, func() { cancel(); <-done }, nil
}

// await reads events until one of this kind comes for this container.
func await(events <-chan arrival, id string, kind runtimeapi.ContainerEventType) (time.Time, error) {
	timeout := time.After(bound)
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				return time.Time{}, fmt.Errorf("the event stream ended before %s of container %s", kind, id)
			}
			if ev.id == id && ev.kind == kind {
				return ev.at, nil
			}
		case <-timeout:
			return time.Time{}, fmt.Errorf("no %s of container %s within %s", kind, id, bound)
		}
	}
}

// killedAndAnnounced kills v and returns how long it took until its end was in events.
func (v victim) killedAndAnnounced(events <-chan arrival) (time.Duration, error) {
	began := time.Now()
	if err := v.kill(); err != nil {
		return 0, err
	}
	at, err := await(events, v.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	return at.Sub(began), err
}

// publishedExits kills containers as polledExits does, and measures when a subscriber gets the
// event. Nobody polls.
func (n *node) publishedExits(ctx context.Context, count int, rec record) error {
	events, stop, err := n.listen(ctx)
	if err != nil {
		return err
	}
	defer stop()
	pods, err := n.pods(ctx, 1, "")
	if err != nil {
		return err
	}
	for i := range count {
		v, err := n.victim(ctx, pods[0], fmt.Sprintf("published%d", i))
		if err != nil {
			return err
		}
		if _, err := await(events, v.id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT); err != nil {
			return err
		}
		time.Sleep(idlePause)
		took, err := v.killedAndAnnounced(events)
		if err != nil {
			return err
		}
		rec(killToEvent, ms(took))
	}
	return nil
}

// exitsAtOnce starts half of the containers of each pod, kills all of these at once, and polls the
// list of exited containers.
func (n *node) exitsAtOnce(ctx context.Context, created map[string][]string, rec record) error {
	var ids []string
	for _, list := range created {
		ids = append(ids, list[:len(list)/2]...)
	}
	if len(ids) == 0 { // -only has left out the step that creates them
		return nil
	}
	var mu sync.Mutex
	var victims []victim
	err := parallel(4, ids, func(id string) error {
		if err := n.startContainer(ctx, id); err != nil {
			return err
		}
		pid, err := n.pid(ctx, id)
		mu.Lock()
		defer mu.Unlock()
		victims = append(victims, victim{id, pid})
		return err
	})
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
	var took time.Duration
	for len(seen) < len(victims) {
		resp, err := n.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: filter})
		if err != nil {
			return fmt.Errorf("list containers: %w", err)
		}
		took = time.Since(began)
		for _, c := range resp.GetContainers() {
			if !seen[c.GetId()] {
				seen[c.GetId()] = true
				rec(exitsEach, ms(took))
			}
		}
		if took > bound {
			return fmt.Errorf("%d of %d containers are not EXITED %s after their end", len(victims)-len(seen), len(victims), bound)
		}
		time.Sleep(pollPause)
	}
	rec(exitsLast, ms(took))
	return nil
}

// stuckExits makes the deletion of containers hang. It measures when their own exits are visible,
// and then, while all of them hang, the exits of other containers.
func (n *node) stuckExits(ctx context.Context, watched, wedged, others int, rec record) (err error) {
	pods, err := n.pods(ctx, wedged, "hanging")
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
	var mu sync.Mutex
	errs := make([]error, watched)
	defer func() {
		wg.Wait()
		for _, e := range errs {
			if err == nil {
				err = e
			}
		}
		for _, v := range victims {
			n.unhang(v.id)
		}
	}()
	time.Sleep(time.Second)
	for i, v := range victims {
		began := time.Now()
		if err := v.kill(); err != nil {
			return err
		}
		if i >= watched {
			continue
		}
		wg.Go(func() {
			took, err := n.exited(ctx, v.id, began)
			mu.Lock()
			defer mu.Unlock()
			if errs[i] = err; err == nil {
				rec(stuckOwn, ms(took))
			}
		})
		time.Sleep(time.Second) // so that these exits do not disturb each other
	}
	time.Sleep(time.Second)
	return n.polledExits(ctx, others, stuckOther, func(m string, v float64) { mu.Lock(); defer mu.Unlock(); rec(m, v) })
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
