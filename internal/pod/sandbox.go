// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/exit"
	"berth/internal/network"
	"berth/internal/spec"
	"berth/internal/state"
)

// labels that the ecosystem reads (ctr, nerdctl, node agents).
const (
	labelKind     = "io.cri-containerd.kind"
	kindSandbox   = "sandbox"
	kindContainer = "container"
)

// RunPodSandbox makes a sandbox and returns its ID once it is READY. The same request again,
// from a caller that did not get its answer, joins the one in flight.
func (c *Controller) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handlerName string) (string, error) {
	h, err := c.handler(handlerName)
	if err != nil {
		return "", err
	}
	return c.join(ctx, sandboxName(config.GetMetadata()), config, func(ctx context.Context, id string) error {
		return c.runSandbox(ctx, id, config, h)
	})
}

func (c *Controller) runSandbox(ctx context.Context, id string, config *runtimeapi.PodSandboxConfig, h Handler) error {
	now := time.Now()
	sb := state.Sandbox{ID: id, Handler: h.Name, Sandboxer: h.Sandboxer, CreatedAt: now, Config: config}
	holds := state.HoldTask | state.HoldContainer | state.HoldSandbox | state.HoldFiles
	if hostNetwork := config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE; !hostNetwork {
		sb.NetNS = c.network.PathFor(id)
		holds |= state.HoldNetNS | state.HoldNetwork
	}
	u := newSandbox(sb, state.Status{Phase: state.Creating, CreatedAt: now, Holds: holds}, h, c.store)
	// Intent first: from here on a crash finds what may exist.
	if err := c.store.Commit(state.NewSandbox(sb, *u.now())); err != nil {
		return fmt.Errorf("run sandbox %s: %w", id, err)
	}
	_ = u.starting.tryLock() // nobody else knows u yet
	c.add(u)
	err := c.makeSandbox(ctx, u)
	u.starting.unlock()
	if err != nil {
		c.obs.Event(id, "sandbox could not be made", err)
		return errors.Join(fmt.Errorf("run sandbox %s: %w", id, err), c.undo(ctx, u, err))
	}
	c.obs.Event(id, "sandbox READY", nil, "took", time.Since(now).String())
	c.tell(u, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return nil
}

// makeSandbox makes everything outside and ends with the sandbox READY, or with its exit settled
// if it ended meanwhile. The network's plug-ins and the pause process are made side by side.
func (c *Controller) makeSandbox(ctx context.Context, u *unit) error {
	if u.sandbox.NetNS != "" {
		if err := c.network.CreateNS(ctx, u.sandbox.NetNS); err != nil {
			return err
		}
	}
	var plumbed network.Result
	g, gctx := errgroup.WithContext(ctx)
	if u.sandbox.NetNS != "" {
		g.Go(func() error {
			var err error
			plumbed, err = c.network.Setup(gctx, c.netPod(u.sandbox))
			return err
		})
	}
	// Not gctx: an OCI runtime that is killed half-way, because the network failed, leaves what nobody knows of.
	g.Go(func() error { return c.makeBody(ctx, u) })
	if err := g.Wait(); err != nil {
		return err
	}
	started, err := c.sandboxer(u).Start(ctx, u.id)
	if err != nil {
		return err
	}
	if err := c.meet(u, started.Pid); err != nil {
		return err
	}
	c.waitTask(u)
	return u.change(func(st *state.Status) bool {
		st.Network = nil
		if u.sandbox.NetNS != "" {
			st.Network = &state.Network{IPs: plumbed.IPs, Result: plumbed.Raw, Conf: plumbed.Conf}
		}
		if st.StartedAt.IsZero() {
			st.StartedAt = time.Now()
		}
		st.Endpoint = started.Endpoint
		if st.Phase == state.Creating { // not when its exit was settled meanwhile
			st.Phase = state.Ready
		}
		return true
	})
}

// makeBody makes the sandbox's files, its object in containerd and the sandbox itself, not yet started.
func (c *Controller) makeBody(ctx context.Context, u *unit) error {
	if err := c.makeSandboxFiles(u); err != nil {
		return err
	}
	r := c.sandboxRequest(u)
	oci, degraded, err := spec.ForSandbox(c.cfg.Host, spec.Sandbox{
		ID: u.id, Config: u.sandbox.Config, NetNS: u.sandbox.NetNS,
		PauseRootfs: c.cfg.PauseRootfs, PauseArgs: []string{"/pause"},
		PrivilegedWithoutHostDevices: u.handler.PrivilegedWithoutHostDevices, SystemdCgroup: u.handler.SystemdCgroup, Seccomp: loadSeccomp,
		PodAnnotations: u.handler.PodAnnotations,
	})
	if err != nil {
		return err
	}
	c.noteDegraded(u, degraded)
	r.Spec = oci
	if err := c.runtime.CreateSandbox(ctx, u.id, u.handler); err != nil {
		return err
	}
	made, err := c.sandboxer(u).Create(ctx, r)
	if err != nil {
		return err
	}
	return c.meet(u, made.Pid)
}

// meet has a sandbox's process watched, once it is known, and written down.
func (c *Controller) meet(u *unit, pid uint32) error {
	if pid == 0 || u.process().Pid != 0 {
		return nil
	}
	p, err := c.watch(u, state.Process{Pid: pid})
	if err != nil {
		return err
	}
	return c.recordProcess(u, p)
}

// watch registers the kernel witness for a process that was made and not yet started, and finds
// its cgroup.
func (c *Controller) watch(u *unit, p state.Process) (state.Process, error) {
	if !u.handler.HostProcess {
		return p, nil
	}
	p, err := c.kernel.Watch(u.id, p)
	if err != nil {
		return p, err
	}
	if p.Cgroup, err = c.cgroups.Of(p.Pid); err != nil {
		c.obs.Event(u.id, "cgroup not known: OOM kills will not be told from other kills", err)
	}
	return p, nil
}

// waitTask listens to the task witness: containerd's Wait, for the code where the kernel cannot give
// it and for the end where the kernel cannot speak at all.
func (c *Controller) waitTask(u *unit) {
	if u.handler.HostProcess && c.kernel.Exact() {
		return // the kernel tells end and code; the stream and the audit are there too
	}
	if !u.waiting.CompareAndSwap(false, true) {
		return // a relist finds many that are listened to already
	}
	if !c.spawn(func() {
		defer u.waiting.Store(false)
		st, err := c.waitBody(c.life, u)
		if err != nil || !st.Stopped {
			return // the connection broke: on the next one the relist asks
		}
		c.Exited(exit.Fact{ID: u.id, Code: st.Code, Measured: true, At: st.ExitedAt, Origin: exit.Task})
	}) {
		u.waiting.Store(false)
	}
}

func (c *Controller) noteDegraded(u *unit, degraded []spec.Degraded) {
	for _, d := range degraded {
		c.obs.Event(u.id, "degraded: "+d.What, nil, "why", d.Why)
	}
}

func objectLabels(labels map[string]string, kind string) map[string]string {
	all := map[string]string{labelKind: kind}
	for k, v := range labels {
		if len(k)+len(v) <= 4096 && k != labelKind { // containerd's bound on one label
			all[k] = v
		}
	}
	return all
}

// makeSandboxFiles makes what the pod's containers share: /dev/shm, resolv.conf, hostname, hosts.
func (c *Controller) makeSandboxFiles(u *unit) error {
	dir := c.sandboxDir(u.id)
	shm := filepath.Join(dir, "shm")
	if err := os.MkdirAll(shm, 0o711); err != nil {
		return fmt.Errorf("make files of sandbox: %w", err)
	}
	resolv, err := os.ReadFile(c.cfg.ResolvConf)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("make files of sandbox: %w", err)
	}
	hostname := u.sandbox.Config.GetHostname()
	if hostname == "" {
		if hostname, err = os.Hostname(); err != nil {
			return fmt.Errorf("make files of sandbox: %w", err)
		}
	}
	hosts, host, conf, err := spec.EtcFiles(u.sandbox.Config, resolv, hostname)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{"hosts": hosts, "hostname": host, "resolv.conf": conf} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return fmt.Errorf("make files of sandbox: %w", err)
		}
	}
	if u.sandbox.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetIpc() == runtimeapi.NamespaceMode_NODE {
		return nil
	}
	err = unix.Mount("shm", shm, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, "mode=1777,size=65536k")
	if err != nil {
		return fmt.Errorf("mount /dev/shm of sandbox: %w", err)
	}
	return nil
}

