// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/base/inroot"
	"berth/internal/heart/state"
	"berth/internal/host/network"
	"berth/internal/host/podfiles"
	"berth/internal/host/spec"
)

// sandboxMaker makes sandboxes, up to READY.
type sandboxMaker struct {
	host       spec.Host
	resolvConf string // the path of the host's
	objects    Objects
	shims      Shims
	network    Network
	netns      NetNS
	files      Files
	store      Store
	hooks      Hooks // nil for none
	make       units
	units      *registry
	processes  *processes
	pauses     *pauses
	userns     *userNamespaces
	witnesses  *witnesses
	teardown   *teardown
	publisher  *publisher
	labels     Labels // nil without SELinux
	profiles   func(Handler) spec.Profiles
	obs        Observer
}

// plan makes the unit of a sandbox that is about to be made, with all that it may come to hold.
func (m *sandboxMaker) plan(sb state.Sandbox, h Handler) *unit {
	now := m.make.clock.Next()
	sb.Handler, sb.Sandboxer, sb.CreatedAt = h.Name, h.Sandboxer, now
	holds := state.HoldTask | state.HoldSandbox | state.HoldFiles
	if sb.Pinned {
		holds |= state.HoldPins
	} else {
		holds |= state.HoldContainer
	}
	if sb.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		sb.NetNS = m.netns.PathFor(sb.ID)
		holds |= state.HoldNetNS | state.HoldNetwork
	}
	if sb.Image != nil {
		holds |= state.HoldViews
	}
	u := m.make.sandbox(sb, state.Status{Phase: state.Creating, CreatedAt: now, Holds: holds}, h)
	u.compared.Happen()
	return u
}

// refuse notes that a sandbox is not made, and returns the error. It has no record.
func (m *sandboxMaker) refuse(id string, config *runtimeapi.PodSandboxConfig, why error) error {
	m.obs.Note(id, event.SandboxNotMade{Names: namesOfPod(config), Err: why.Error()})
	return fmt.Errorf("run sandbox %s: %w", config.GetMetadata().GetName(), why)
}

// run makes a sandbox and returns once it is READY. If it fails, everything it made is undone.
func (m *sandboxMaker) run(ctx context.Context, u *unit) error {
	began := time.Now()
	// Intent first: from here on the next berth finds the objects that may exist.
	if err := m.store.Commit(state.NewSandbox(*u.sandbox, *u.now())); err != nil {
		m.shims.LeaveGroup(u.id)
		return fmt.Errorf("run sandbox %s: %w", u.id, err)
	}
	_ = u.task.tryLock() // u is not shared yet
	m.units.add(u)
	err := guard(func() error { return m.makeAll(ctx, u) })
	u.task.unlock()
	if err != nil {
		m.obs.Note(u.id, event.SandboxNotMade{Names: u.names(), Err: err.Error()})
		return errors.Join(fmt.Errorf("run sandbox %s: %w", u.id, err), m.teardown.undo(ctx, u, err))
	}
	m.obs.Note(u.id, event.SandboxReady{
		Names: u.names(),
		By:    event.ClientOf(ctx),
		Took:  time.Since(began),

		Pinned: u.isPinned(),
	})
	m.publisher.started(u)
	return nil
}

// makeAll makes everything outside and ends with the sandbox READY, or with its exit settled if it
// ended meanwhile. Steps that need the network take its connection.
func (m *sandboxMaker) makeAll(ctx context.Context, u *unit) error {
	if u.sandbox.NetNS != "" {
		if err := m.userns.createNetNS(ctx, u); err != nil {
			return err
		}
	}
	net, err := m.makeParts(ctx, u)
	if err != nil {
		return err
	}
	if err := m.files.SetHosts(u.id, spec.Hosts(u.hostname(), net.IPs)); err != nil {
		return err
	}
	started, err := u.sandboxer.Start(ctx, u.id)
	if err != nil {
		return err
	}
	if err := m.recordPID(u, started.Pid); err != nil {
		return err
	}
	m.witnesses.listen(u)
	made := func(st *state.Status) {
		st.Network = nil
		if u.sandbox.NetNS != "" {
			st.Network = &state.Network{IPs: net.IPs, Result: net.Raw, Conf: net.Conf, Firewall: net.Firewall}
		}
		if st.StartedAt.IsZero() {
			st.StartedAt = u.clock.Now()
		}
		st.Endpoint, st.SELinuxLabel = started.Endpoint, u.label()
	}
	if m.hooks != nil {
		// It is not READY before the extensions agree, and they see its addresses.
		if err := u.change(func(st *state.Status) bool {
			made(st)
			return true
		}); err != nil {
			return err
		}
		if err := m.hooks.SandboxRun(ctx, targetOf(u)); err != nil {
			return err
		}
	}
	return u.change(func(st *state.Status) bool {
		made(st)
		if st.Phase == state.Creating { // not when its exit was settled meanwhile
			st.Phase = state.Ready
		}
		return true
	})
}

