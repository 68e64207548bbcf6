// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	ctrdversion "github.com/containerd/containerd/v2/version"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/clock"
	"berth/internal/base/config"
	"berth/internal/base/version"
	"berth/internal/engine/probe"
	"berth/internal/heart/pod"
	"berth/internal/host/apparmor"
	"berth/internal/host/network"
	"berth/internal/images/image"
	"berth/internal/images/policy"
	"berth/internal/serve/nodeapi"
)

// health answers CRI's Status.
type health struct {
	away           func() error // nil while berth is connected to containerd
	notWritten     func() error // nil while the records can be written
	containerd     string       // where it is
	embedded       bool         // it runs in this process
	clock          *clock.Clock
	began          clock.Instant // when this process did
	network        *network.Network
	handlers       map[string]pod.Handler
	defaultHandler string
	probe          *probe.Probe
	preload        *image.Preload
	policy         *policy.Guard
	registries     *registryFiles
	plugins        plugins
	apparmor       *apparmor.AppArmor // nil where AppArmor is off
	settings       *atomic.Pointer[config.Config]
	exact          bool // the kernel says how a process ended that somebody else reaped
	log            *slog.Logger

	seccomp  bool                                  // this kernel has it, and profiles can be combined
	space    func(dir string) (total, free uint64) // 0 if it is not known
	inMemory func() string                         // why the history is in memory alone; "" if it is not

	groupsDelegated func() error
	// notDelegated is the logged reason why control groups cannot be writable; "" if they can be.
	notDelegated atomic.Pointer[string]

	podCIDR atomic.Pointer[string] // as the kubelet has sent it; nil: it has not
}

// registryFiles looks for mistakes in the configurations of registries, on a disk that may not
// answer.
type registryFiles struct {
	dir     string
	looking atomic.Bool
	found   atomic.Pointer[[]string]
}

// registriesTimeout is how long problems waits for the disk.
const registriesTimeout = time.Second

// problems returns the mistakes: those of the last look if the disk does not answer now.
func (r *registryFiles) problems() (list []string) {
	if r.dir == "" {
		return nil
	}
	looked := make(chan struct{})
	if r.looking.CompareAndSwap(false, true) {
		go func() {
			defer close(looked)
			defer r.looking.Store(false)
			var texts []string
			for _, err := range config.CheckRegistries(r.dir) {
				texts = append(texts, "pulls from a registry fail: "+err.Error())
			}
			r.found.Store(&texts)
		}()
	}
	select {
	case <-looked:
	case <-time.After(registriesTimeout):
		list = append(list, r.dir+" cannot be read now: pulls may wait for its disk")
	}
	if found := r.found.Load(); found != nil {
		list = append(list, *found...)
	}
	return list
}

func newHealth(w wings, disks *nodeapi.Disks) *health {
	where := w.cfg.Containerd.Address
	if w.embeds() {
		where = "embedded"
	}
	return &health{
		away:           w.containerd.away,
		notWritten:     w.records.NotWritten,
		containerd:     where,
		embedded:       w.embeds(),
		clock:          w.clock,
		began:          w.clock.Now(),
		network:        w.host.network,
		handlers:       w.host.handlers,
		defaultHandler: w.cfg.DefaultRuntime,
		probe:          w.engine.probe,
		preload:        w.images.preload,
		policy:         w.images.policy,
		registries:     &registryFiles{dir: w.cfg.Image.RegistryDir},
		plugins:        w.hooks.plugins,
		apparmor:       w.host.apparmor,
		settings:       w.settings,
		exact:          w.host.kernel.Exact(),
		log:            w.log.Logger,

		seccomp:  w.host.Seccomp && w.host.ProveSeccomp != nil,
		space:    disks.Space,
		inMemory: w.history.recorder.InMemory,

		groupsDelegated: w.host.GroupsDelegated,
	}
}

// Runtime implements cri.Health. Records that cannot be written come first: without them nothing is
// made, and no end is visible, whether containerd is there or not.
func (h *health) Runtime() error {
	if err := h.notWritten(); err != nil {
		return err
	}
	return h.away()
}

// Network implements cri.Health.
func (h *health) Network() error { return h.network.Status() }

// leastFree is the part of a disk below which it counts as full.
const leastFree = 0.05

