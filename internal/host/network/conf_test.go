// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
)

// exhausted is a kernel without an inotify instance, or without a watch: others have them all.
type exhausted struct{ instances bool }

func (exhausted) Add(string) error                                { return syscall.ENOSPC }
func (exhausted) Remove(string) error                             { return nil }
func (exhausted) Close() error                                    { return nil }
func (exhausted) Channels() (<-chan fsnotify.Event, <-chan error) { return nil, nil }

func (e exhausted) watch() (watcher, error) {
	if e.instances {
		return nil, syscall.EMFILE
	}
	return e, nil
}

// Where no inotify instance was left berth ended: on a node with many followers of logs it did not
// come up.
func TestTheDirectoryIsPolledWhereItCannotBeWatched(t *testing.T) {
	for what, kernel := range map[string]exhausted{"instances": {true}, "watches": {false}} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bin, _ := fake(t)
				dir := t.TempDir()
				n, err := New(Config{
					ConfDir:  filepath.Join(dir, "net.d"),
					BinDirs:  []string{bin},
					CacheDir: filepath.Join(dir, "cache"),
					Logger:   slog.New(slog.DiscardHandler),
				})
				if err != nil {
					t.Fatal(err)
				}
				n.watch = kernel.watch
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- n.Run(ctx, noNotes{}) }()
				for _, name := range []string{"one", "two", "three"} {
					if err := errors.Join(
						os.MkdirAll(n.cfg.ConfDir, 0o755),
						os.WriteFile(filepath.Join(n.cfg.ConfDir, "1.conflist"), conflist(name, ""), 0o600),
					); err != nil {
						t.Fatal(err)
					}
					time.Sleep(2 * pollInterval)
					synctest.Wait()
					if got, _, _ := n.Active(); got != name {
						t.Errorf("%q is in use, want %q", got, name)
					}
					time.Sleep(watchAgain) // watching is tried again, and fails again
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// still is a watcher of a directory in which nothing changes.
type still struct{ exhausted }

func (still) Add(string) error { return nil }

// logged is the watcher of a directory that berth's own log is in.
type logged struct {
	still
	events chan fsnotify.Event
	log    string
	lines  int
}

func (l *logged) Channels() (<-chan fsnotify.Event, <-chan error) { return l.events, nil }

func (l *logged) Write(b []byte) (int, error) {
	l.lines++
	select {
	case l.events <- fsnotify.Event{Name: l.log, Op: fsnotify.Write}:
	default:
	}
	return len(b), nil
}

// While the directory was missing, and the log in its parent, each line about that was taken for a
// change, and caused the next one: ten in a second.
func TestALogBesideTheMissingDirectoryIsNotAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bin, _ := fake(t)
		dir := t.TempDir()
		l := &logged{events: make(chan fsnotify.Event, 1), log: filepath.Join(dir, "berth.log")}
		n, err := New(Config{
			ConfDir:  filepath.Join(dir, "cni", "net.d"),
			BinDirs:  []string{bin},
			CacheDir: filepath.Join(dir, "cache"),
			Logger:   slog.New(slog.NewTextHandler(l, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		n.watch = func() (watcher, error) { return l, nil }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- n.Run(ctx, noNotes{}) }()
		for range 100 {
			time.Sleep(time.Second)
			l.events <- fsnotify.Event{Name: filepath.Join(dir, "cni"), Op: fsnotify.Chmod} // on the way to it
		}
		synctest.Wait()
		if l.lines > 2 {
			t.Errorf("the log has %d lines", l.lines)
		}
		if err := errors.Join(
			os.MkdirAll(n.cfg.ConfDir, 0o755),
			os.WriteFile(filepath.Join(n.cfg.ConfDir, "1.conflist"), conflist("one", ""), 0o600),
		); err != nil {
			t.Fatal(err)
		}
		l.events <- fsnotify.Event{Name: filepath.Join(dir, "cni"), Op: fsnotify.Create}
		time.Sleep(time.Second)
		if got, _, _ := n.Active(); got != "one" {
			t.Errorf("%q is in use", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A read that failed for want of a descriptor was taken for an empty directory, or for a file that
// is to be skipped, until something changed there: no pod could be run, or with another network.
func TestAConfigurationThatCannotBeReadIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bin, _ := fake(t)
		n, err := New(Config{
			ConfDir:  t.TempDir(),
			BinDirs:  []string{bin},
			CacheDir: filepath.Join(t.TempDir(), "cache"),
			Logger:   slog.New(slog.DiscardHandler),
			Default:  &Bridge{Name: "default", Subnet: "10.9.9.0/24"},
		})
		if err != nil {
			t.Fatal(err)
		}
		write := func(name string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(n.cfg.ConfDir, "1.conflist"), conflist(name, ""), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(want string) {
			t.Helper()
			synctest.Wait()
			if got, _, _ := n.Active(); got != want {
				t.Errorf("%q is in use, want %q", got, want)
			}
		}
		write("one")
		n.reload()
		expect("one")
		write("two")

		var usual syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &usual); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: usual.Max}); err != nil {
			t.Fatal(err)
		}
		restore := func() {
			if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &usual); err != nil {
				t.Error(err)
			}
		}
		n.watch = func() (watcher, error) { return still{}, nil }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- n.Run(ctx, noNotes{}) }()
		time.Sleep(10 * readAgain)
		expect("one")
		restore()
		time.Sleep(2 * readAgain)
		expect("two")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
