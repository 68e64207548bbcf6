// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
)

const (
	// layerTick is how often the list of layers that are sampled is renewed.
	layerTick = 5 * time.Second
	// cpuTick is how often CPU times are sampled while there are calls, of what they leave out.
	cpuTick = 10 * time.Second
	// askedFor is how long after a call another one is expected, and restTick how often layers and
	// CPU times are sampled while none is: a kubelet asks every ten seconds.
	askedFor = time.Minute
	restTick = 5 * time.Minute
	// maxSelections is how many lists with a filter are measured at the same time.
	maxSelections = 8
)

// Config holds the settings and ports of a Service.
type Config struct {
	Pods   Pods
	Layers Layers
	// Shims may be nil: then containers whose processes are elsewhere have no usage.
	Shims Shims
	// Mountpoint is where the file system of writable layers is mounted, as ImageFsInfo names it.
	// It is "" while that is not known.
	Mountpoint func() string
	// Cgroups is the directory where cgroups are mounted, usually /sys/fs/cgroup; Unified is set if
	// this is the unified hierarchy of cgroup v2 alone.
	Cgroups string
	Unified bool
	// Logger reports figures that are left out. It may be nil.
	Logger *slog.Logger
}

// Service answers CRI's calls about statistics and metrics. Its methods may be called by any number
// of goroutines.
type Service struct {
	pods     Pods
	cgroups  hierarchy
	layers   *layers
	guests   *guests
	networks *networks
	rates    *rates
	// Calls for a list of everything share a measurement.
	allContainers rounds[[]*runtimeapi.ContainerStats]
	allSandboxes  rounds[[]*runtimeapi.PodSandboxStats]
	allMetrics    rounds[[]*runtimeapi.PodSandboxMetrics]
	demand        demand
	// selections bounds how many lists with a filter are measured at the same time. Those that wait
	// have nothing yet.
	selections *semaphore.Weighted
}

// New makes a Service. Run has to run for it to sample writable layers and to know rates at once.
func New(cfg Config) *Service {
	s := &Service{
		pods:       cfg.Pods,
		cgroups:    hierarchy{cfg.Cgroups, cfg.Unified},
		layers:     newLayers(cfg.Layers, cfg.Mountpoint),
		guests:     &guests{shims: cfg.Shims, asked: map[string]*answer{}},
		networks:   newNetworks(cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))),
		rates:      &rates{windows: map[string]*window{}},
		selections: semaphore.NewWeighted(maxSelections),
	}
	s.allContainers.measure = func(ctx context.Context) ([]*runtimeapi.ContainerStats, error) {
		return s.measure(ctx, s.containers(running()))
	}
	s.allSandboxes.measure = func(ctx context.Context) ([]*runtimeapi.PodSandboxStats, error) {
		return s.measureSandboxes(ctx, s.sandboxes(ready()))
	}
	s.allMetrics.measure = s.metricsOfAll
	return s
}

// Run samples in the background until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	var g errgroup.Group
	layerDue, cpuDue := make(chan time.Time), make(chan time.Time)
	g.Go(func() error { s.demand.tick(ctx, layerTick, layerDue); return nil })
	g.Go(func() error { s.demand.tick(ctx, cpuTick, cpuDue); return nil })
	g.Go(func() error { return s.layers.run(ctx, layerDue, s.allLayers) })
	g.Go(func() error {
		for {
			s.sampleCPU(ctx)
			select {
			case <-ctx.Done():
				return nil
			case <-cpuDue:
			}
		}
	})
	return g.Wait()
}

// demand knows when somebody has asked for statistics. It is the instant of the last call.
type demand struct{ asked atomic.Pointer[time.Time] }

// note notes a call.
func (d *demand) note() {
	now := time.Now()
	d.asked.Store(&now)
}

// tick sends to due at each interval, until ctx ends: at that of every while somebody asks, and
// otherwise at restTick.
func (d *demand) tick(ctx context.Context, every time.Duration, due chan<- time.Time) {
	t := time.NewTicker(every)
	defer t.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			asked := d.asked.Load()
			if now.Sub(last) < restTick && (asked == nil || now.Sub(*asked) > askedFor) {
				continue
			}
			last = now
		}
		select {
		case <-ctx.Done():
			return
		case due <- last:
		}
	}
}

func running() *runtimeapi.ContainerFilter {
	return &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}
}

func ready() *runtimeapi.PodSandboxFilter {
	return &runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	}
}

// allLayers returns the layers of all containers.
func (s *Service) allLayers() (running, others []layer) {
	return layersOf(s.containers(nil))
}

// layersOf returns the layers of containers that run, and of others.
func layersOf(list []container) (running, others []layer) {
	for _, c := range list {
		switch {
		case c.target.Snapshotter == "": // there is no target
		case c.item.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING:
			running = append(running, c.layer())
		default:
			others = append(others, c.layer())
		}
	}
	return running, others
}

