// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"berth/internal/base/inroot"
	"berth/internal/base/retry"
)

const (
	// ownSource begins the source of the default network.
	ownSource = "berth's default bridge "
	// quiet is how long the directory must be unchanged before it is read: files are often written
	// in several steps.
	quiet = 100 * time.Millisecond
	// pollInterval is how often the directory is looked at where it cannot be watched.
	pollInterval = 5 * time.Second
	// readAgain is how long after a failed attempt to read the directory, as without a free
	// descriptor, it is read again.
	readAgain = time.Second
	// maxConf bounds a file of the directory, in bytes.
	maxConf = 1 << 20
	// watchAgain is how long polling goes on before watching is tried again.
	watchAgain = time.Minute
)

// watcher is an fsnotify.Watcher.
type watcher interface {
	Add(path string) error
	Remove(path string) error
	Close() error
	// Channels are where it reports.
	Channels() (events <-chan fsnotify.Event, errs <-chan error)
}

type inotify struct{ *fsnotify.Watcher }

// Channels returns the watcher's own channels.
func (w inotify) Channels() (<-chan fsnotify.Event, <-chan error) { return w.Events, w.Errors }

func newWatcher() (watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	return inotify{w}, nil
}

// Run follows the configuration directory until ctx ends, asks the plug-ins whether they are ready,
// looks after the rules of host ports, and ends the remaining processes of an earlier berth's calls
// when their grace period is over.
// inotify instances are few (128 for each user), and others may have all of them: the directory is
// then polled, and watching is tried again.
func (n *Network) Run(ctx context.Context, notes Notes) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	for _, own := range n.handlers {
		beside.Go(func() { _ = own.Run(ctx, notes) }) // it returns nil, once ctx has ended
	}
	beside.Go(func() { n.watchStatus(ctx) })
	beside.Go(func() { n.watchRules(ctx, notes) })
	beside.Go(func() {
		if retry.Sleep(ctx.Done(), Grace) {
			n.sweep()
		}
	})
	reported := false
	for ctx.Err() == nil {
		w, err := n.watch()
		if err == nil {
			reported = false
			err = n.follow(ctx, w)
			_ = w.Close()
		}
		if err != nil && !reported {
			reported = true
			n.cfg.Logger.Warn("network configuration not watched, polling", "dir", n.cfg.ConfDir, "interval", pollInterval.String(), "err", err)
		}
		if ctx.Err() == nil {
			n.poll(ctx)
		}
	}
	return nil
}

// follow reads the directory anew when it changes, until ctx ends or it cannot be watched.
func (n *Network) follow(ctx context.Context, w watcher) error {
	settle := time.NewTimer(0)
	defer settle.Stop()
	events, errs := w.Channels()
	watched := ""
	for {
		// The directory may not exist yet, or be made anew: then its nearest parent is watched.
		if dir := nearest(n.cfg.ConfDir); dir != watched {
			if watched != "" {
				_ = w.Remove(watched)
			}
			if err := w.Add(dir); err != nil {
				return fmt.Errorf("watch %s: %w", dir, err)
			}
			watched = dir
			settle.Reset(0)
		}
		select {
		case <-ctx.Done():
			return nil
		case ev := <-events:
			if rel, err := filepath.Rel(ev.Name, n.cfg.ConfDir); watched != n.cfg.ConfDir && (err != nil || strings.HasPrefix(rel, "..")) {
				continue // in a parent, beside the way to the directory: it may be berth's own log
			}
			if ev.Has(fsnotify.Remove) && ev.Name == watched {
				watched = ""
			}
			settle.Reset(quiet)
		case err := <-errs:
			n.cfg.Logger.Warn("events of the network configuration lost, reading it again", "err", err)
			settle.Reset(0)
		case <-settle.C:
			if !n.reload() {
				settle.Reset(readAgain)
			}
		}
	}
}

// poll reads the directory anew when it differs, for as long as watching is not tried again.
func (n *Network) poll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, watchAgain)
	defer cancel()
	t := time.NewTicker(pollInterval)
	defer t.Stop()
	was := n.fingerprint() // before reading, so that a change during the reading is noticed
	read := n.reload()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if is := n.fingerprint(); is != was || !read {
			was = is
			read = n.reload()
		}
	}
}

