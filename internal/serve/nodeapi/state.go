// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/base/lane"
	"berth/internal/base/version"
)

// State implements berthv1.NodeServer. Everything is in memory.
func (n *Node) State(ctx context.Context, _ *berthv1.StateRequest) (*berthv1.StateResponse, error) {
	resp := &berthv1.StateResponse{Version: version.String(), Exact: n.Exact, Settings: n.Settings}
	lanes := map[string]lane.Lane{}
	for _, l := range n.Pods.Lanes() {
		lanes[l.ID] = l
	}
	object := func(id, state string, created int64) (*berthv1.Object, bool) {
		t, err := n.Pods.Target(id)
		if err != nil {
			return nil, false // removed meanwhile
		}
		of, _ := n.NamesOf(id)
		o := &berthv1.Object{
			Id:      id,
			Of:      Names(of),
			Handler: t.Handler.Name,
			Pinned:  t.Pinned,
			Host:    t.Handler.HostProcess,
			Systemd: t.Handler.SystemdCgroup,
			Image:   t.Config.GetImage().GetImage(),
			State:   state,
			Created: nanoseconds(created),
		}
		if l, ok := lanes[id]; ok {
			m := laneMessage(l)
			o.Waits, o.Tries = m.GetHead(), m.GetTries()
		}
		return o, true
	}
	for _, p := range n.Pods.ListPodSandbox(&runtimeapi.PodSandboxFilter{}) {
		if o, ok := object(p.GetId(), strings.TrimPrefix(p.GetState().String(), "SANDBOX_"), p.GetCreatedAt()); ok {
			resp.Objects = append(resp.Objects, o)
		}
	}
	for _, c := range n.Pods.ListContainers(&runtimeapi.ContainerFilter{}) {
		o, ok := object(c.GetId(), strings.TrimPrefix(c.GetState().String(), "CONTAINER_"), c.GetCreatedAt())
		if !ok {
			continue
		}
		if st, err := n.Pods.ContainerStatus(ctx, c.GetId(), false); err == nil {
			o.Started, o.Ended = nanoseconds(st.GetStatus().GetStartedAt()), nanoseconds(st.GetStatus().GetFinishedAt())
			o.Code, o.Reason = st.GetStatus().GetExitCode(), st.GetStatus().GetReason()
		}
		resp.Objects = append(resp.Objects, o)
	}
	return resp, nil
}

// nanoseconds returns the message of an instant of CRI's, which is 0 for none.
func nanoseconds(ns int64) *timestamppb.Timestamp {
	if ns == 0 {
		return nil
	}
	return timestamppb.New(time.Unix(0, ns))
}
