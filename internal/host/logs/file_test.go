// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// planted are ways in which a pod that can write to its log directory may lead its log elsewhere.
// Each plants one and returns what must not be touched, if anything.
var planted = map[string]func(t *testing.T, o Options) (victim string){
	"a link in the place of the log": func(t *testing.T, o Options) string {
		victim := filepath.Join(t.TempDir(), "victim")
		must(t, os.MkdirAll(filepath.Dir(o.path()), 0o755), os.Symlink(victim, o.path()))
		return victim
	},
	"a link to a directory": func(t *testing.T, o Options) string {
		victim := t.TempDir()
		must(t, os.MkdirAll(o.LogDirectory, 0o755), os.Symlink(victim, filepath.Dir(o.path())))
		return filepath.Join(victim, "0.log")
	},
	"a link to a directory beside it": func(t *testing.T, o Options) string {
		must(t, os.MkdirAll(o.LogDirectory+"/other", 0o755), os.Symlink("other", filepath.Dir(o.path())))
		return o.LogDirectory + "/other/0.log"
	},
	"a link in the place of the pod's directory": func(t *testing.T, o Options) string {
		victim := t.TempDir()
		must(t, os.Symlink(victim, o.LogDirectory))
		return filepath.Join(victim, filepath.Dir(o.LogPath))
	},
	"a hard link": func(t *testing.T, o Options) string {
		victim := filepath.Join(o.LogDirectory, "victim")
		must(t, os.MkdirAll(filepath.Dir(o.path()), 0o755), os.WriteFile(victim, []byte("mine"), 0o600), os.Link(victim, o.path()))
		return ""
	},
	"a FIFO": func(t *testing.T, o Options) string {
		must(t, os.MkdirAll(filepath.Dir(o.path()), 0o755), unix.Mkfifo(o.path(), 0o600))
		return ""
	},
	"a directory": func(t *testing.T, o Options) string {
		must(t, os.MkdirAll(o.path(), 0o755))
		return ""
	},
	"a file in the place of a directory": func(t *testing.T, o Options) string {
		must(t, os.MkdirAll(o.LogDirectory, 0o755), os.WriteFile(filepath.Dir(o.path()), nil, 0o600))
		return ""
	},
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// CVE-2024-5154's class: what a pod plants where its log goes is not followed when the container
// starts.
func TestAPlantedLogIsRefusedAtCreate(t *testing.T) {
	for name, plant := range planted {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			victim := plant(t, o)
			if l, err := Create(o); !errors.Is(err, errdefs.ErrInvalidArgument) {
				t.Errorf("%v", err)
				if err == nil {
					_ = l.Remove()
				}
			}
			if _, err := os.Stat(victim); victim != "" && err == nil {
				t.Errorf("made what is planted: %s", victim)
			}
			if _, err := os.Stat(o.Dir); err == nil {
				t.Error("left stdio behind")
			}
		})
	}
}

// The same when the log is rotated: the old file goes on being written.
func TestAPlantedLogIsRefusedAtReopen(t *testing.T) {
	for name, plant := range planted {
		t.Run(name, func(t *testing.T) {
			c := start(t, options(t), host{})
			old := filepath.Join(t.TempDir(), "log")
			must(t, os.Rename(c.o.LogDirectory, old))
			victim := plant(t, c.o)
			if err := c.log.Reopen(t.Context()); !errors.Is(err, errdefs.ErrInvalidArgument) {
				t.Errorf("%v", err)
			}
			if _, err := os.Stat(victim); victim != "" && err == nil {
				t.Errorf("made what is planted: %s", victim)
			}
			c.write("hello\n")
			c.end()
			if got := parse(t, filepath.Join(old, c.o.LogPath))["stdout"]; string(got) != "hello\n" {
				t.Errorf("the old file has %q", got)
			}
		})
	}
}

// The same when berth comes back: the output waits until nothing is planted any more.
func TestAPlantedLogIsRefusedAfterARestart(t *testing.T) {
	for name, plant := range planted {
		t.Run(name, func(t *testing.T) {
			c := start(t, options(t), host{})
			_ = c.log.Close()
			c.run.Wait()
			old := filepath.Join(t.TempDir(), "log")
			must(t, os.Rename(c.o.LogDirectory, old))
			victim := plant(t, c.o)
			c.write("hello\n")
			c.restart(host{})
			until(t, "it is refused", func() bool { return c.log.Stats().LastErr != nil })
			if !errors.Is(c.log.Stats().LastErr, errdefs.ErrInvalidArgument) {
				t.Errorf("%v", c.log.Stats().LastErr)
			}
			if _, err := os.Stat(victim); victim != "" && err == nil {
				t.Errorf("made what is planted: %s", victim)
			}
			// In one step: the pump tries again meanwhile, and makes the directory anew.
			must(t, os.Rename(c.o.LogDirectory, filepath.Join(t.TempDir(), "planted")))
			c.end()
			c.expect("hello\n")
		})
	}
}

// The kubelet's own directory may be reached through links: that is how its logs are put on a disk
// of their own. That of a pod in it is not a link, unless somebody planted one.
func TestTheDirectoryOfAllLogsMayBeALink(t *testing.T) {
	o := options(t)
	target := t.TempDir()
	must(t, os.Symlink(target, o.LogDirectory))
	o.LogDirectory += "/pod"
	target += "/pod"
	c := start(t, o, host{})
	c.write("hello\n")
	c.end()
	c.expect("hello\n")
	st, err := os.Stat(filepath.Join(target, o.LogPath))
	if err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("%v, mode %v", err, st.Mode())
	}
}

// CVE-2025-0750's class.
func TestALogPathThatLeavesItsDirectoryIsRefused(t *testing.T) {
	for _, path := range []string{"../0.log", "/etc/0.log", "a/../../0.log", "."} {
		o := options(t)
		o.LogPath = path
		if l, err := Create(o); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%s: %v", path, err)
			if err == nil {
				_ = l.Remove()
			}
		}
	}
}
