// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/host/namespace"
)

// Pins makes and removes pinned namespaces below one directory.
type Pins struct {
	dir string
	// bootFile names the boot that the host is in.
	bootFile string
	mounts   mounts
}

// New returns the pins below dir, which need not survive a reboot, and is made when something is
// made.
func New(dir string) *Pins { return &Pins{dir: dir, bootFile: "/proc/sys/kernel/random/boot_id"} }

// Request describes the namespaces of one pod.
type Request struct {
	ID string
	// IPC and UTS are set for the namespaces that the pod does not share with the host.
	IPC, UTS bool
	// Hostname is set in the UTS namespace; "" leaves the host's name there.
	Hostname string
	// Sysctls are set in the new namespaces: values by names. Those of the network are set after
	// its plug-ins have run, by package network.
	Sysctls map[string]string
}

// note is the content of the file made.
type note struct {
	Boot  string   `json:"boot"`
	Names []string `json:"names"` // of the namespaces
}

const noteName = "made"

// flags are the namespaces that this room makes, by name, with the flag of unshare(2).
var flags = map[string]int{"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS}

func (p *Pins) of(id string) string         { return filepath.Join(p.dir, id) }
func (p *Pins) path(id, name string) string { return filepath.Join(p.of(id), name) }

// IPC returns the path at which the IPC namespace of an ID is pinned, if it has one.
func (p *Pins) IPC(id string) string { return p.path(id, "ipc") }

// UTS returns the path at which the UTS namespace of an ID is pinned, if it has one.
func (p *Pins) UTS(id string) string { return p.path(id, "uts") }

// Make makes the namespaces of an ID, and sets the hostname and the sysctls. The remains of an
// interrupted attempt are removed first. After an error the caller removes the namespaces with
// Remove.
func (p *Pins) Make(r Request) error {
	if r.ID == "" || !filepath.IsLocal(r.ID) || filepath.Base(r.ID) != r.ID {
		return fmt.Errorf("pin namespaces of %q: it is not an ID: %w", r.ID, errdefs.ErrInvalidArgument)
	}
	if err := p.Remove(r.ID); err != nil {
		return err
	}
	if err := p.make(r); err != nil {
		return fmt.Errorf("pin namespaces of %s: %w", r.ID, err)
	}
	return nil
}

func (p *Pins) make(r Request) error {
	boot, err := p.boot()
	if err != nil {
		return err
	}
	// A user namespace of a container's may look for a pin below.
	if err := os.MkdirAll(p.of(r.ID), 0o711); err != nil {
		return err
	}
	made := note{Boot: boot}
	if r.IPC {
		made.Names = append(made.Names, "ipc")
	}
	if r.UTS {
		made.Names = append(made.Names, "uts")
	}
	for _, name := range made.Names {
		if err := os.WriteFile(p.path(r.ID, name), nil, 0o444); err != nil {
			return err
		}
	}
	if err := namespace.InThread(func() error { return p.inside(r, made.Names) }); err != nil {
		return err
	}
	text, err := json.Marshal(made)
	if err != nil {
		return err
	}
	return os.WriteFile(p.path(r.ID, noteName), text, 0o600)
}

// inside makes the namespaces in this thread, which is used for nothing else afterwards, and pins
// them.
func (p *Pins) inside(r Request, names []string) error {
	unshare := 0
	for _, name := range names {
		unshare |= flags[name]
	}
	if unshare != 0 {
		if err := unix.Unshare(unshare); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
	}
	if r.UTS && r.Hostname != "" {
		if err := unix.Sethostname([]byte(r.Hostname)); err != nil {
			return fmt.Errorf("set hostname %q: %w", r.Hostname, err)
		}
	}
	if err := namespace.SetSysctls(r.Sysctls); err != nil {
		return err
	}
	for _, name := range names {
		if err := unix.Mount("/proc/thread-self/ns/"+name, p.path(r.ID, name), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("pin %s: %w", name, err)
		}
	}
	return nil
}

// Check returns nil if everything that Make made for an ID is still there, in this boot. Otherwise
// it returns ErrNotFound, naming the missing part.
func (p *Pins) Check(id string) error {
	now, there := p.mounts.look(id)
	if there {
		return nil
	}
	if err := p.check(id); err != nil {
		return err
	}
	p.mounts.note(id, now)
	return nil
}

func (p *Pins) check(id string) error {
	text, err := os.ReadFile(p.path(id, noteName))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("pinned namespaces of %s: there are none: %w", id, errdefs.ErrNotFound)
	}
	var boot string
	if err == nil {
		boot, err = p.boot()
	}
	if err != nil {
		return fmt.Errorf("look for pinned namespaces of %s: %w", id, err)
	}
	var made note
	if err := json.Unmarshal(text, &made); err != nil {
		return fmt.Errorf("pinned namespaces of %s: they were not made to the end: %w: %w", id, err, errdefs.ErrNotFound)
	}
	if boot != made.Boot {
		return fmt.Errorf("pinned namespaces of %s: the host was started again since: %w", id, errdefs.ErrNotFound)
	}
	for _, name := range made.Names {
		pinned, err := namespace.IsPinned(p.path(id, name))
		if err != nil {
			return fmt.Errorf("look for pinned namespaces of %s: %w", id, err)
		}
		if !pinned {
			return fmt.Errorf("pinned namespaces of %s: %s is gone: %w", id, name, errdefs.ErrNotFound)
		}
	}
	return nil
}

// Remove removes the pins of an ID. The namespaces end with the last process in them.
func (p *Pins) Remove(id string) error {
	p.mounts.forget(id)
	// The note goes first: Check then treats a half-removed ID as absent.
	if err := os.Remove(p.path(id, noteName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pinned namespaces of %s: %w", id, err)
	}
	for name := range flags {
		if err := namespace.Unpin(p.path(id, name)); err != nil {
			return fmt.Errorf("remove pinned namespaces of %s: %w", id, err)
		}
	}
	// Not recursively: only this package writes here.
	if err := os.Remove(p.of(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pinned namespaces of %s: %w", id, err)
	}
	return nil
}

// IDs lists every ID that has something here.
func (p *Pins) IDs() ([]string, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list pinned namespaces: %w", err)
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	slices.Sort(ids)
	return ids, nil
}

func (p *Pins) boot() (string, error) {
	id, err := os.ReadFile(p.bootFile)
	return string(bytes.TrimSpace(id)), err
}
