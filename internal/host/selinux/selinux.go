// SPDX-License-Identifier: Apache-2.0

package selinux

import (
	"errors"
	"fmt"
	"sync"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"
)

// library is the used part of go-selinux, which remembers the categories that are taken in this
// process.
type library struct {
	init    func(options []string) (process, mount string, err error)
	known   func(label string) error // whether the host's policy has it
	dup     func(label string) ([]string, error)
	level   func(label string) (string, error)
	share   func(label string) (string, error) // the same without categories
	reserve func(label string) error
	release func(label string)
	relabel func(path, label string) error
	labelOf func(path string) (string, error)
}

// Labels allocates labels. Its methods may be called from any goroutine.
type Labels struct {
	lib      library
	readOnly string

	mu   sync.Mutex
	held map[string]int // how often each level is held
}

// Open returns the labels of this host, nil if SELinux is off. There is one in a process. It
// returns an error if the host's configuration has something else in the place of a label; the
// labels can be used all the same.
func Open() (*Labels, error) {
	if !selinux.GetEnabled() {
		return nil, nil // the host has none
	}
	l := newLabels(library{
		init:  label.InitLabels,
		known: selinux.SecurityCheckContext,
		dup:   selinux.DupSecOpt,
		level: func(l string) (string, error) {
			c, err := selinux.NewContext(l)
			if err != nil {
				return "", err
			}
			return c["level"], nil
		},
		share: func(l string) (string, error) {
			c, err := selinux.NewContext(l)
			if err != nil {
				return "", err
			}
			if c["level"] != "" { // the policy has levels
				c["level"] = "s0"
			}
			return c.Get(), nil
		},
		reserve: func(l string) error {
			if err := selinux.ReserveLabelV2(l); err != nil && !errors.Is(err, selinux.ErrMCSAlreadyExists) {
				return err
			}
			return nil
		},
		release: selinux.ReleaseLabel,
		relabel: func(path, l string) error { return label.Relabel(path, l, false) },
		labelOf: selinux.FileLabel,
	})
	// The library knows the label of read-only files once it has allocated a label.
	process, _ := selinux.ContainerLabels() //nolint:staticcheck // nothing takes its place yet
	selinux.ReleaseLabel(process)
	var err error
	l.readOnly, err = l.Shared(selinux.ROFileLabel()) //nolint:staticcheck // deprecated as unused, and used here
	return l, err
}

func newLabels(lib library) *Labels { return &Labels{lib: lib, held: map[string]int{}} }

// Init returns a label for a process and one for its files, and holds the first. The options, such
// as type:spc_t or level:s0:c1,c2, take the place of the default's parts. Without a level a
// category is allocated that nothing else has. The option disable returns no label for the process.
// A label that the host's policy does not have is an error: the OCI runtime could not apply it.
func (l *Labels) Init(options []string) (process, mount string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if process, mount, err = l.lib.init(options); err != nil {
		return "", "", fmt.Errorf("allocate label with options %q: %w", options, err)
	}
	for _, label := range []string{process, mount} {
		if label == "" {
			continue
		}
		if err := l.lib.known(label); err != nil {
			if level, lerr := l.lib.level(process); lerr == nil && l.held[level] == 0 {
				l.lib.release(process)
			}
			return "", "", fmt.Errorf("label %q: the policy of this host does not have it: %w", label, err)
		}
	}
	if err := l.holdLocked(process); err != nil {
		return "", "", err
	}
	return process, mount, nil
}

// ReadOnly returns the label of files that every container may read and none may change, such as
// mounted images, or "" if the host's policy names none.
func (l *Labels) ReadOnly() string { return l.readOnly }

// Shared returns a label for files that the containers of every pod may use, if they can reach
// them.
func (l *Labels) Shared(mount string) (string, error) {
	if mount == "" {
		return "", nil
	}
	shared, err := l.lib.share(mount)
	if err != nil {
		return "", fmt.Errorf("read label %q: %w", mount, err)
	}
	return shared, nil
}

// OptionsOf returns the options by which another process gets the same user, role, type and level.
func (l *Labels) OptionsOf(process string) ([]string, error) { return l.lib.dup(process) }

// Reserve holds the label of a process that runs already, as after a restart.
func (l *Labels) Reserve(process string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holdLocked(process)
}

func (l *Labels) holdLocked(process string) error {
	if process == "" {
		return nil
	}
	level, err := l.lib.level(process)
	if err != nil {
		return fmt.Errorf("read label %q: %w", process, err)
	}
	if level == "" {
		return nil
	}
	if l.held[level] == 0 {
		if err := l.lib.reserve(process); err != nil {
			return fmt.Errorf("reserve label %q: %w", process, err)
		}
	}
	l.held[level]++
	return nil
}

// Release gives a label back. Its category is free once all its holders have released it.
func (l *Labels) Release(process string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	level, err := l.lib.level(process)
	if err != nil || l.held[level] == 0 {
		return
	}
	if l.held[level]--; l.held[level] == 0 {
		delete(l.held, level)
		l.lib.release(process)
	}
}

// Relabel gives path, and all that is below it, the label of a container's files, for a mount that
// asks for it. A file system that has no labels is left as it is.
func (l *Labels) Relabel(path, mount string) error {
	if err := l.lib.relabel(path, mount); err != nil && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("label %s as %q: %w", path, mount, err)
	}
	return nil
}

// Publish gives path, and all that is below it, the label of files that every container may read. A
// path that has it already is left as it is, because files made below it inherit the label.
func (l *Labels) Publish(path string) error {
	if have, err := l.lib.labelOf(path); err == nil && have == l.readOnly {
		return nil
	}
	return l.Relabel(path, l.readOnly)
}
