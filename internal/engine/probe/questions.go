// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	ocifeatures "github.com/opencontainers/runtime-spec/specs-go/features"
)

// askFeatures runs the command features of an OCI runtime.
func askFeatures(ctx context.Context, binary string) (*ocifeatures.Features, error) {
	out, err := run(ctx, binary, "features")
	if err != nil {
		return nil, err
	}
	var has ocifeatures.Features
	if err := json.Unmarshal(out, &has); err != nil {
		return nil, fmt.Errorf("read features of %s: %w", binary, err)
	}
	return &has, nil
}

// askHoles asks the OCI runtime of a handler for its version, and returns a warning if that version
// has known holes.
func (p *Probe) askHoles(ctx context.Context, name string) (string, error) {
	binary := ociRuntime(p.cfg.Handlers[name])
	out, err := run(ctx, binary, "--version")
	if err != nil {
		return "", err
	}
	v, holes, without := Holes(out)
	if holes == "" {
		return "", nil
	}
	text := fmt.Sprintf("runtime handler %s: %s is runc %s, out of which containers can break (%s); install %s", name, binary, v, holes, without)
	p.cfg.Logger.Warn("OCI runtime of a handler has known holes", "handler", name, "detail", text)
	return text, nil
}

// askUserNamespaces finds out whether pods of a handler can have user namespaces of their own: the
// OCI runtime has to mount with mapped owners, and the snapshotter, on this kernel, has to shift
// the owners of the layers. cannot is the reason if they cannot, as ErrNotImplemented.
func (p *Probe) askUserNamespaces(ctx context.Context, name string) (cannot, err error) {
	h := p.cfg.Handlers[name]
	defer func() {
		if cannot != nil {
			cannot = fmt.Errorf("%w: %w", cannot, errdefs.ErrNotImplemented)
			p.cfg.Logger.Info("runtime handler without user namespaces", "handler", name, "why", cannot)
		}
	}()
	if h.Sandboxer != "" || !isRunc(h) {
		return errors.New("only handlers of runc's shim, without a sandboxer, can make them"), nil
	}
	has, err := p.features.of(ctx, ociRuntime(h))
	if err != nil {
		return nil, err
	}
	if !mapsMounts(has) {
		return fmt.Errorf("%s does not mount with mapped owners", ociRuntime(h)), nil
	}
	snapshotter := cmp.Or(h.Snapshotter, p.cfg.Snapshotter)
	if maps, err := p.cfg.MapsOwners(ctx, snapshotter); err != nil {
		return nil, err
	} else if !maps {
		return fmt.Errorf("snapshotter %s does not shift the owners of files, or its file system does not on this kernel", snapshotter), nil
	}
	return nil, nil
}

// mapsMounts reports whether an OCI runtime mounts with mapped owners.
func mapsMounts(has *ocifeatures.Features) bool {
	l := has.Linux
	return l != nil && slices.Contains(l.Namespaces, "user") && l.MountExtensions != nil &&
		l.MountExtensions.IDMap != nil && l.MountExtensions.IDMap.Enabled != nil && *l.MountExtensions.IDMap.Enabled
}

// askShim asks whether the pods of a handler can do without a process.
func (p *Probe) askShim(ctx context.Context, name string) (can bool, err error) {
	h := p.cfg.Handlers[name]
	if h.Sandboxer == "" && isRunc(h) {
		if can, err = p.cfg.SandboxShim(ctx, h); err != nil {
			return false, err
		}
	}
	p.cfg.Logger.Debug("whether the sandboxes of a runtime handler can do without a process is known", "handler", name, "can", can)
	return can, nil
}

// run runs an OCI runtime, and returns its output. The error contains its standard error.
func run(ctx context.Context, binary, arg string) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, arg)
	cmd.Stderr = &stderr
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run %s %s: %w: %s", binary, arg, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}
