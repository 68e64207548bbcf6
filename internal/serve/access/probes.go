// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"

	"berth/internal/heart/pod"
)

// maxCommands is how many commands are remembered of a container. Commands beyond that are recorded
// each time.
const maxCommands = 32

// probes are the commands that the kubelet has run as probes in existing containers. A client
// chooses its own name, so a probe is recorded when its command comes for the first time.
type probes struct {
	mu sync.Mutex
	of map[string]*commands // by container
}

// commands are the commands of one container.
type commands struct {
	target pod.Target
	known  map[[sha256.Size]byte]bool
}

// isFirst reports whether a command is run in a container for the first time since berth has
// started.
func (p *probes) isFirst(t pod.Target, args []string) bool {
	sum := sum(args)
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.of[t.ID]
	if c == nil {
		for id, other := range p.of {
			if other.target.HasEnded() {
				delete(p.of, id)
			}
		}
		c = &commands{target: pod.Target{Ended: t.Ended}, known: map[[sha256.Size]byte]bool{}}
		p.of[t.ID] = c
	}
	if c.known[sum] {
		return false
	}
	if len(c.known) < maxCommands {
		c.known[sum] = true
	}
	return true
}

// sum is one of a command alone.
func sum(args []string) (sum [sha256.Size]byte) {
	h := sha256.New()
	var length [8]byte
	for _, arg := range args {
		binary.BigEndian.PutUint64(length[:], uint64(len(arg)))
		_, _ = h.Write(length[:])
		_, _ = h.Write([]byte(arg))
	}
	h.Sum(sum[:0])
	return sum
}
