// SPDX-License-Identifier: Apache-2.0

// This file holds a trick whole: containerd's parts are made here, and not by the program that they
// are written for. It relies on properties that containerd does not promise: that its parts are
// plug-ins which are ordered by its registry, that they need no other properties than these, and
// that their maker closes them in the reverse order. The setting containerd.address turns it off.
// Delete when containerd can be started in a process that is not its own, with a list of plug-ins.

package embed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/timeout"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/pelletier/go-toml/v2"
	bolterrors "go.etcd.io/bbolt/errors"
)

// openTimeout bounds the wait for containerd's own lock on its database, which
// only a foreign containerd on the same directory can hold: lock was taken before.
const openTimeout = 2 * time.Second

// loaded is the set of parts in the order they were made.
type loaded struct {
	set   *plugin.Set
	ready sync.WaitGroup
}

// load makes every part, dependencies first. On an error it closes the parts made so far. ctx lives
// as long as the parts do: some keep it for their goroutines.
func load(ctx context.Context, cfg Config) (_ *loaded, err error) {
	timeout.Set("io.containerd.timeout.bolt.open", openTimeout)

	l := &loaded{set: plugin.NewPluginSet()}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()

	settings := cfg.settings()
	missing := make(map[string]bool, len(parts))
	for _, uri := range parts {
		missing[uri] = true
	}
	foreign := func(r *plugin.Registration) bool { return !missing[r.URI()] }
	all := registry.Graph(foreign)
	for name, p := range cfg.Proxies {
		all = append([]plugin.Registration{p.registration(name)}, all...) // nothing else is needed for it
	}
	for _, r := range all {
		uri := r.URI()
		log.G(ctx).WithField("id", uri).Debug("load part")
		ic := plugin.NewContext(ctx, l.set, map[string]string{
			plugins.PropertyRootDir:      filepath.Join(cfg.Root, uri),
			plugins.PropertyStateDir:     filepath.Join(cfg.State, uri),
			plugins.PropertyGRPCAddress:  cfg.address(),
			plugins.PropertyTTRPCAddress: cfg.ttrpcAddress(),
		})
		ic.RegisterReadiness = func() func() {
			l.ready.Add(1)
			return l.ready.Done
		}
		if ic.Config, err = configure(r.Config, settings[uri]); err != nil {
			return nil, fmt.Errorf("configure containerd's %s: %w", uri, err)
		}
		p := r.Init(ic)
		if err := l.set.Add(p); err != nil {
			return nil, fmt.Errorf("load containerd's %s: %w", uri, err)
		}
		if err := p.Err(); err != nil {
			if errors.Is(err, bolterrors.ErrTimeout) {
				return nil, fmt.Errorf("load containerd's %s: another containerd uses %s: stop it or choose another directory: %w",
					uri, cfg.Root, err)
			}
			return nil, fmt.Errorf("load containerd's %s: %w", uri, err)
		}
		delete(missing, uri)
	}
	if len(missing) > 0 {
		var names []string
		for uri := range missing {
			names = append(names, uri)
		}
		slices.Sort(names)
		return nil, fmt.Errorf("load containerd's %s: not linked into this binary", strings.Join(names, ", "))
	}
	return l, nil
}

// configure returns a copy of a part's default configuration with the settings
// applied. A copy, because the default is shared by every Start of the process.
func configure(def any, settings map[string]any) (any, error) {
	if def == nil {
		return nil, nil
	}
	copied := reflect.New(reflect.TypeOf(def).Elem())
	copied.Elem().Set(reflect.ValueOf(def).Elem())
	cfg := copied.Interface()
	if settings == nil {
		return cfg, nil
	}
	text, err := toml.Marshal(settings)
	if err != nil {
		return nil, err
	}
	// Strict: a key that a new version of containerd no longer knows must not be dropped in silence.
	if err := toml.NewDecoder(strings.NewReader(string(text))).DisallowUnknownFields().Decode(cfg); err != nil {
		return nil, err
	}
	return cfg, nil
}

// serve starts the API listeners.
func (l *loaded) serve(ctx context.Context) error {
	for _, p := range l.set.GetAll() {
		if p.Registration.Type != plugins.ServerPlugin {
			continue
		}
		instance, err := p.Instance()
		if err != nil {
			return fmt.Errorf("start containerd's %s: %w", p.Registration.URI(), err)
		}
		listener, ok := instance.(interface{ Start(context.Context) error })
		if !ok {
			return fmt.Errorf("start containerd's %s: %T has no Start", p.Registration.URI(), instance)
		}
		if err := listener.Start(ctx); err != nil {
			return fmt.Errorf("start containerd's %s: %w", p.Registration.URI(), err)
		}
	}
	return nil
}

// close closes all parts that can be closed, last made first.
func (l *loaded) close() error {
	// A part that announced itself and is not ready yet still writes to a
	// database that is closed below.
	l.ready.Wait()
	var errs []error
	for _, p := range slices.Backward(l.set.GetAll()) {
		instance, err := p.Instance()
		if err != nil {
			continue
		}
		if c, ok := instance.(io.Closer); ok {
			if err := c.Close(); err != nil {
				errs = append(errs, fmt.Errorf("close containerd's %s: %w", p.Registration.URI(), err))
			}
		}
	}
	return errors.Join(errs...)
}

// part is the instance of a part.
func part[T any](l *loaded, uri string) (T, error) {
	var none T
	for _, p := range l.set.GetAll() {
		if p.Registration.URI() != uri {
			continue
		}
		instance, err := p.Instance()
		if err != nil {
			return none, err
		}
		v, ok := instance.(T)
		if !ok {
			return none, fmt.Errorf("containerd's %s is a %T", uri, instance)
		}
		return v, nil
	}
	return none, fmt.Errorf("containerd's %s is not loaded", uri)
}