// fullDisks returns a warning for each disk that is full: on that of the records no exit can be put
// on record soon, and on that of the state directory no process can be started.
func (h *health) fullDisks() (list []string) {
	cfg := h.settings.Load()
	for _, d := range []struct{ dir, then string }{
		{cfg.Root, "`berth df` has what takes the space, and on a full disk no exit is put on record"},
		{cfg.State, "on a full disk of the state directory neither a pod nor a process in one can be started"},
	} {
		if total, free := h.space(d.dir); total > 0 && float64(free) < leastFree*float64(total) {
			list = append(list, fmt.Sprintf("the disk of %s is full: %d MiB of %d MiB are free; %s", d.dir, free>>20, total>>20, d.then))
		}
	}
	return list
}

// forgets warns of a history that is lost with this process.
func (h *health) forgets() string {
	why := h.inMemory()
	if why == "" || h.settings.Load().Timeline.MaxMiB == 0 { // that is what was asked for
		return ""
	}
	return "the history is in memory alone, and lost if berth is restarted: " + why
}

// Info implements cri.Health.
func (h *health) Info() map[string]any {
	name, source, conf := h.network.Active()
	warnings := h.probe.Warnings()
	warnings = append(warnings, h.preload.Problems()...)
	warnings = append(warnings, h.policy.Problems()...)
	warnings = append(warnings, h.registries.problems()...)
	warnings = append(warnings, h.fullDisks()...)
	for _, text := range []string{h.apparmor.Warning(), h.plugins.problem(), h.forgets()} {
		if text != "" {
			warnings = append(warnings, text)
		}
	}
	info := map[string]any{
		"process":            map[string]any{"pid": os.Getpid(), "started": h.clock.Wall(h.began).Format(time.RFC3339)},
		"podCIDR":            h.podCIDR.Load(),
		"config":             h.settings.Load(),
		"containerd":         h.containerd,
		"connected":          h.away() == nil,
		"version":            version.String(),
		"golang":             runtime.Version(),
		"cni":                map[string]any{"name": name, "source": source, "conf": conf},
		"kernelWitnessExact": h.exact,
		"warnings":           warnings,
	}
	if s, at := h.clock.Told(); !at.IsZero() {
		info["clockSet"] = map[string]any{"from": s.From, "to": s.To, "at": h.clock.Wall(at)}
	}
	if h.embedded { // another one would have to be asked, and may not answer
		info["containerdVersion"], _, _ = strings.Cut(ctrdversion.Version, "+")
	}
	return info
}

// Handlers implements cri.Health.
func (h *health) Handlers() []*runtimeapi.RuntimeHandler {
	var out []*runtimeapi.RuntimeHandler
	for _, name := range append([]string{""}, slices.Sorted(maps.Keys(h.handlers))...) { // "" is the default one
		out = append(out, &runtimeapi.RuntimeHandler{
			Name:     name,
			Features: h.probe.Features(cmp.Or(name, h.defaultHandler)),
		})
	}
	return out
}

// SystemdCgroup implements cri.Health.
func (h *health) SystemdCgroup() bool { return h.handlers[h.defaultHandler].SystemdCgroup }

// PulledProfiles implements cri.Health.
func (h *health) PulledProfiles() bool { return h.seccomp }

// WritableCgroups implements cri.Health. It logs each change, because the kubelet does not report
// why a feature is missing.
func (h *health) WritableCgroups() bool {
	why := ""
	if err := h.groupsDelegated(); err != nil {
		why = err.Error()
	}
	if old := h.notDelegated.Swap(&why); old == nil || *old != why {
		if why != "" {
			h.log.Info("containers cannot have writable control groups (cgroup_mount_mode)", "why", why)
		} else {
			h.log.Info("containers can have writable control groups (cgroup_mount_mode)")
		}
	}
	return why == ""
}

// SetPodCIDR implements cri.Health. Each value is logged once: a person who expects pods to get
// their addresses from it finds out why they do not.
func (h *health) SetPodCIDR(cidrs string) {
	if old := h.podCIDR.Swap(&cidrs); old == nil || *old != cidrs {
		h.log.Info("the kubelet has sent the node's pod CIDR; the CNI configuration decides on the addresses of pods", "podCIDR", cidrs)
	}
}