func (c *Controller) netPod(sb *state.Sandbox) network.Pod {
	m := sb.Config.GetMetadata()
	p := network.Pod{
		ID: sb.ID, Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUid(), NetNS: sb.NetNS,
		Annotations: sb.Config.GetAnnotations(), CgroupParent: sb.Config.GetLinux().GetCgroupParent(),
	}
	for _, pm := range sb.Config.GetPortMappings() {
		if pm.GetHostPort() <= 0 {
			continue
		}
		p.Ports = append(p.Ports, network.PortMapping{
			HostPort: pm.GetHostPort(), ContainerPort: pm.GetContainerPort(), HostIP: pm.GetHostIp(), Protocol: pm.GetProtocol().String(),
		})
	}
	return p
}

// undo gives back what a failed creation made. What does not go at once stays in the record, ended
// and to be removed, and its lane finishes it.
func (c *Controller) undo(ctx context.Context, u *unit, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.UndoTimeout)
	defer cancel()
	if err := u.change(func(st *state.Status) bool {
		st.Removing, st.Stopping, st.Undone = true, true, why.Error()
		if !st.Phase.Ended() {
			st.Phase = u.ended()
			st.Exit = exit.NotStarted(u.id, time.Now(), why.Error())
		}
		return true
	}); err != nil {
		// Still CREATING on disk: its lane tries until it can be recorded, or recovery undoes it.
		u.hear(exit.NotStarted(u.id, time.Now(), why.Error()), false)
		c.lanes.Offer(u.id, StepSettle)
		return err
	}
	c.lanes.Offer(u.id, StepRelease)
	c.lanes.Poke(u.id)
	if err := c.waitRemoved(ctx, u); err != nil {
		return fmt.Errorf("undo: %w", err)
	}
	return nil
}

