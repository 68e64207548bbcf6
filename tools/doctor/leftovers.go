// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// others are the runtimes that may have served a node before berth.
var others = []struct{ name, unit, socket string }{
	{"containerd", "containerd.service", "/run/containerd/containerd.sock"},
	{"CRI-O", "crio.service", "/run/crio/crio.sock"},
	{"cri-dockerd", "cri-docker.service", "/run/cri-dockerd.sock"},
}

func askLeftovers(ctx context.Context, m *machine) ([]Finding, error) {
	var f findings
	for _, o := range others {
		socket, err := m.foreign(o.socket)
		f.unasked(err)
		if socket {
			m.askForeign(ctx, &f, o.name, o.unit, o.socket)
		}
		if m.cfg.Containerd.Address != "" && o.name == "containerd" {
			continue // it is berth's
		}
		for _, dir := range unitDirs[:2] {
			wants, err := filepath.Glob(m.path(filepath.Join(dir, "*.wants", o.unit)))
			f.unasked(err)
			if len(wants) > 0 {
				f.add(Warning, "run systemctl disable --now "+o.unit+"; docs/migrate.md says how its pods are moved",
					"%s is enabled: the next boot starts it beside berth", o.unit)
				break
			}
		}
	}
	return f.result()
}

// foreign reports whether a socket is there that is neither berth's nor of the containerd that
// berth uses.
func (m *machine) foreign(socket string) (bool, error) {
	st, err := os.Lstat(m.path(socket))
	if absent(err) {
		return false, nil
	}
	if err != nil {
		return false, m.named(socket, err)
	}
	own := []string{strings.TrimPrefix(m.cfg.Containerd.Address, "unix://"), m.cfg.Address}
	for _, o := range own {
		if o != "" && (o == socket || o == "/var"+socket) {
			return false, nil
		}
	}
	if st.Mode()&os.ModeSymlink != 0 && socket == m.cfg.Containerd.Link {
		to, err := os.Readlink(m.path(socket))
		if err != nil {
			return false, m.named(socket, err)
		}
		if strings.HasPrefix(to, m.cfg.State+"/") {
			return false, nil // berth's own link, for the cAdvisor in the kubelet
		}
	}
	return true, nil
}

// askForeign asks a socket whether a runtime serves CRI on it.
func (m *machine) askForeign(ctx context.Context, f *findings, name, unit, socket string) {
	version, err := m.CRI(ctx, m.path(socket))
	switch {
	case err == nil:
		f.add(Warning, "move its pods and stop it: systemctl disable --now "+unit+"; see docs/migrate.md",
			"another runtime, %s, serves CRI on %s: its pods and berth's do not know of each other", version, socket)
	case unserved(err):
		f.add(Note, "remove it once "+name+" is gone for good", "%s is a socket that nobody serves: it is left from %s", socket, name)
	case errors.Is(err, errNoCRI): // as Docker's containerd has it
	default:
		f.unasked(fmt.Errorf("ask %s which runtime it is: %w", socket, err))
	}
}
