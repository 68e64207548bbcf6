// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// seen collects the IDs of all pods that a node has ever made a network for, including those whose
// creation failed. By these IDs, entries of the pods in the host's tables can be distinguished from
// others.
type seen struct {
	w    *fsnotify.Watcher
	done chan struct{}

	mu  sync.Mutex
	ids map[string]bool
}

func watchPins(dir string) (*seen, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	w, err := fsnotify.NewBufferedWatcher(4096)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	if err := w.Add(dir); err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	s := &seen{w: w, done: make(chan struct{}), ids: map[string]bool{}}
	go func() {
		defer close(s.done)
		for ev := range w.Events {
			if name := strings.Split(filepath.Base(ev.Name), "-"); len(name) == 3 { // berth-OWNER-ID
				s.mu.Lock()
				s.ids[name[2]] = true
				s.mu.Unlock()
			}
		}
	}()
	return s, nil
}

// all are the IDs so far.
func (s *seen) all() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.ids)
}

func (s *seen) close() {
	_ = s.w.Close()
	<-s.done
}
