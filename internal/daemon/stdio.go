// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"

	"berth/internal/heart/pod"
	"berth/internal/host/logs"
	"berth/internal/serve/stream"
)

// stdios plugs package logs into the controller, and finds the stdio of a container again for
// those that attach to it.
type stdios struct {
	mu sync.Mutex
	// ended is called with the container whose stdin ended with an earlier berth. It is there before
	// the records are restored.
	ended func(id string)
	open  map[string]*logs.Log // by directory
}

func newStdios() *stdios { return &stdios{open: map[string]*logs.Log{}} }

// endBy has f called with each container whose stdin ended with an earlier berth.
func (s *stdios) endBy(f func(id string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = f
}

// Create makes the stdio of a container.
func (s *stdios) Create(o logs.Options) (pod.Stdio, error) { return s.add(logs.Create, o) }

// Open continues with the stdio that an earlier berth made.
func (s *stdios) Open(o logs.Options) (pod.Stdio, error) { return s.add(logs.Open, o) }

func (s *stdios) add(open func(logs.Options) (*logs.Log, error), o logs.Options) (pod.Stdio, error) {
	l, err := open(o)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[o.Dir] = l
	if l.StdinOver() {
		s.ended(filepath.Base(o.Dir))
	}
	return stdio{l, s, o.Dir}, nil
}

// RemoveAll removes the stdio that is in a directory.
func (s *stdios) RemoveAll(dir string) error {
	s.forget(dir)
	return logs.RemoveAll(dir)
}

func (s *stdios) forget(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, dir)
}

// of finds the stdio of a container by its ID, which is the name of the directory.
func (s *stdios) of(id string) (stream.Stdio, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for dir, l := range s.open {
		if filepath.Base(dir) == id {
			return attachable{l.Attachment()}, nil
		}
	}
	return nil, fmt.Errorf("the output of container %s is not there: %w", id, errdefs.ErrUnavailable)
}

// stdio is a container's stdio, which is forgotten when it is removed.
type stdio struct {
	*logs.Log
	of  *stdios
	dir string
}

// Remove closes and removes the stdio.
func (s stdio) Remove() error {
	s.of.forget(s.dir)
	return s.Log.Remove()
}

// attachable plugs a container's stdio into package stream.
type attachable struct{ logs.Attachment }

// Tee begins to copy the output of the container.
func (a attachable) Tee() (stream.Tee, error) {
	t, err := a.Attachment.Tee()
	if err != nil {
		return nil, err
	}
	return t, nil
}
