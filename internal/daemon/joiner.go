// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/engine/probe"
	"berth/internal/engine/shims"
	"berth/internal/heart/pod"
	"berth/internal/history/observe"
	"berth/internal/host/cgroup"
	"berth/internal/host/pidfd"
	"berth/internal/serve/join"
	"berth/internal/serve/stream"
)

// openJoiner makes the joiner, which runs probes without an OCI runtime, for the handlers that
// have it on.
func openJoiner(b base, e engine) stream.Joiner {
	j := &joiner{on: map[string]bool{}, probe: e.probe, metrics: b.metrics, log: b.log.Logger}
	for name, r := range b.cfg.Runtimes {
		if r.Joins() {
			j.on[name] = true
		}
	}
	if len(j.on) == 0 {
		return j
	}
	var err error
	if j.join, err = join.New(join.Config{Libexec: b.libexec, Spec: e.ctrd.Spec}); err != nil {
		b.log.Warn("berth-exec cannot be used on this node: the OCI runtime makes the processes of probes", "err", err)
		clear(j.on)
		return j
	}
	b.undo.add(func() error {
		j.join.Close()
		return nil
	})
	return j
}

// joiner plugs package join into package stream.
type joiner struct {
	join    *join.Joiner
	on      map[string]bool // by handler
	probe   *probe.Probe
	metrics *observe.Metrics
	log     *slog.Logger
}

// Prepare implements stream.Joiner.
func (j *joiner) Prepare(ctx context.Context, t pod.Target, args []string) stream.Joined {
	if !j.on[t.Handler.Name] {
		j.metrics.Executed("oci", "off")
		return nil
	}
	name, version, libseccomp := j.probe.OCI(t.Handler.Name)
	path, _ := strings.CutPrefix(t.Process.Cgroup, strings.TrimSuffix(cgroup.Dir("/"), "/"))
	p, err := j.join.Prepare(ctx, join.Container{
		ID:      t.ID,
		Runtime: join.Runtime{Name: name, Version: version, Libseccomp: libseccomp},
		Records: filepath.Join(shims.RecordsIn(t.Handler.Root), t.ID),
		Process: t.Process.Process,
		Cgroup:  path,
		Ended:   t.Ended,
	}, args)
	if err != nil {
		j.left(t, err)
		return nil
	}
	return joined{j, t, p}
}

// left says that a process is left to the OCI runtime.
func (j *joiner) left(t pod.Target, err error) {
	why := join.Failed
	if r := (*join.Refusal)(nil); errors.As(err, &r) {
		why = r.Why
	}
	j.metrics.Executed("oci", string(why))
	j.log.Debug("the OCI runtime makes the process of an ExecSync", "container", t.ID, "why", err)
}

type joined struct {
	*joiner
	target pod.Target
	plan   *join.Plan
}

// Start implements stream.Joined.
func (s joined) Start(ctx context.Context, stdout, stderr *os.File, note func(pidfd.Process) error) (stream.Member, error) {
	p, err := s.plan.Start(ctx, stdout, stderr, note)
	if err != nil {
		s.left(s.target, err)
		return nil, err
	}
	s.metrics.Executed("helper", "")
	return p, nil
}