// sampleCPU samples the CPU time of every running container and pod without a recent call, and
// forgets those that do not run any more.
func (s *Service) sampleCPU(ctx context.Context) {
	since := time.Now().Add(-cpuTick + minWindow)
	groups := map[string]string{} // "": a shim knows
	var guests []container
	for _, c := range s.containers(running()) {
		id := c.item.GetId()
		switch {
		case c.runs():
			groups[id] = c.target.Process.Cgroup
		case c.isGuest():
			if groups[id] = ""; s.rates.stale(id, since) {
				guests = append(guests, c)
			}
		}
	}
	for _, p := range s.sandboxes(ready()) {
		groups[p.item.GetId()] = p.measured()
	}
	known := make(map[string]bool, len(groups))
	for id := range groups {
		known[id] = true
	}
	s.rates.keep(known)
	for id, u := range s.guests.of(ctx, guests) {
		s.rates.add(id, sample{u.at, u.CpuStats.CpuUsage.TotalUsage})
	}
	for id, dir := range groups {
		if ctx.Err() != nil {
			return
		}
		if dir == "" || !s.rates.stale(id, since) {
			continue
		}
		if now, err := s.cgroups.group(dir).cpuTime(); err == nil {
			s.rates.add(id, now)
		}
	}
}

// container is a container as the controller describes it.
type container struct {
	item   *runtimeapi.Container
	target pod.Target // zero if there is none: its record is damaged, or it was removed meanwhile
}

func (c container) layer() layer { return layer{c.target.Snapshotter, c.item.GetId()} }

// runs reports whether there is a cgroup whose figures are those of the container. The cgroup of a
// container whose processes are in a virtual machine, or behind a kernel like gVisor's, is empty or
// that of the machine, and so its values are not those of the container.
func (c container) runs() bool {
	return c.target.Running && c.target.Handler.HostProcess && c.target.Process.Cgroup != ""
}

// isGuest reports whether the processes of the container are not on this host, so that its shim
// alone knows its usage.
func (c container) isGuest() bool { return c.target.Running && !c.target.Handler.HostProcess }

func (s *Service) containers(f *runtimeapi.ContainerFilter) []container {
	items := s.pods.ListContainers(f)
	list := make([]container, 0, len(items))
	for _, item := range items {
		t, err := s.pods.Target(item.GetId())
		if err != nil && f.GetState() != nil {
			continue // removed since it was listed
		}
		list = append(list, container{item, t})
	}
	return list
}

// sandbox is a sandbox as the controller describes it.
type sandbox struct {
	item   *runtimeapi.PodSandbox
	target pod.Target
	// group is the cgroup of the whole pod. It is "" if the pod has none of its own.
	group string
}

// measured returns the cgroup whose counters are those of the sandbox. Where its processes are
// elsewhere that is the cgroup of the whole pod alone, in which the virtual machine is.
func (p sandbox) measured() string {
	if p.group != "" || !p.target.Handler.HostProcess {
		return p.group
	}
	return p.target.Process.Cgroup
}

// sandboxes lists the sandboxes that match, each with the cgroup of its pod.
//
// The kubelet makes a cgroup for each pod and names it as the parent. Other clients name one parent
// for several pods or none, and the counters there are not the usage of a pod.
func (s *Service) sandboxes(f *runtimeapi.PodSandboxFilter) []sandbox {
	users := map[string]map[string]bool{} // the UIDs of the pods below a cgroup
	below := s.containerParents()
	parentOf := func(t pod.Target) string {
		if t.Process.Cgroup == "" { // it has no process
			return below[t.ID]
		}
		return filepath.Dir(t.Process.Cgroup)
	}
	for _, item := range s.pods.ListPodSandbox(nil) {
		if t, err := s.pods.Target(item.GetId()); err == nil && parentOf(t) != "" {
			parent := parentOf(t)
			if users[parent] == nil {
				users[parent] = map[string]bool{}
			}
			users[parent][item.GetMetadata().GetUid()] = true
		}
	}
	items := s.pods.ListPodSandbox(f)
	list := make([]sandbox, 0, len(items))
	for _, item := range items {
		t, err := s.pods.Target(item.GetId())
		if err != nil && f.GetState() != nil {
			continue
		}
		p := sandbox{item: item, target: t}
		parent := parentOf(t)
		if t.Running && isParent(t.CgroupParent, parent) && len(users[parent]) == 1 {
			p.group = parent
		}
		list = append(list, p)
	}
	return list
}

// isParent reports whether the directory is the cgroup that was asked for as the parent of the pod.
func isParent(asked, dir string) bool {
	return asked != "" && filepath.Base(asked) == filepath.Base(dir)
}

