// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	introspectionapi "github.com/containerd/containerd/api/services/introspection/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"

	"berth/internal/base/clock"
	"berth/internal/base/connection"
	"berth/internal/base/retry"
	"berth/internal/engine/shims"
	"berth/internal/heart/pod"
)

const (
	// shimController is the sandbox controller of containerd's that starts and ends shims with a
	// sandbox API.
	shimController = "shim"
	// shimCapability is the annotation by which berth's own shim (tools/programs/shim) declares
	// that it can be a sandbox without a process.
	shimCapability = "io.berth.shim.sandbox"
	// shimNetworkThread is the key in the status of a sandbox under which berth's own shim reports
	// the thread that is in the sandbox's network namespace.
	shimNetworkThread = "io.berth.shim.network-thread"
	// shimGroupCapability declares that it can be that for several pods. In the specification of a
	// sandbox it names the group of pods that the sandbox shares a shim with.
	shimGroupCapability = "io.berth.shim.group"
	// shimStartAnnotation names, in the specification of a sandbox, the OCI runtime in whose place
	// berth's own shim may start the containers of the sandbox.
	shimStartAnnotation = "io.berth.shim.start"
	// forgetTimeout is how long containerd may take to clean up after a shim that has died.
	forgetTimeout = 5 * time.Second
	// forgetInterval is the time between two tries meanwhile.
	forgetInterval = 10 * time.Millisecond
)

// PodShims are the shims of pods, and the pods that share one. It starts and ends them through
// containerd, and ends the remains that containerd does not know. Its methods may be called from
// any goroutine.
type PodShims struct {
	client   *connection.Connection
	owner    string
	clock    *clock.Clock
	log      *slog.Logger
	asker    *asker
	shims    *shims.Shims
	cleanups *shims.Cleanups
	// shimStarts is Config.ShimStarts, and never nil.
	shimStarts func(handler string) string

	starts   starts   // of shims that several pods share
	grouping sync.Map // names of the handlers whose shim can serve several pods
}

// StartShim implements [pod.Shims]. It waits for the end of a dead shim's remains, or removes them.
func (p *PodShims) StartShim(ctx context.Context, r pod.SandboxRequest) error {
	err := p.asker.reachable(ctx, r.ID)
	// A containerd that has just started is about to clean up after a shim that has ended since.
	for began := time.Now(); err != nil && p.shims.HasEnded(r.ID) && time.Since(began) < forgetTimeout && retry.Sleep(ctx.Done(), forgetInterval); {
		err = p.asker.reachable(ctx, r.ID)
	}
	if err != nil { // the pod has one
		return fmt.Errorf("start shim of pod %s: %w", r.ID, err)
	}
	s := sandboxer{p, shimController}
	r.Spec = p.toShim(r)
	if r.Group != "" {
		done, err := p.starts.enter(ctx, r.Group)
		if err != nil {
			return fmt.Errorf("start shim of pod %s: another pod starts the shim that they share: %w", r.ID, err)
		}
		defer done()
		most := groupStartTimeout
		if p.shims.Knows(r.ID) && !p.shims.HasEnded(r.ID) {
			most = groupJoinTimeout
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, most)
		defer cancel()
		p.shims.Stay(r.ID) // it may have left when the shim could not be started the last time
	}
	o, err := s.object(r)
	if err != nil {
		return err
	}
	var opts []sandbox.CreateOpt
	if r.NetNS != "" {
		opts = append(opts, sandbox.WithNetNSPath(r.NetNS))
	}
	if program := p.cleanups.HandlerProgram(r.ID, r.Handler.Type, r.Handler.Root); program != "" {
		o.Runtime.Name = program
	}
	err = connection.Native(s.controller().Create(connection.Namespaced(ctx), o, opts...))
	for began := time.Now(); err != nil && time.Since(began) < forgetTimeout && (s.lost(ctx, r.ID, err) || s.missed(ctx, r, err)); {
		err = connection.Native(s.controller().Create(connection.Namespaced(ctx), o, opts...))
	}
	if err != nil && r.Group != "" && isLate(ctx, err) {
		p.shims.Close(r.Group) // it has begun to hang: the next attempt gets another group
		p.starts.late(r.Group)
	}
	if err != nil {
		return fmt.Errorf("start shim of pod %s: %w", r.ID, err)
	}
	i, err := s.controller().Start(connection.Namespaced(ctx), r.ID)
	if err != nil {
		return fmt.Errorf("start shim of pod %s: %w", r.ID, connection.Native(err))
	}
	p.shims.Forget(r.ID, int(i.Pid))
	p.shims.Add(r.ID, int(i.Pid))
	if r.Group != "" {
		p.sparing(ctx, r.ID, r.Handler)
	} else {
		p.cleanups.LearnHandler(ctx, r.ID, r.Handler.Type, r.Handler.Root)
	}
	return nil
}