// StopPodSandbox ends every process of the pod and returns once that is settled and, within a bound, once
// the network was given back; if that takes longer it goes on by itself. Stopping what is stopped
// or absent succeeds.
func (c *Controller) StopPodSandbox(ctx context.Context, id string) error {
	u, err := c.find(id, true)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.stopSandbox(ctx, u)
}

func (c *Controller) stopSandbox(ctx context.Context, u *unit) error {
	if !visible(u) {
		return fmt.Errorf("stop sandbox %s: it is still being made: %w", u.id, errdefs.ErrFailedPrecondition)
	}
	if err := u.change(func(st *state.Status) bool {
		changed := !st.Stopping
		st.Stopping = true
		return changed
	}); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, ct := range u.containers() {
		g.Go(func() error { return c.stopUnit(gctx, ct, 0) })
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", u.id, err)
	}
	if err := c.stopUnit(ctx, u, 0); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", u.id, err)
	}
	c.lanes.Offer(u.id, StepRelease)
	c.lanes.Poke(u.id)
	wait, cancel := context.WithTimeout(ctx, c.cfg.NetworkWait)
	defer cancel()
	_ = c.lanes.Idle(wait, u.id) // what is not released by then is retried; the record says so
	return nil
}

// RemovePodSandbox stops the pod, removes its containers and gives everything back. It waits for that
// within ctx and says what it still waits for when that ends first; the removal goes on
// by itself. Removing what is absent succeeds.
func (c *Controller) RemovePodSandbox(ctx context.Context, id string) error {
	u, err := c.find(id, true)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.stopSandbox(ctx, u); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, ct := range u.containers() {
		g.Go(func() error { return c.removeUnit(gctx, ct) })
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", u.id, err)
	}
	return c.removeUnit(ctx, u)
}

// removeUnit marks an ended unit for removal and waits for it.
func (c *Controller) removeUnit(ctx context.Context, u *unit) error {
	if err := c.stopUnit(ctx, u, 0); err != nil {
		return err
	}
	if err := u.starting.lock(ctx); err != nil { // no start may slip in between
		return fmt.Errorf("remove %s %s: it is still being started: %w", u.kind(), u.id, err)
	}
	err := u.change(func(st *state.Status) bool {
		changed := !st.Removing
		st.Removing, st.Stopping = true, true
		return changed
	})
	u.starting.unlock()
	if errdefs.IsNotFound(err) {
		return nil // removed by another, or its making came to nothing
	}
	if err != nil {
		return err
	}
	if u.now().Phase == u.alive() { // a start came first
		if err := c.stopUnit(ctx, u, 0); err != nil {
			return err
		}
	}
	c.lanes.Offer(u.id, StepRelease)
	c.lanes.Poke(u.id)
	return c.waitRemoved(ctx, u)
}
