// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// Registry is the devices of the specifications in the directories. A device in a later directory
// takes the place of one of the same name in an earlier directory.
type Registry []string

// Inject changes s as the devices of the qualified names ask for. ErrNotFound names the devices
// that do not exist; s is unchanged then. A directory that does not exist, and a file that cannot
// be read, are named in that error alone.
func (r Registry) Inject(s *specs.Spec, names []string) error {
	if len(names) == 0 {
		return nil
	}
	dirs, irregular := readable(r)
	if len(dirs) == 0 { // the library would take directories of its own
		return r.notFound(names, irregular, nil)
	}
	// The error is nil, always: see cdi.NewCache.
	cache, _ := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
	missing, err := cache.InjectDevices(s, names...)
	if len(missing) > 0 {
		return r.notFound(missing, irregular, cache.GetErrors())
	}
	if err != nil {
		return fmt.Errorf("CDI devices %s: %w: %w", strings.Join(names, ", "), err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// readable returns the directories that the library can read, and what is wrong with the others:
// it opens whatever is named like a specification, and would wait for the writer of a FIFO.
func readable(dirs []string) (read, irregular []string) {
	for _, dir := range dirs {
		entries, _ := os.ReadDir(dir) // the library reports the error
		bad := slices.IndexFunc(entries, func(e os.DirEntry) bool {
			if ext := filepath.Ext(e.Name()); e.IsDir() || ext != ".json" && ext != ".yaml" {
				return false
			}
			st, err := os.Stat(filepath.Join(dir, e.Name()))
			return err == nil && !st.Mode().IsRegular() && !st.IsDir()
		})
		if bad < 0 {
			read = append(read, dir)
			continue
		}
		irregular = append(irregular, filepath.Join(dir, entries[bad].Name())+
			": it is not a regular file, so nothing in its directory is read")
	}
	return read, irregular
}

// notFound builds the error for missing devices. It lists the invalid specification files, because
// one of them may describe a missing device.
func (r Registry) notFound(missing, broken []string, faults map[string][]error) error {
	where := "no directory is configured (cdi.spec_dirs)"
	if len(r) > 0 {
		where = "no specification in " + strings.Join(r, ", ") + " has it"
	}
	for _, path := range slices.Sorted(maps.Keys(faults)) {
		if slices.Contains(r, path) {
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
