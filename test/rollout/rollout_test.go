// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"
)

var (
	nodes = flag.Int("nodes", 300, "nodes of the table")
	seed  = flag.Uint64("seed", 1, "of what is random")
)

// usual is the rollout of docs/scale.md: five layers with 100 MiB in all, a registry with 10 Gbit/s and
// nodes with 1 Gbit/s.
func usual(n int) Scenario {
	return Scenario{
		Nodes:    n,
		Step:     n,
		Layers:   5,
		Layer:    20 << 20,
		Registry: 1_250_000_000,
		Link:     125_000_000,
		Ask:      16,
		MaxBlobs: 16,
		Again:    5 * time.Second,
		Seed:     *seed,
	}
}

// steps are the ways in which a rollout goes.
var steps = []struct {
	name   string
	change func(*Scenario)
}{
	{"all nodes at once", func(*Scenario) {}},
	{"all nodes at once, 1 % of them have the image", func(s *Scenario) { s.Seeded = s.Nodes / 100 }},
	{"10 % at a time", func(s *Scenario) { s.Step = s.Nodes / 10 }},
	{"2 % at a time", func(s *Scenario) { s.Step = s.Nodes / 50 }},
}

// TestTable prints the table of docs/scale.md.
func TestTable(t *testing.T) {
	var table strings.Builder
	for _, how := range steps {
		for _, ask := range []int{0, 8, 16, 32} {
			s := usual(*nodes)
			how.change(&s)
			s.Peers, s.Ask = ask > 0, ask
			r := Run(s)
			fmt.Fprintf(&table, "| %s | %d | %.1f GiB | %.0f s | %.1f s | %.1f GiB |\n", how.name, ask,
				float64(r.FromRegistry)/(1<<30), r.Last.Seconds(), r.Median.Seconds(), float64(r.Busiest)/(1<<30))
		}
	}
	t.Log("\n" + table.String())
}

// With peers the registry sends less in each step of a rollout after the first, every byte comes from
// one of both, and what is computed can be repeated.
func TestPeersRelieveTheRegistry(t *testing.T) {
	for _, how := range steps {
		s := usual(*nodes)
		how.change(&s)
		all := int64(s.Nodes-s.Seeded) * int64(s.Layers) * s.Layer
		without := Run(s)
		if without.FromRegistry != all || without.FromPeers != 0 {
			t.Errorf("%s, without peers: %+v instead of %d bytes", how.name, without, all)
		}
		s.Peers = true
		with := Run(s)
		if with.FromRegistry+with.FromPeers != all {
			t.Errorf("%s: %+v is not %d bytes", how.name, with, all)
		}
		if again := Run(s); again != with {
			t.Errorf("%s: %+v and then %+v", how.name, with, again)
		}
		share := float64(with.FromRegistry) / float64(all)
		if s.Step < s.Nodes && share > 0.25 || s.Seeded > 0 && share > 0.8 || share > 1 {
			t.Errorf("%s: the registry sends %.0f %% of all bytes", how.name, 100*share)
		}
	}
}
