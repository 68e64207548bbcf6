// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"

	"berth/internal/host/namespace"
)

// networkTTL is how long the counters of a namespace are taken for current. Callers that ask at the
// same time cause one reading.
const networkTTL = time.Second

// maxInterfaces is how many interfaces of a pod are reported. How many there are is up to the pod
// if it may make them, and all pods share the size of an answer: it has eight metrics for each, of
// two hundred bytes.
const maxInterfaces = 16

// leftOutEvery is the least time between two log lines about interfaces that are left out.
const leftOutEvery = time.Minute

// interfaces are the network interfaces of a namespace at one instant, sorted by name, without the
// loopback. Of more than maxInterfaces the pod's own comes first, and the last are left out.
type interfaces struct {
	at   time.Time
	list []procfs.NetDevLine
}

// networks reads the interfaces of network namespaces. Its lock is waited for by statistics alone.
type networks struct {
	// enter calls visit in each of the namespaces. visit gets the index of the path.
	enter func(paths []string, visit func(n int))
	// read reads the interfaces of the namespace that the thread is in.
	read func() (procfs.NetDev, error)
	log  *slog.Logger

	mu    sync.Mutex
	cache map[string]interfaces
	said  time.Time // when the log last reported interfaces that are left out
}

func newNetworks(log *slog.Logger) *networks {
	return &networks{
		log:   log,
		enter: inNamespaces,
		read:  readInterfaces,
		cache: map[string]interfaces{},
	}
}

// of reads the interfaces of the namespaces at the given paths. Those that cannot be read are
// absent.
func (n *networks) of(paths []string) map[string]interfaces {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	for path, have := range n.cache {
		if now.Sub(have.at) >= networkTTL {
			delete(n.cache, path)
		}
	}
	var missing []string
	for _, p := range paths {
		if _, ok := n.cache[p]; !ok && p != "" && !slices.Contains(missing, p) {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		n.enter(missing, func(i int) {
			if dev, err := n.read(); err == nil {
				n.cache[missing[i]] = interfaces{time.Now(), n.bounded(missing[i], sorted(dev))}
			}
		})
	}
	out := make(map[string]interfaces, len(paths))
	for _, p := range paths {
		if have, ok := n.cache[p]; ok {
			out[p] = have
		}
	}
	return out
}

// bounded returns the first of list, which is sorted. It has the lock.
func (n *networks) bounded(path string, list []procfs.NetDevLine) []procfs.NetDevLine {
	if len(list) <= maxInterfaces {
		return list
	}
	if now := time.Now(); now.Sub(n.said) >= leftOutEvery {
		n.said = now
		n.log.Warn("a pod has more network interfaces than are reported", "namespace", path, "interfaces", len(list), "reported", maxInterfaces)
	}
	if i := slices.IndexFunc(list, func(l procfs.NetDevLine) bool { return l.Name == podInterface }); i >= maxInterfaces {
		list = slices.Insert(list, 0, list[i])
	}
	return slices.Clone(list[:maxInterfaces]) // without the memory of the others
}

func sorted(dev procfs.NetDev) []procfs.NetDevLine {
	var list []procfs.NetDevLine
	for name, line := range dev {
		if name != "lo" {
			list = append(list, line)
		}
	}
	slices.SortFunc(list, func(a, b procfs.NetDevLine) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// readInterfaces reads /proc/net/dev of this thread, for which the kernel takes no lock that a
// change of a network waits for.
func readInterfaces() (procfs.NetDev, error) {
	fs, err := procfs.NewFS("/proc/thread-self")
	if err != nil {
		return nil, fmt.Errorf("read network interfaces: %w", err)
	}
	return fs.NetDev()
}

// inNamespaces calls visit inside each of the network namespaces, one after the other, in one
// thread that ends afterwards. A namespace that is gone is left out.
func inNamespaces(paths []string, visit func(n int)) {
	_ = namespace.InThread(func() error {
		for n, path := range paths {
			if namespace.EnterNetwork(path) == nil {
				visit(n)
			}
		}
		return nil
	})
}
