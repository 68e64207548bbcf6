// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"math/rand/v2"
	"slices"
	"time"
)

const (
	tick      = 20 * time.Millisecond
	jitter    = 2 * time.Second // within which the nodes of a step begin
	downloads = 3               // layers that a node fetches at the same time
)

// Scenario is a rollout.
type Scenario struct {
	Nodes    int
	Step     int // nodes that begin at the same time
	Seeded   int // nodes that have the image before
	Layers   int
	Layer    int64 // bytes
	Registry int64 // bytes a second that the registry sends at most
	Link     int64 // bytes a second that a node sends and receives at most
	Peers    bool
	Ask      int // peers that are asked for a blob
	MaxBlobs int // that a peer sends at the same time
	// after which peers are asked again for blobs that the registry sends; 0 for never
	Again time.Duration
	Seed  uint64
}

// Result is the result of a rollout.
type Result struct {
	FromRegistry int64         // bytes
	FromPeers    int64         // bytes
	Last         time.Duration // until the last node has the image
	Median       time.Duration // from the begin of a node's pull to its end
	Busiest      int64         // bytes that the busiest peer sent
}

type nodeState struct {
	begins time.Duration
	next   int // layer
	have   []bool
	done   int
	active int // transfers to it
	sends  int // transfers from it
	sent   int64
	known  []int // peers that had something
	ended  time.Duration

	wasActive, wasSends int // as the tick began
}

type transfer struct {
	to, layer int
	from      int // a peer; less than 0 for the registry
	left      float64
	counted   int64         // of the bytes received, by sender
	asked     time.Duration // when peers were asked last
}

// simulation is a rollout in virtual time.
type simulation struct {
	s         Scenario
	rng       *rand.Rand
	now       time.Duration
	nodes     []nodeState
	transfers []transfer
	registry  int // transfers from it
	res       Result
}

// Run computes a rollout.
func Run(s Scenario) Result {
	r := &simulation{s: s, rng: rand.New(rand.NewPCG(s.Seed, 1)), nodes: make([]nodeState, s.Nodes)}
	for i := range r.nodes {
		r.nodes[i].have = make([]bool, s.Layers)
	}
	var took []time.Duration
	order := r.rng.Perm(s.Nodes)
	for _, i := range order[:s.Seeded] {
		n := &r.nodes[i]
		n.done = s.Layers
		for l := range n.have {
			n.have[l] = true
		}
	}
	for order = order[s.Seeded:]; len(order) > 0; {
		step := order[:min(s.Step, len(order))]
		order = order[len(step):]
		r.step(step)
		for _, i := range step {
			took = append(took, r.nodes[i].ended-r.nodes[i].begins)
		}
	}
	slices.Sort(took)
	r.res.Last, r.res.Median = r.now, took[len(took)/2]
	for i := range r.nodes {
		r.res.Busiest = max(r.res.Busiest, r.nodes[i].sent)
	}
	return r.res
}

// step brings the image to some nodes.
func (r *simulation) step(nodes []int) {
	for _, i := range nodes {
		r.nodes[i].begins = r.now + time.Duration(r.rng.Int64N(int64(jitter)))
	}
	for left := len(nodes); left > 0; {
		for _, i := range nodes {
			if n := &r.nodes[i]; n.done < r.s.Layers && n.begins <= r.now {
				r.fetch(i)
			}
		}
		if r.s.Peers && r.s.Again > 0 {
			r.again()
		}
		r.now += tick
		left -= r.move()
	}
}

// fetch begins the transfers that a node can make now, from a peer or the registry.
func (r *simulation) fetch(i int) {
	n := &r.nodes[i]
	for n.active < downloads && n.next < r.s.Layers {
		layer, from := n.next, -1
		n.next++
		n.active++
		if r.s.Peers {
			from = r.find(i, layer)
		}
		if from < 0 {
			r.registry++
		} else {
			r.nodes[from].sends++
			r.remember(i, from)
		}
		r.transfers = append(r.transfers, transfer{
			to:    i,
			layer: layer,
			from:  from,
			left:  float64(r.s.Layer),
			asked: r.now,
		})
	}
}

// again asks peers for the blobs that the registry sends, and lets them send the rest.
func (r *simulation) again() {
	for k := range r.transfers {
		t := &r.transfers[k]
		if t.from >= 0 || r.now-t.asked < r.s.Again {
			continue
		}
		t.asked = r.now
		if p := r.find(t.to, t.layer); p >= 0 {
			t.counted = r.s.Layer - int64(t.left)
			r.res.FromRegistry += t.counted
			r.registry--
			t.from = p
			r.nodes[p].sends++
			r.remember(t.to, p)
		}
	}
}

// remember notes that a peer had something.
func (r *simulation) remember(i, p int) {
	n := &r.nodes[i]
	n.known = slices.DeleteFunc(n.known, func(q int) bool { return q == p })
	n.known = slices.Insert(n.known, 0, p)
	n.known = n.known[:min(len(n.known), 3)]
}

// find asks peers for a layer, and returns one that sends it; less than 0 if there is none.
func (r *simulation) find(i, layer int) int {
	asked := slices.Clone(r.nodes[i].known)
	for len(asked) < min(r.s.Ask, r.s.Nodes-1) {
		if p := r.rng.IntN(r.s.Nodes); p != i && !slices.Contains(asked, p) {
			asked = append(asked, p)
		}
	}
	r.rng.Shuffle(len(asked), func(a, b int) { asked[a], asked[b] = asked[b], asked[a] })
	for _, p := range asked {
		if n := &r.nodes[p]; n.have[layer] && n.sends < r.s.MaxBlobs {
			return p
		}
	}
	return -1
}

// move lets bytes flow for a tick, and returns how many nodes have the image now that had not.
func (r *simulation) move() (complete int) {
	kept := r.transfers[:0]
	registry := r.registry // as the tick began
	for i := range r.nodes {
		n := &r.nodes[i]
		n.wasActive, n.wasSends = n.active, n.sends
	}
	for _, t := range r.transfers {
		rate := float64(r.s.Link) / float64(r.nodes[t.to].wasActive)
		if t.from < 0 {
			rate = min(rate, float64(r.s.Registry)/float64(registry))
		} else {
			rate = min(rate, float64(r.s.Link)/float64(r.nodes[t.from].wasSends))
		}
		if t.left -= rate * tick.Seconds(); t.left > 0 {
			kept = append(kept, t)
			continue
		}
		to := &r.nodes[t.to]
		to.active--
		to.have[t.layer] = true
		if t.from < 0 {
			r.registry--
			r.res.FromRegistry += r.s.Layer - t.counted
		} else {
			r.nodes[t.from].sends--
			r.nodes[t.from].sent += r.s.Layer - t.counted
			r.res.FromPeers += r.s.Layer - t.counted
		}
		if to.done++; to.done == r.s.Layers {
			to.ended = r.now
			complete++
		}
	}
	r.transfers = kept
	return complete
}