// makeParts connects the network and makes the parts of the sandbox that do not need it: side by
// side, unless a virtual machine takes up the interfaces that exist when it is made.
func (m *sandboxMaker) makeParts(ctx context.Context, u *unit) (connection, error) {
	if !u.handler.HostProcess || u.sandbox.Sandboxer != "" {
		net, err := m.connect(ctx, u)
		if err != nil {
			return connection{}, err
		}
		return net, m.makeProcess(ctx, u)
	}
	var net connection
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return guard(func() (err error) {
			net, err = m.connect(gctx, u)
			return err
		})
	})
	// Not gctx: an OCI runtime that is killed half-way, because the network failed, leaves objects
	// behind that no record names.
	g.Go(func() error { return guard(func() error { return m.makeProcess(ctx, u) }) })
	return net, g.Wait()
}

// connection is the network that a sandbox has: its plug-ins have ended, and its sysctls are set.
// It is zero on the host's network. Only connect makes one.
type connection struct{ network.Result }

// connect connects the sandbox to its network, and sets the sysctls of that. If the pod is a
// virtual machine, the OCI runtime sets them: see spec.Sandbox.
func (m *sandboxMaker) connect(ctx context.Context, u *unit) (connection, error) {
	if u.sandbox.NetNS == "" {
		return connection{}, nil
	}
	sysctls, err := spec.NetSysctls(m.host, u.handler.Defaults.Pod(u.sandbox.Config))
	if err != nil {
		return connection{}, err
	}
	p := netPod(u.sandbox)
	connected, err := m.network.Setup(ctx, p)
	if err == nil && u.handler.HostProcess {
		err = m.network.SetSysctls(p, connected, sysctls)
	}
	return connection{connected}, err
}

// makeProcess makes the sandbox's files, its object in containerd and the sandbox itself,
// not yet started.
func (m *sandboxMaker) makeProcess(ctx context.Context, u *unit) error {
	owner, err := m.userns.ownerOf(u)
	if err != nil {
		return err
	}
	defer owner.close()
	pause, err := m.pauses.make(ctx, u)
	if err != nil {
		return err
	}
	oci, degraded, err := spec.ForSandbox(m.host, spec.Sandbox{
		ID:                           u.id,
		Config:                       u.handler.Defaults.Pod(u.sandbox.Config),
		NetNS:                        u.sandbox.NetNS,
		UserNS:                       owner.path,
		Pause:                        pause,
		PrivilegedWithoutHostDevices: u.handler.PrivilegedWithoutHostDevices,
		SystemdCgroup:                u.handler.SystemdCgroup,
		Profiles:                     m.profiles(u.handler),
		PodAnnotations:               u.handler.PodAnnotations,
		Guest:                        !u.handler.HostProcess,
	})
	if err != nil {
		return err
	}
	noteDegraded(m.obs, u, degraded)
	u.setLabel(oci.Process.SelinuxLabel)
	if err := m.makeFiles(u, oci.Linux.MountLabel); err != nil {
		return err
	}
	if err := m.objects.CreateSandbox(ctx, u.id, u.handler); err != nil {
		return err
	}
	made, err := u.sandboxer.Create(ctx, SandboxRequest{
		ID:        u.id,
		Handler:   u.handler,
		Config:    u.sandbox.Config,
		CreatedAt: u.clock.Wall(u.sandbox.CreatedAt),
		NetNS:     u.sandbox.NetNS,
		Group:     u.sandbox.ShimGroup,
		Spec:      oci,
		Labels:    spec.ObjectLabels(u.sandbox.Config.GetLabels(), spec.KindSandbox),
	})
	if err != nil {
		return err
	}
	return m.recordPID(u, made.Pid)
}

// recordPID starts watching the sandbox process and persists its identity. It is a no-op until the
// PID is known, and once it was recorded.
func (m *sandboxMaker) recordPID(u *unit, pid uint32) error {
	if pid == 0 || u.process().Pid != 0 {
		return nil
	}
	p, err := m.processes.watch(u, pid)
	if err != nil {
		return err
	}
	return m.processes.record(u, p)
}

// makeFiles makes the files that the pod's containers share: /dev/shm, resolv.conf, hostname, and
// hosts, which is empty until the pod has its addresses. label is that of the pod's files. The
// containers of a privileged pod that are not privileged themselves have a label each.
func (m *sandboxMaker) makeFiles(u *unit, label string) error {
	if m.labels != nil && u.label() == "" {
		var err error
		if label, err = m.labels.Shared(label); err != nil {
			return fmt.Errorf("make files of sandbox: %w", err)
		}
	}
	resolv, err := inroot.ReadGiven(m.resolvConf, 1<<20)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("make files of sandbox: %w", err)
	}
	host, conf, err := spec.EtcFiles(u.sandbox.Config, resolv, u.hostname())
	if err != nil {
		return err
	}
	ids, _ := spec.UserNamespace(u.sandbox.Config)
	return m.files.MakeSandbox(podfiles.Sandbox{
		ID:         u.id,
		UID:        int(ids.UID),
		GID:        int(ids.GID),
		Hostname:   host,
		ResolvConf: conf,
		Label:      label,
		HostIPC:    hostIPC(u),
	})
}
