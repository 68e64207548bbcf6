// SPDX-License-Identifier: Apache-2.0

package cadvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// group is the cgroup of a sandbox without a process, as it is on record.
type group struct {
	Dir string `json:"dir"`
	// Thread is the one that cAdvisor got as the answer last; 0: it has not asked.
	Thread uint32 `json:"thread,omitempty"`
}

// groups are the cgroups that were made, by the IDs of their sandboxes. Each has a file in a
// directory, which is made before the cgroup, and is removed after it.
type groups struct {
	dir string

	mu sync.Mutex
	of map[string]group
}

// load reads the records of an earlier berth. A file that is not a record is removed: it was cut
// off before it had its name.
func (g *groups) load() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.of = map[string]group{}
	if err := os.MkdirAll(g.dir, 0o700); err != nil {
		return fmt.Errorf("read the cgroups made for cAdvisor: %w", err)
	}
	files, err := os.ReadDir(g.dir)
	if err != nil {
		return fmt.Errorf("read the cgroups made for cAdvisor: %w", err)
	}
	for _, f := range files {
		var made group
		b, err := os.ReadFile(filepath.Join(g.dir, f.Name()))
		if err == nil && !strings.HasSuffix(f.Name(), unfinished) && json.Unmarshal(b, &made) == nil && made.Dir != "" {
			g.of[f.Name()] = made
			continue
		}
		if err := os.Remove(filepath.Join(g.dir, f.Name())); err != nil {
			return fmt.Errorf("read the cgroups made for cAdvisor: %w", err)
		}
	}
	return nil
}

// unfinished ends the name of a file that is being written.
const unfinished = ".new"

// ids lists the sandboxes that have a cgroup on record.
func (g *groups) ids() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	ids := make([]string, 0, len(g.of))
	for id := range g.of {
		ids = append(ids, id)
	}
	return ids
}

func (g *groups) get(id string) (group, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	made, ok := g.of[id]
	return made, ok
}

// make puts a cgroup on record, if it is not, and makes it, if it is not there. It is
// fs.ErrNotExist where the parent is not there, and nothing is on record then.
func (g *groups) make(id, dir string) error {
	if made, ok := g.get(id); !ok || made.Dir != dir {
		g.mu.Lock()
		err := g.putLocked(id, group{Dir: dir})
		g.mu.Unlock()
		if err != nil {
			return err
		}
	}
	err := os.Mkdir(dir, 0o755)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	return errors.Join(fmt.Errorf("make the cgroup of sandbox %s for cAdvisor: %w", id, err), g.remove(id))
}

// answered records the thread that cAdvisor gets as the answer. It does nothing if there is no
// cgroup.
func (g *groups) answered(id string, thread uint32) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	made, ok := g.of[id]
	if !ok || made.Thread == thread {
		return nil
	}
	made.Thread = thread
	return g.putLocked(id, made)
}

// remove removes a cgroup, and its record after it. An absent one is not an error.
func (g *groups) remove(id string) error {
	made, ok := g.get(id)
	if !ok {
		return nil
	}
	if err := os.Remove(made.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the cgroup of sandbox %s for cAdvisor: %w", id, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := os.Remove(filepath.Join(g.dir, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of the cgroup of sandbox %s for cAdvisor: %w", id, err)
	}
	delete(g.of, id)
	return nil
}

func (g *groups) putLocked(id string, made group) error {
	b, err := json.Marshal(made)
	if err != nil {
		return fmt.Errorf("record the cgroup of sandbox %s for cAdvisor: %w", id, err)
	}
	path := filepath.Join(g.dir, id)
	if err := os.WriteFile(path+unfinished, b, 0o600); err != nil {
		return fmt.Errorf("record the cgroup of sandbox %s for cAdvisor: %w", id, err)
	}
	if err := os.Rename(path+unfinished, path); err != nil {
		return fmt.Errorf("record the cgroup of sandbox %s for cAdvisor: %w", id, err)
	}
	g.of[id] = made
	return nil
}
