// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/engine/adopt"
	"berth/internal/host/namespace"
)

// find gathers what there is of the plug-in's pods. It changes nothing.
func (n *node) find(ctx context.Context) (f adopt.Found, err error) {
	volatile := n.request.ContainerdState
	if volatile == "" {
		volatile = filepath.Dir(strings.TrimPrefix(n.cfg.Containerd.Address, "unix://"))
	}
	if f.Root, f.State, err = n.ctrd.Dirs(ctx, volatile); err != nil {
		return f, err
	}
	if f.Objects, err = n.ctrd.Objects(ctx); err != nil {
		return f, err
	}
	if f.ImageRefs, err = n.ctrd.ImageRefs(ctx); err != nil {
		return f, err
	}
	f.Statuses, f.ImageVolumes, f.Pinned = map[string][]byte{}, map[string][]string{}, map[string]bool{}
	for _, o := range f.Objects {
		b, err := os.ReadFile(filepath.Join(f.Root, "containers", o.ID, "status"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return f, fmt.Errorf("read what the plug-in says of %s: %w", o.ID, err)
		}
		if err == nil {
			f.Statuses[o.ID] = b
		}
		if f.ImageVolumes[o.ID], err = below(filepath.Join(f.State, "image-volumes", o.ID)); err != nil {
			return f, err
		}
	}
	if f.Networks, err = cachedResults(filepath.Join(n.request.CNICache, "results"), f.Objects); err != nil {
		return f, err
	}
	for _, path := range adopt.NetworkNamespaces(f) {
		if f.Pinned[path], err = namespace.IsPinned(path); err != nil {
			return f, fmt.Errorf("look for the network namespace %s: %w", path, err)
		}
	}
	f.Shifts = map[string]bool{}
	for _, name := range adopt.MappedHandlers(f) {
		r, ok := n.cfg.Runtimes[cmp.Or(name, n.cfg.DefaultRuntime)]
		if !ok {
			continue // its pods are refused
		}
		snapshotter := cmp.Or(r.Snapshotter, n.cfg.Containerd.Snapshotter)
		if f.Shifts[snapshotter], err = n.shifts(ctx, snapshotter); err != nil {
			return f, fmt.Errorf("ask whether the snapshotter %s shifts the owners of files: %w", snapshotter, err)
		}
	}
	return f, nil
}

// below lists what is in a directory; nothing if it is not there.
func below(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		paths = append(paths, filepath.Join(dir, e.Name()))
	}
	return paths, nil
}

// cachedResults reads CNI's cached results of the pods, which are called NETWORK-ID-INTERFACE.
func cachedResults(dir string, objects []adopt.Object) (map[string][]adopt.Cached, error) {
	paths, err := below(dir)
	if err != nil {
		return nil, fmt.Errorf("look for CNI's cached results: %w", err)
	}
	ids := map[string]bool{}
	for _, o := range objects {
		ids[o.ID] = true
	}
	cached := map[string][]adopt.Cached{}
	for _, path := range paths {
		words := strings.Split(filepath.Base(path), "-")
		i := slices.IndexFunc(words, func(w string) bool { return ids[w] })
		if i < 0 {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read CNI's cached result: %w", err)
		}
		cached[words[i]] = append(cached[words[i]], adopt.Cached{Path: path, Text: b})
	}
	return cached, nil
}
