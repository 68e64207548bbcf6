// SPDX-License-Identifier: Apache-2.0

// Package feed publishes the events of containers and pod sandboxes to everyone who called
// GetContainerEvents: the kubelet (KEP-3386, evented PLEG), `crictl events`, node agents.
//
// # Use
//
//	stamp := f.Stamp(podID, time.Now()) // first the instant,
//	ev := snapshot(podID, stamp)        // then the pod's state, which is not older,
//	f.Publish(ev)                       // then the event. Do not touch ev after this.
//
//	s := f.Subscribe()
//	defer s.Close()
//	for {
//		ev, err := s.Next(ctx)
//		...
//	}
//
// The publisher owes one thing: for one pod, Stamp, snapshot and Publish happen under a lock of the
// pod's own, so that they do not mix with the pod's other events. When a pod is gone, Forget it.
//
// # Stamps
//
// created_at rises strictly within a pod, in the order of Publish. One clock serves all pods,
// because the kubelet keeps its cache by the UID of a pod, and a UID may have several sandboxes,
// one after the other. The clock does not go back, even if the host's does. An instant on the same
// clock, for the timestamp of a PodSandboxStatusResponse, comes from [Feed.Instant]; so the kubelet
// does not take an older event for newer than a status that it has read.
//
// # Queues
//
// Each subscriber has a queue of its own, independent of the others.
//
//   - Up to Config.Queue events wait in it as they are, none missing.
//   - When one more comes, the queue collapses: of each container only the newest event stays, at
//     its own place in the order. From then on a container's new event replaces the one that waits,
//     until the subscriber has taken everything. The newest one is enough: it carries the whole
//     pod, and a STOPPED is not hidden by earlier events.
//   - A collapsed queue holds at most max(Queue, Backlog) containers. One more drops the oldest
//     DELETED, or the oldest event if there is none, and counts it in [Stats].Dropped. For dropped
//     events the subscriber has its own relist. A DELETED is not canceled out against a CREATED
//     that was not delivered: the pod status in another event, or a list, may have shown the
//     container to the subscriber all the same.
//
// Coalescing and dropping keep the order of Publish, so stamps rise per pod in every queue.
//
// # Memory
//
// CRI has no acknowledgements, and its subscribers have no names. So that nothing is lost when a
// stream breaks, the feed remembers the newest event of each container, and replays everything that
// it remembers to each new subscriber, in order.
//
// A DELETED is not replayed. It takes the container out of the memory: a subscriber that missed it
// finds out by its relist. A replay would harm the kubelet, because it drops a pod from its cache
// for a DELETED of one of the pod's sandboxes regardless of the stamp, even if the pod runs in a
// later one.
//
// One rule covers all other events:
//
//	An event is forgotten Keep after it was last handed to a subscriber that it was new to.
//
// Three more define when the clock of that rule stands still:
//
//   - While there is no subscriber, no event is forgotten.
//   - For a subscriber that is behind, now is the instant at which it last had nothing left to
//     take.
//   - For a subscriber that left, that instant stays in force for another Keep, not counting time
//     without any subscriber.
//
// So a subscriber that comes back within Keep gets, of each container that was not deleted, at
// least the newest event that it may have missed: the events in its queue, those handed to it
// within Keep before it fell behind or left, and all later ones. That also holds if another
// subscriber was there all the time, or came first and took the same events. If there was no other
// subscriber meanwhile, it may stay away for as long as it likes.
//
// The price is that a subscriber that joins while all is well gets the newest events of the last
// Keep. A replay does not make an event younger, because subscribers that come and go would keep it
// for ever; a stream that breaks twice may lose it, and has its relist. Instants are kept to a
// sixteenth of Keep, always on the longer side. Delivery is at least once; an event keeps its stamp
// when it is replayed, so that the kubelet sees that it is old.
//
// At most Config.Backlog containers are remembered. One more drops the oldest.
//
// # Never
//
// It has no goroutine, does no I/O, writes no log and does not wait for a subscriber: Publish takes
// one mutex and a few steps per subscriber. Next is the only call that blocks.
//
// # To look at it live
//
// [Feed.Stats], exported as metrics: a Longest that grows is a subscriber that does not read.
// Coalesced counts events that were replaced before the subscriber read them. Dropped and Restamped
// should be 0.
package feed
