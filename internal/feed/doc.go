// SPDX-License-Identifier: Apache-2.0

// Package feed hands the events of containers and pod sandboxes to everyone who called
// GetContainerEvents: the kubelet (KEP-3386, evented PLEG), `crictl events`, node agents.
//
// # Use
//
//	stamp := f.Stamp(podID, time.Now()) // first the instant,
//	ev := snapshot(podID, stamp)        // then the pod as it is, which is never older than it,
//	f.Publish(ev)                       // then out. Nobody touches ev after this.
//
//	s := f.Subscribe()
//	defer s.Close()
//	for {
//		ev, err := s.Next(ctx)
//		...
//	}
//
// The publisher owes one thing: for one pod, Stamp, snapshot and Publish happen under a lock of
// the pod's own, so that they are not interleaved with the pod's other events. When a pod is gone,
// Forget it.
//
// # Stamps
//
// created_at rises strictly within a pod, in the order of Publish. There is one clock for
// all pods, and it never goes back, whatever the host's does: the kubelet keeps its cache by pod UID, and
// one UID may have several sandboxes, one after the other. An instant on the same clock for
// the timestamp of a PodSandboxStatusResponse comes from [Feed.Instant]; so the kubelet never takes
// an older event for newer than a status it has read.
//
// # Queues
//
// Each subscriber has a queue of its own and does not know of the others.
//
//   - Up to Config.Queue events wait as they are, none missing.
//   - When one more comes, the queue collapses: of each container only its newest event stays, at its own
//     place in the order. From then on a container's new event takes the place of its waiting
//     one, until the subscriber has caught up. The newest is what counts: it carries the whole pod;
//     no STOPPED is hidden by what came before it, and DELETED comes last of all.
//   - A collapsed queue holds at most max(Queue, Backlog) containers. One more drops the oldest
//     DELETED, or if there is none the oldest event, and counts it in [Stats].Dropped.
//     For what was dropped the subscriber's own relist is the net. A DELETED is not canceled
//     out against a CREATED that was never delivered: the pod statuses in other events, or
//     a list, may have shown the container to the subscriber all the same.
//
// What is left after coalescing or dropping is in the order of Publish, so stamps rise per pod in every queue.
//
// # Memory
//
// CRI has no acknowledgements and its subscribers have no names. So that nothing is lost when a stream
// breaks, the feed remembers the newest event of each container, and a new subscriber
// begins with all that is remembered, in order. One rule says what is forgotten:
//
//	An event is forgotten Keep after it was last handed to a subscriber to which it was new.
//
// and three say when the clock of that rule stands still:
//
//   - While nobody listens, nothing is forgotten.
//   - For a subscriber that lags, now is the instant at which it last had nothing left to take.
//   - For a subscriber that left, its now stays in force for another Keep, not counting the time in which
//     nobody listens.
//
// So whoever comes back within Keep gets, of each container, at least the newest event that it may
// have missed: what waited in its queue, what was handed to it within Keep before it
// fell behind or left, and all since; also when another subscriber listened all the time, or came
// first and took it as well. If nobody listened meanwhile, it may take as long as it likes.
// The price: a subscriber that joins while all is well hears the newest events of the last Keep.
// What is sent again is no younger for it, else subscribers that come and go would keep it for ever: a stream
// that breaks twice may lose it, and the relist is the net. Times are kept to a sixteenth of Keep, always the
// longer way. Delivery of final states is at least once, not exactly once; an event keeps its stamp when
// it is sent again, so that the kubelet sees that it is old.
//
// At most Config.Backlog containers are remembered; beyond that the oldest DELETED goes first, as above.
//
// # Never
//
// No goroutine, no I/O, no log, no wait for a subscriber: Publish costs one mutex and a few steps
// per subscriber, whatever they do. Next is the only thing here that blocks.
//
// # To look at it live
//
// [Feed.Stats], exported as metrics: a Longest that grows is a subscriber that does not read;
// Coalesced says that it was spared the steps between; Dropped and Restamped should be 0.
package feed