// one returns the single item that an ID, or the beginning of one, stands for.
func one[T interface{ GetId() string }](kind, id string, items []T) (T, error) {
	var none T
	if id == "" {
		return none, fmt.Errorf("statistics of a %s: no ID was given: %w", kind, errdefs.ErrInvalidArgument)
	}
	for _, item := range items {
		if item.GetId() == id {
			return item, nil
		}
	}
	switch len(items) {
	case 0:
		return none, fmt.Errorf("statistics of %s %q: %w", kind, id, errdefs.ErrNotFound)
	case 1:
		return items[0], nil
	}
	return none, fmt.Errorf("statistics of %s %q: more than one has an ID that begins so; give more of it: %w",
		kind, id, errdefs.ErrInvalidArgument)
}

// ContainerStats measures one container. If it does not run, the answer has its attributes and no
// usage. It returns errdefs.ErrNotFound if the container does not exist.
func (s *Service) ContainerStats(ctx context.Context, id string) (*runtimeapi.ContainerStats, error) {
	item, err := one("container", id, s.pods.ListContainers(&runtimeapi.ContainerFilter{Id: id}))
	if err != nil {
		return nil, err
	}
	t, err := s.pods.Target(item.GetId())
	if err != nil && !errdefs.IsNotFound(err) { // a damaged record has no target
		return nil, err
	}
	list, err := s.measure(ctx, []container{{item, t}})
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// ListContainerStats measures the containers that match and run. The result must not be changed.
func (s *Service) ListContainerStats(ctx context.Context, f *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	if f.GetId() == "" && f.GetPodSandboxId() == "" && len(f.GetLabelSelector()) == 0 {
		return s.allContainers.get(ctx)
	}
	if err := s.selections.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("measure containers: others are measured: %w", err)
	}
	defer s.selections.Release(1)
	filter := running()
	filter.Id, filter.PodSandboxId, filter.LabelSelector = f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector()
	return s.measure(ctx, s.containers(filter))
}

// measure measures containers. A container that ended meanwhile has no usage.
func (s *Service) measure(ctx context.Context, list []container) ([]*runtimeapi.ContainerStats, error) {
	s.demand.note()
	layers, others := layersOf(list)
	used := s.layers.of(ctx, layers, others)
	fs, guests := s.layers.filesystem(), s.guests.of(ctx, list)
	out := make([]*runtimeapi.ContainerStats, 0, len(list))
	for _, c := range list {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("measure container %s: %w", c.item.GetId(), err)
		}
		st := &runtimeapi.ContainerStats{Attributes: c.attributes()}
		if u := guests[c.item.GetId()]; u != nil {
			s.fill(st, c.item.GetId(), u)
		} else if u, err := s.group(c).read(s.cgroups.forStats()); err == nil {
			s.fill(st, c.item.GetId(), u)
		}
		if sp, ok := used[c.layer()]; ok {
			st.WritableLayer = filesystemUsage(fs.mountpoint, sp)
		}
		out = append(out, st)
	}
	return out, nil
}

// group returns the cgroup of a container, or one that does not exist if the container does not
// run.
func (s *Service) group(c container) group {
	if !c.runs() {
		return s.cgroups.group("")
	}
	return s.cgroups.group(c.target.Process.Cgroup)
}

func (c container) attributes() *runtimeapi.ContainerAttributes {
	return &runtimeapi.ContainerAttributes{
		Id:          c.item.GetId(),
		Metadata:    c.item.GetMetadata(),
		Labels:      c.item.GetLabels(),
		Annotations: c.item.GetAnnotations(),
	}
}

func (s *Service) fill(st *runtimeapi.ContainerStats, id string, u *usage) {
	st.Cpu, st.Memory, st.Swap, st.Io = s.cpu(id, u), memoryUsage(u), swapUsage(u), ioUsage(u)
}

// cpu returns the CPU usage of the container or sandbox with that ID, with its rate.
func (s *Service) cpu(id string, u *usage) *runtimeapi.CpuUsage {
	if !u.hasCPU {
		return nil
	}
	total := u.CpuStats.CpuUsage.TotalUsage
	out := cpuUsage(u)
	if rate, ok := s.rates.add(id, sample{u.at, total}); ok {
		out.UsageNanoCores = value(rate)
	}
	return out
}

// PodSandboxStats measures one sandbox. If it is not ready, the answer has its attributes and no
// usage. It returns errdefs.ErrNotFound if the sandbox does not exist.
func (s *Service) PodSandboxStats(ctx context.Context, id string) (*runtimeapi.PodSandboxStats, error) {
	item, err := one("sandbox", id, s.pods.ListPodSandbox(&runtimeapi.PodSandboxFilter{Id: id}))
	if err != nil {
		return nil, err
	}
	list, err := s.measureSandboxes(ctx, s.sandboxes(&runtimeapi.PodSandboxFilter{Id: item.GetId()}))
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("statistics of sandbox %q: it was removed: %w", id, errdefs.ErrNotFound)
	}
	return list[0], nil
}

