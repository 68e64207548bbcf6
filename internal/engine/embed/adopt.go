// SPDX-License-Identifier: Apache-2.0

// This file holds the half of a trick that needs the server's own parts: to give containerd a task
// whose shim runs. Package aside holds the rest; its documentation states the assumptions and when
// to delete it.

package embed

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/runtime"
	runtimev2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/errdefs"

	"berth/internal/base/connection"
	"berth/internal/engine/aside"
)

const (
	shimPart = "io.containerd.shim.v1.manager"
	// cleanUpTimeout is how long the clean-up after a shim may take, as in containerd.
	cleanUpTimeout = 5 * time.Second
)

// SetAside reports whether there is a task that containerd does not know, because its shim has not
// answered since the server was started. Unless the shim was asked before, it is asked now, which
// takes a second at most; when ctx ends before that, the task counts as set aside.
func (s *Server) SetAside(ctx context.Context, id string) bool { return s.aside.SetAside(ctx, id) }

// Adopt begins to give containerd the tasks of the shims that ran when the server was started, side
// by side and in the background. Call it once, after the work that must not wait for it. Until
// then, SetAside does so for each requested task.
func (s *Server) Adopt() { s.aside.Adopt() }

// loads is the loader of a server. A task that was put in its shim through a sandbox object is
// loaded the same way, even without a container: containerd lists it then. For any other the shim's
// program is asked, which finds the shim that runs and makes no other.
func (s *Server) loads(ctx context.Context, h *aside.Task) error {
	ctx = namespaces.WithNamespace(ctx, Namespace)
	path := h.Bundle()
	b, err := aside.Bootstrap(path)
	if err != nil {
		return fmt.Errorf("read how its shim is reached: %w", err)
	}
	manager, err := part[*runtimev2.ShimManager](s.parts, shimPart)
	if err != nil {
		return err
	}
	bundle, err := runtimev2.LoadBundle(ctx, filepath.Dir(h.Dir), h.ID)
	if err != nil {
		return err
	}
	// Containerd has removed the working directory: it did not know the task.
	if work, err := os.Readlink(filepath.Join(path, "work")); err == nil {
		if err := os.Mkdir(work, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make its working directory: %w", err)
		}
	}
	opts, err := s.made(ctx, h)
	if err != nil {
		return err
	}
	if opts.SandboxID != "" {
		opts.Address = b.GetProtocol() + "+" + b.GetAddress()
		opts.Version = uint32(b.GetVersion())
	}
	_, err = manager.Start(ctx, h.ID, bundle, opts)
	return err
}

// made returns how a task was made: through a sandbox object, or else for a container. If the
// program by which containerd cleans up after it was chosen when the container was made, it is that
// of the container's object; for example, a container in a shared shim is spared when the shim
// dies. Otherwise, if the pod is berth's, it is the program that a new task would get: see
// Config.Program.
func (s *Server) made(ctx context.Context, h *aside.Task) (runtime.CreateOpts, error) {
	sb, err := s.client.SandboxStore().Get(ctx, cmp.Or(h.Pod, h.ID))
	if err != nil && (h.IsSandbox() || !errdefs.IsNotFound(err)) {
		return runtime.CreateOpts{}, err
	}
	opts := runtime.CreateOpts{Runtime: sb.Runtime.Name, RuntimeOptions: sb.Runtime.Options, SandboxID: sb.ID}
	if h.IsSandbox() {
		if sb.Sandboxer == connection.OwnSandboxer { // and not one whose process its shim alone knows
			opts.Runtime = s.program(ctx, h, h.ID, sb)
		}
		return opts, nil
	}
	o, err := s.client.ContainerService().Get(ctx, h.ID)
	if err != nil && (sb.ID == "" || !errdefs.IsNotFound(err)) {
		return runtime.CreateOpts{}, err
	}
	switch pod := cmp.Or(o.SandboxID, h.Pod); {
	case sb.ID == "":
		opts.Runtime, opts.RuntimeOptions = o.Runtime.Name, o.Runtime.Options
	case o.Runtime.Name != opts.Runtime && usable(o.Runtime.Name):
		opts.Runtime = o.Runtime.Name
	case pod != "": // and not the pause process of a pod
		opts.Runtime = s.program(ctx, h, pod, sb)
	}
	return opts, nil
}

// program returns the program by which containerd is to clean up after the tasks in the shim of a
// pod.
func (s *Server) program(ctx context.Context, h *aside.Task, pod string, sb sandbox.Sandbox) string {
	if s.cfg.Program == nil || sb.Labels[connection.LabelOwner] == "" {
		return sb.Runtime.Name
	}
	return cmp.Or(s.cfg.Program(ctx, pod, h.Shim, sb.Runtime.Name, sb.Runtime.Options), sb.Runtime.Name)
}

// usable reports whether containerd can use a runtime of that name: where the name is the path of a
// program, the program may have been removed.
func usable(name string) bool {
	if !filepath.IsAbs(name) {
		return name != ""
	}
	_, err := os.Stat(name)
	return err == nil
}

// cleansUp cleans up as containerd does when it loses the connection to a shim: the shim's program
// kills the rest of the container, and the bundle is removed.
func (s *Server) cleansUp(ctx context.Context, h *aside.Task) error {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, Namespace), cleanUpTimeout)
	defer cancel()
	opts, err := s.made(ctx, h)
	if err != nil {
		return err
	}
	name := opts.Runtime
	if !filepath.IsAbs(name) {
		name = shim.BinaryName(name)
	}
	cmd := exec.CommandContext(ctx, name, "-namespace", Namespace, "-address", s.cfg.address(), "-id", h.ID, "-bundle", h.Bundle(), "delete")
	cmd.Dir = h.Bundle()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s delete: %w: %s", name, err, bytes.TrimSpace(out))
	}
	bundle, err := runtimev2.LoadBundle(ctx, filepath.Dir(h.Dir), h.ID)
	if err != nil {
		return err
	}
	return bundle.Delete()
}
