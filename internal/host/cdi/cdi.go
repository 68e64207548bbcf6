// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// Registry is the set of devices that the specifications describe. Its methods may be called from
// any goroutine.
type Registry struct {
	dirs  []string
	cache *cdi.Cache
}

// Open reads the specifications in dirs. A device in a later directory takes the place of one of
// the same name in an earlier directory. A directory that does not exist, and a file that cannot be
// read, are not errors here: they are named when a device is not found.
func Open(dirs []string) *Registry {
	// The error is nil, always: see cdi.NewCache.
	cache, _ := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
	return &Registry{dirs: dirs, cache: cache}
}

// Run follows changes of the specifications until ctx ends.
func (r *Registry) Run(ctx context.Context) error {
	if err := r.cache.Configure(cdi.WithAutoRefresh(true)); err != nil {
		return fmt.Errorf("follow CDI specifications: %w", err)
	}
	<-ctx.Done()
	if err := r.cache.Configure(cdi.WithAutoRefresh(false)); err != nil {
		return fmt.Errorf("follow CDI specifications: %w", err)
	}
	return nil
}

// Inject changes s as the devices of the qualified names ask for. ErrNotFound names the devices
// that do not exist; s is unchanged then.
func (r *Registry) Inject(s *specs.Spec, names []string) error {
	if len(names) == 0 {
		return nil
	}
	missing, err := r.cache.InjectDevices(s, names...)
	if len(missing) > 0 {
		if rerr := r.reload(); rerr != nil {
			return rerr
		}
		missing, err = r.cache.InjectDevices(s, names...)
	}
	if len(missing) > 0 {
		return r.notFound(missing)
	}
	if err != nil {
		return fmt.Errorf("CDI devices %s: %w: %w", strings.Join(names, ", "), err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// reload reads the specifications again, whether or not a change was noticed. Configuring the
// cache, with any option, does so in both of its modes; Refresh does not.
func (r *Registry) reload() error {
	if err := r.cache.Configure(cdi.WithSpecDirs(r.dirs...)); err != nil {
		return fmt.Errorf("read CDI specifications: %w", err)
	}
	return nil
}

// notFound builds the error for missing devices. It lists the invalid specification files, because
// one of them may describe a missing device.
func (r *Registry) notFound(missing []string) error {
	where := "no directory is configured (cdi.spec_dirs)"
	if len(r.dirs) > 0 {
		where = "no specification in " + strings.Join(r.dirs, ", ") + " has it"
	}
	var broken []string
	faults := r.cache.GetErrors()
	for _, path := range slices.Sorted(maps.Keys(faults)) {
		if slices.Contains(r.dirs, path) {
			continue // it does not exist, or cannot be watched
		}
		for _, err := range faults[path] {
			broken = append(broken, fmt.Sprintf("%s: %v", path, err))
		}
	}
	if len(broken) > maxFaults {
		broken = append(broken[:maxFaults], "and more")
	}
	if len(broken) > 0 {
		where += "; specifications that are not valid: " + strings.Join(broken, "; ")
	}
	return fmt.Errorf("CDI device %s: %s: %w", strings.Join(missing, ", "), where, errdefs.ErrNotFound)
}

// maxFaults bounds how many faults of files one error names.
const maxFaults = 5