// ListPodSandboxStats measures the sandboxes that match and are ready. The result must not be
// changed.
func (s *Service) ListPodSandboxStats(ctx context.Context, f *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	if f.GetId() == "" && len(f.GetLabelSelector()) == 0 {
		return s.allSandboxes.get(ctx)
	}
	if err := s.selections.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("measure sandboxes: others are measured: %w", err)
	}
	defer s.selections.Release(1)
	filter := ready()
	filter.Id, filter.LabelSelector = f.GetId(), f.GetLabelSelector()
	return s.measureSandboxes(ctx, s.sandboxes(filter))
}

func (s *Service) measureSandboxes(ctx context.Context, list []sandbox) ([]*runtimeapi.PodSandboxStats, error) {
	s.demand.note()
	filter := running()
	if len(list) == 1 {
		filter.PodSandboxId = list[0].item.GetId()
	}
	containers := s.containers(filter)
	measured, err := s.measure(ctx, containers)
	if err != nil {
		return nil, err
	}
	byPod, dirs := map[string][]*runtimeapi.ContainerStats{}, map[string][]string{}
	for n, c := range containers {
		id := c.item.GetPodSandboxId()
		byPod[id], dirs[id] = append(byPod[id], measured[n]), append(dirs[id], c.target.Process.Cgroup)
	}
	nets := s.networks.of(namespaces(list))
	out := make([]*runtimeapi.PodSandboxStats, 0, len(list))
	for _, p := range list {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("measure sandbox %s: %w", p.item.GetId(), err)
		}
		id := p.item.GetId()
		linux := &runtimeapi.LinuxPodSandboxStats{Containers: byPod[id]}
		if p.target.Running {
			s.fillPod(linux, p, dirs[id])
			linux.Network = networkUsage(nets[p.target.NetNS])
		}
		out = append(out, &runtimeapi.PodSandboxStats{
			Attributes: &runtimeapi.PodSandboxAttributes{
				Id:          id,
				Metadata:    p.item.GetMetadata(),
				Labels:      p.item.GetLabels(),
				Annotations: p.item.GetAnnotations(),
			},
			Linux: linux,
		})
	}
	return out, nil
}

// containerParents returns the parent cgroups of running containers, by sandbox.
func (s *Service) containerParents() map[string]string {
	parents := map[string]string{}
	for _, c := range s.containers(running()) {
		if c.runs() {
			parents[c.item.GetPodSandboxId()] = filepath.Dir(c.target.Process.Cgroup)
		}
	}
	return parents
}

// fillPod measures the cgroup of the pod. If the pod has none, its usage is the sum of its
// sandbox's and of its running containers'. If their processes are elsewhere, the usage and the
// number of processes are unknown.
func (s *Service) fillPod(linux *runtimeapi.LinuxPodSandboxStats, p sandbox, containers []string) {
	id, elsewhere := p.item.GetId(), !p.target.Handler.HostProcess
	switch {
	case !elsewhere:
		linux.Process = s.processes(p, containers)
	case p.group == "":
		return
	}
	if p.measured() == "" { // neither a process nor a cgroup: its containers' usage is all
		cpu, memory := noUsage(time.Now().UnixNano())
		linux.Cpu, linux.Memory = addCPU(cpu, linux.Containers), addMemory(memory, linux.Containers)
		return
	}
	u, err := s.cgroups.group(p.measured()).read(s.cgroups.forStats())
	if err != nil {
		return
	}
	linux.Cpu, linux.Memory, linux.Io = s.cpu(id, u), memoryUsage(u), ioUsage(u)
	if p.group == "" {
		linux.Io = nil // pressure cannot be added up
		linux.Cpu, linux.Memory = addCPU(linux.Cpu, linux.Containers), addMemory(linux.Memory, linux.Containers)
	}
}

// processes counts the processes in the cgroup of the pod. If the pod has none, it counts those of
// its sandbox and of its running containers.
func (s *Service) processes(p sandbox, containers []string) *runtimeapi.ProcessUsage {
	dirs := []string{p.measured()}
	if p.group == "" {
		dirs = append(dirs, containers...)
	}
	var processes uint64
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		if pids, err := s.cgroups.group(dir).processes(); err == nil {
			processes += uint64(len(pids))
		}
	}
	return &runtimeapi.ProcessUsage{Timestamp: time.Now().UnixNano(), ProcessCount: value(processes)}
}

func namespaces(list []sandbox) []string {
	var paths []string
	for _, p := range list {
		if p.target.Running && strings.HasPrefix(p.target.NetNS, "/") {
			paths = append(paths, p.target.NetNS)
		}
	}
	return paths
}