// lost reports whether the shim of a pod cannot be started because of one that has died, and that
// it is worth another try: containerd needs a moment to forget the old one, and may have left its
// bundle.
func (s sandboxer) lost(ctx context.Context, id string, why error) bool {
	inTheWay := errdefs.IsAlreadyExists(why)
	if !inTheWay && !says(why, shimBundleLeft, id) {
		return false
	}
	st, err := s.Status(ctx, id)
	switch {
	case err == nil && st.Running:
		return false
	case !inTheWay && errdefs.IsNotFound(err):
		if err := s.p.endLeft(connection.Namespaced(ctx), id); err != nil {
			s.p.log.Warn("remains of a shim not removed", "id", id, "err", err)
			return false
		}
	}
	return retry.Sleep(ctx.Done(), forgetInterval)
}

// ShimDied implements pod.Shims.
func (p *PodShims) ShimDied(ctx context.Context, id string) bool { return p.shims.Killed(ctx, id) }

// EndShim ends the shim of a pod whose tasks are deleted, or the pod's place in a shim that serves
// others. As for a task that is deleted, a shim that containerd does not know is looked for on the
// node before "not found" is believed. A shim may end before it has answered; then containerd needs
// a moment to forget it.
func (p *PodShims) EndShim(ctx context.Context, id string) error {
	err := p.endShim(ctx, id)
	if err == nil || errdefs.IsNotFound(err) {
		p.shims.Leave(id)
	}
	return err
}

func (p *PodShims) endShim(ctx context.Context, id string) error {
	shim := sandboxer{p, shimController}
	err := shim.end(ctx, id)
	ended := false
	for began := time.Now(); err != nil && time.Since(began) < forgetTimeout && says(err, hungUp, id) && retry.Sleep(ctx.Done(), forgetInterval); {
		ended = true
		err = shim.end(ctx, id)
	}
	if err == nil {
		return nil
	}
	if !errdefs.IsNotFound(err) {
		return fmt.Errorf("end shim of pod %s: %w", id, err)
	}
	if oerr := p.endLeft(connection.Namespaced(ctx), id); oerr != nil {
		// and not "not found", which counts as success
		return fmt.Errorf("end shim of pod %s: %w", id, oerr)
	}
	if ended {
		return nil // it was there
	}
	return fmt.Errorf("end shim of pod %s: %w", id, err)
}

// end asks the shim of a sandbox to end.
func (s sandboxer) end(ctx context.Context, id string) error {
	_, err := askShim(connection.Namespaced(ctx), s.p.asker, id, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.controller().Shutdown(ctx, id)
	})
	return connection.Native(err)
}

// NetworkThread returns the ID of a thread in the network namespace of a pod that has no process:
// one of its shim. It takes taskTimeout at most, even if the shim does not answer. It returns
// ErrNotFound if the pod has no shim, or if its shim has no such thread, as for a pod on the host's
// network.
func (p *PodShims) NetworkThread(ctx context.Context, id string) (uint32, error) {
	ctx, cancel := context.WithTimeout(connection.Namespaced(ctx), taskTimeout)
	defer cancel()
	st, err := askShim(ctx, p.asker, id, func(ctx context.Context) (sandbox.ControllerStatus, error) {
		return sandboxer{p, shimController}.controller().Status(ctx, id, false)
	})
	if err != nil {
		return 0, fmt.Errorf("ask the shim of pod %s for its thread in the network namespace: %w", id, connection.Native(err))
	}
	thread, err := strconv.ParseUint(st.Info[shimNetworkThread], 10, 32)
	if err != nil {
		return 0, fmt.Errorf("ask the shim of pod %s for its thread in the network namespace: there is none: %w", id, errdefs.ErrNotFound)
	}
	return uint32(thread), nil
}

// SandboxShim reports whether the shim of a handler can serve a pod that has no process, and notes
// whether it can serve several. A containerd, or a shim, that does not know the question cannot.
func (p *PodShims) SandboxShim(ctx context.Context, h pod.Handler) (bool, error) {
	o, err := options(h)
	if err != nil {
		return false, err
	}
	req := &types.RuntimeRequest{RuntimePath: h.Type}
	if o != nil {
		req.Options = typeurl.MarshalProto(o)
	}
	resp, err := p.client.IntrospectionService().PluginInfo(connection.Namespaced(ctx), "io.containerd.runtime.v2", "task", req)
	if err = connection.Native(err); err != nil && !errdefs.IsNotImplemented(err) {
		return false, fmt.Errorf("ask for the shim of handler %s: %w", h.Name, err)
	}
	info, err := runtimeInfo(resp)
	if err != nil {
		return false, fmt.Errorf("ask for the shim of handler %s: %w", h.Name, err)
	}
	if info.GetAnnotations()[shimGroupCapability] != "" {
		p.grouping.Store(h.Name, true)
	} else {
		p.grouping.Delete(h.Name)
	}
	return info.GetAnnotations()[shimCapability] != "", nil
}

func runtimeInfo(resp *introspectionapi.PluginInfoResponse) (*types.RuntimeInfo, error) {
	info := &types.RuntimeInfo{}
	if resp.GetExtra() == nil {
		return info, nil
	}
	return info, proto.Unmarshal(resp.GetExtra().GetValue(), info)
}