// fingerprint changes whenever a file of the directory does. Reading the configuration itself runs
// plug-ins, to ask for their versions.
func (n *Network) fingerprint() string {
	var b strings.Builder
	entries, err := os.ReadDir(n.cfg.ConfDir)
	if err != nil {
		return err.Error()
	}
	for _, e := range entries {
		if st, err := os.Stat(filepath.Join(n.cfg.ConfDir, e.Name())); err == nil {
			fmt.Fprintln(&b, e.Name(), st.Size(), st.ModTime().UnixNano())
		}
	}
	return b.String()
}

// nearest returns dir, or the nearest of its parents that exists.
func nearest(dir string) string {
	for {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// reload switches to the configuration that is in the directory now. It returns false if the
// directory could not be read: the current configuration stays in use, and the caller retries.
func (n *Network) reload() (read bool) {
	list, source, err := n.choose()
	n.mu.Lock()
	if unread(err) {
		if n.mu.active == nil {
			n.mu.why = err
		}
		n.mu.Unlock()
		n.cfg.Logger.Warn("network configuration not read, retrying", "err", err)
		return false
	}
	said := err != nil && n.mu.why != nil && n.mu.why.Error() == err.Error()
	changed := n.mu.source != source || (list != nil && n.mu.active != nil && string(list.Bytes) != string(n.mu.active.Bytes))
	n.mu.active, n.mu.source, n.mu.why, n.mu.own = list, source, err, strings.HasPrefix(source, ownSource)
	n.mu.Unlock()
	switch {
	case said:
	case err != nil:
		n.cfg.Logger.Warn("pods cannot be connected to a network", "err", err)
	case changed:
		n.changed.Up()
		n.cfg.Logger.Info("network configuration", "name", list.Name, "from", source)
	}
	return true
}

// unread reports whether an error leaves the content of the directory unknown, because this process
// or the host lacks a resource to read it, or to ask a plug-in for its versions.
func unread(err error) bool {
	return slices.ContainsFunc([]error{
		unix.EMFILE,
		unix.ENFILE,
		unix.ENOMEM,
		unix.EAGAIN,
		unix.EIO,
	}, func(e error) bool { return errors.Is(err, e) })
}

// choose finds the configuration to use.
func (n *Network) choose() (*libcni.NetworkConfigList, string, error) {
	files, err := libcni.ConfFiles(n.cfg.ConfDir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, "", fmt.Errorf("read network configuration: %w", err)
	}
	slices.Sort(files)
	for _, f := range files {
		list, err := loadFile(f)
		if err == nil {
			_, err = n.cni.ValidateNetworkList(context.Background(), list)
		}
		if unread(err) {
			return nil, "", fmt.Errorf("read network configuration %s: %w", f, err)
		}
		if err != nil {
			n.cfg.Logger.Warn("invalid network configuration skipped", "file", f, "err", err)
			continue
		}
		if n.cfg.Name != "" && list.Name != n.cfg.Name {
			continue
		}
		return list, f, nil
	}
	if n.cfg.Name != "" {
		return nil, "", fmt.Errorf("there is no valid CNI configuration of the network %s (network.name) in %s: %w", n.cfg.Name, n.cfg.ConfDir, errdefs.ErrUnavailable)
	}
	if n.cfg.Default == nil {
		return nil, "", fmt.Errorf("there is no valid CNI configuration in %s: put one there, or allow berth's default bridge: %w", n.cfg.ConfDir, errdefs.ErrUnavailable)
	}
	list, err := libcni.NetworkConfFromBytes(n.cfg.Default.conf("1.0.0"))
	if err != nil {
		return nil, "", fmt.Errorf("default bridge: %w", err)
	}
	return list, ownSource + n.cfg.Default.Name, nil
}

func loadFile(f string) (*libcni.NetworkConfigList, error) {
	given, err := inroot.OpenGiven(f, maxConf) // the library would wait for the writer of a FIFO
	if err != nil {
		return nil, err
	}
	_ = given.Close()
	if strings.HasSuffix(f, ".conflist") {
		return libcni.NetworkConfFromFile(f)
	}
	conf, err := libcni.ConfFromFile(f) //nolint:staticcheck // single-plug-in files are still written
	if err != nil {
		return nil, err
	}
	if conf.Network.Type == "" {
		return nil, errors.New("it has no type: a list belongs into a .conflist file")
	}
	return libcni.ConfListFromConf(conf) //nolint:staticcheck // as above
}
