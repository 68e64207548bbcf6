// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/base/inroot"
)

// Hook is a file of oci-hooks(5): a hook, the containers that it is for, and its stages.
type Hook struct {
	Hook specs.Hook `json:"hook"`
	When struct {
		Always        *bool             `json:"always"`
		Annotations   map[string]string `json:"annotations"` // patterns by patterns
		Commands      []string          `json:"commands"`    // patterns
		HasBindMounts *bool             `json:"hasBindMounts"`
	} `json:"when"`
	Stages  []string `json:"stages"`
	Version string   `json:"version"`
}

// maxHook bounds a file of a hook, and maxHooks how many files a directory has.
const maxHook, maxHooks = 64 << 10, 1024

// LoadHooks reads the hooks of directories, in the order of the names of their files. A file in a
// later directory takes the place of one of the same name. Directories need not exist. The error
// names a file that is not one of a hook.
func LoadHooks(dirs []string) ([]Hook, error) {
	files := map[string]string{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read OCI hooks: %w", err)
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".json") {
				files[e.Name()] = filepath.Join(dir, e.Name())
			}
		}
	}
	if len(files) > maxHooks {
		return nil, fmt.Errorf("read OCI hooks: %d files are more than %d: %w", len(files), maxHooks, errdefs.ErrFailedPrecondition)
	}
	var hooks []Hook
	for _, name := range slices.Sorted(maps.Keys(files)) {
		b, err := inroot.ReadGiven(files[name], maxHook)
		if errors.Is(err, os.ErrNotExist) {
			continue // it went meanwhile
		}
		var h Hook
		if err == nil {
			h, err = parseHook(b)
		}
		if err != nil {
			return nil, fmt.Errorf("read OCI hook %s: %w", files[name], err)
		}
		hooks = append(hooks, h)
	}
	return hooks, nil
}

// stages are the lists of hooks by the name of their stage.
var stages = map[string]func(*specs.Hooks) *[]specs.Hook{
	"prestart":        func(h *specs.Hooks) *[]specs.Hook { return &h.Prestart }, //nolint:staticcheck // files name it
	"createRuntime":   func(h *specs.Hooks) *[]specs.Hook { return &h.CreateRuntime },
	"createContainer": func(h *specs.Hooks) *[]specs.Hook { return &h.CreateContainer },
	"startContainer":  func(h *specs.Hooks) *[]specs.Hook { return &h.StartContainer },
	"poststart":       func(h *specs.Hooks) *[]specs.Hook { return &h.Poststart },
	"poststop":        func(h *specs.Hooks) *[]specs.Hook { return &h.Poststop },
}

// parseHook reads a file of a hook. A field that is not known is refused: it may be a condition.
func parseHook(b []byte) (h Hook, _ error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if len(b) > maxHook {
		return h, fmt.Errorf("it has more than %d bytes: %w", maxHook, errdefs.ErrInvalidArgument)
	}
	if err := d.Decode(&h); err != nil {
		return h, fmt.Errorf("it is not a hook: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if h.Version != "1.0.0" || !filepath.IsAbs(h.Hook.Path) || len(h.Stages) == 0 {
		return h, fmt.Errorf("it is not of version 1.0.0, or has no absolute path or no stages: %w", errdefs.ErrInvalidArgument)
	}
	for _, s := range h.Stages {
		if stages[s] == nil {
			return h, fmt.Errorf("stage %q is not known: %w", s, errdefs.ErrInvalidArgument)
		}
	}
	patterns := slices.Clone(h.When.Commands)
	for k, v := range h.When.Annotations {
		patterns = append(patterns, k, v)
	}
	for _, p := range patterns {
		if _, err := regexp.Compile(p); err != nil {
			return h, fmt.Errorf("pattern %q: %w: %w", p, err, errdefs.ErrInvalidArgument)
		}
	}
	return h, nil
}

// chooses reports whether the hook is for a container. As oci-hooks(5) has it, each condition of
// the hook holds; of patterns for annotations each matches one, and of those for commands any. A
// hook without conditions is for none.
func (h Hook) chooses(command string, annotations map[string]string, mounts bool) bool {
	w := h.When
	if w.Always == nil && w.HasBindMounts == nil && len(w.Annotations)+len(w.Commands) == 0 {
		return false
	}
	if w.Always != nil && !*w.Always || w.HasBindMounts != nil && *w.HasBindMounts != mounts {
		return false
	}
	for kp, vp := range w.Annotations {
		key, value := regexp.MustCompile(kp), regexp.MustCompile(vp)
		found := false
		for k, v := range annotations {
			found = found || key.MatchString(k) && value.MatchString(v)
		}
		if !found {
			return false
		}
	}
	return len(w.Commands) == 0 || slices.ContainsFunc(w.Commands, func(p string) bool { return regexp.MustCompile(p).MatchString(command) })
}

// addHooks adds the hooks that choose the container, by the annotations of its pod and its own.
func addHooks(s *specs.Spec, in Container) {
	annotations := maps.Clone(in.Sandbox.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	maps.Copy(annotations, in.Config.GetAnnotations())
	for _, h := range in.Hooks {
		if !h.chooses(s.Process.Args[0], annotations, len(in.Config.GetMounts()) > 0) {
			continue
		}
		if s.Hooks == nil {
			s.Hooks = &specs.Hooks{}
		}
		for _, stage := range h.Stages {
			list := stages[stage](s.Hooks)
			*list = append(*list, h.Hook)
		}
	}
}
