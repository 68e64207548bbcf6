// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/lane"
	"berth/internal/base/ops"
	"berth/internal/base/version"
	"berth/internal/heart/pod"
	"berth/internal/history/recorder"
	"berth/internal/history/why"
	"berth/internal/images/image"
)

// Pods answers from the records, in memory: see [pod.Controller].
type Pods interface {
	ListPodSandbox(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox
	ListContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container
	ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error)
	Target(id string) (pod.Target, error)
	Lanes() []lane.Lane
	Ended() map[string]event.Exit
}

// Verifier compares an image with its sources, and repairs it if repair is set.
type Verifier interface {
	Verify(ctx context.Context, name image.Name, repair bool) ([]image.Part, error)
}

// Profiles are the seccomp profiles from registries: see [image.Profiles].
type Profiles interface {
	List() []image.Profile
	Verify(name string, repair bool) (image.Part, error)
}

// Node answers berth.v1.Node. All fields are set before it is registered.
type Node struct {
	berthv1.UnsafeNodeServer

	Clock        *clock.Clock
	Pods         Pods
	Ops          *ops.List
	Recorder     *recorder.Recorder
	ImageService *image.Service
	Verifier     Verifier
	Profiles     Profiles
	Disks        *Disks
	Settings     *berthv1.Settings
	NamesOf      func(id string) (event.Names, bool)
	Exact        bool                            // the kernel reports exit codes
	Reach        func(ctx context.Context) error // waits a little for containerd
}

// Version implements berthv1.NodeServer.
func (n *Node) Version(context.Context, *berthv1.VersionRequest) (*berthv1.VersionResponse, error) {
	return &berthv1.VersionResponse{Version: version.String(), SemanticVersion: version.Semantic(), Exact: n.Exact}, nil
}

// Timeline implements berthv1.NodeServer.
func (n *Node) Timeline(ctx context.Context, req *berthv1.TimelineRequest) (*berthv1.TimelineResponse, error) {
	if req.GetId() == "" && !req.GetNode() {
		return nil, fmt.Errorf("timeline: neither a sandbox or container nor the node is named: %w", errdefs.ErrInvalidArgument)
	}
	found, err := n.find(ctx, recorder.Query{
		Of:       req.GetId(),
		Attempts: req.GetAttempts(),
		Since:    n.instantIn(req.GetSince()),
		After:    req.GetAfter(),
	})
	if err != nil {
		return nil, err
	}
	resp := &berthv1.TimelineResponse{Id: found.ID, Name: found.Name, Last: found.Last, More: found.More, Lane: n.laneOf(found.ID)}
	_, resp.UnderWay = n.underWay(ops.Object{ID: found.ID, Names: found.Names})
	for _, e := range found.Entries {
		resp.Entries = append(resp.Entries, &berthv1.Entry{
			Number: e.Number,
			At:     timestamp(n.Clock.Wall(e.At)),
			Id:     e.ID,
			Name:   e.Name,
			Kind:   e.Kind,
			By:     string(e.By),
			What:   e.What,
			Detail: e.Detail,
			Error:  e.Err,
		})
	}
	return resp, nil
}

// find asks the history. What has none is found if its first operation is under way.
func (n *Node) find(ctx context.Context, q recorder.Query) (recorder.Answer, error) {
	found, err := n.Recorder.Find(ctx, q)
	if errdefs.IsNotFound(err) {
		list, _ := n.Ops.Snapshot()
		if of, ok := ops.Named(list, q.Of); ok {
			return recorder.Answer{ID: of.ID, Names: of.Names, Name: of.Names.Namespace + "/" + of.Names.Name()}, nil
		}
	}
	return found, err
}

// Records implements berthv1.NodeServer.
func (n *Node) Records(ctx context.Context, req *berthv1.RecordsRequest) (*berthv1.RecordsResponse, error) {
	b := n.Recorder.Batch(ctx, req.GetAfter(), n.instantIn(req.GetSince()))
	resp := &berthv1.RecordsResponse{Last: b.Last, More: b.More, Missing: b.Missing}
	for _, r := range b.Records {
		resp.Records = append(resp.Records, &berthv1.Record{Number: r.Number, Of: Names(r.Of), Entry: n.shown(r.Entry)})
	}
	return resp, nil
}

// Why implements berthv1.NodeServer.
func (n *Node) Why(ctx context.Context, req *berthv1.WhyRequest) (*berthv1.WhyResponse, error) {
	if req.GetId() == "" {
		return nil, fmt.Errorf("why: no sandbox or container is named: %w", errdefs.ErrInvalidArgument)
	}
	found, err := n.find(ctx, recorder.Query{Of: req.GetId(), Around: true})
	if err != nil {
		return nil, err
	}
	list, sentences := n.underWay(ops.Object{ID: found.ID, Names: found.Names})
	a := why.Explain(found, n.Pods.Ended(), n.Clock.Now(), list, time.Now())
	if len(a.Wrote) == 0 {
		a.Wrote = n.Recorder.See(ctx, a.ID).Log
	}
	return &berthv1.WhyResponse{
		Of:     a.Of,
		Id:     a.ID,
		Cause:  string(a.Cause),
		What:   a.What,
		Why:    a.Why,
		Wrote:  a.Wrote,
		Before: a.Before,
		Now:    a.Now,
		Lane:   n.laneOf(a.ID),

		UnderWay: sentences,
	}, nil
}

// UnderWay implements berthv1.NodeServer.
func (n *Node) UnderWay(ctx context.Context, req *berthv1.UnderWayRequest) (*berthv1.UnderWayResponse, error) {
	list, left := n.Ops.Snapshot()
	now := time.Now()
	var about ops.Object
	if req.GetId() != "" {
		found, err := n.find(ctx, recorder.Query{Of: req.GetId()})
		if err != nil {
			return nil, err
		}
		about = ops.Object{ID: found.ID, Names: found.Names}
		list = ops.About(list, about)
	}
	resp := &berthv1.UnderWayResponse{LeftOut: count(left)}
	said := ops.Say(list, ops.Object{}, now)
	for i, o := range list {
		m := &berthv1.Operation{
			Number: o.Number,
			PartOf: o.PartOf,
			Kind:   string(o.Kind),
			What:   o.What,
			Id:     o.Of.ID,
			Of:     Names(o.Of.Names),
			Image:  o.Of.Image,
			By:     o.By.String(),
			Since:  timestamp(o.Since),
			Age:    durationpb.New(now.Sub(o.Since)),
			Then:   o.Then,
			Tries:  count(o.Tries),
			Error:  o.Err,

			Sentence: said[i],
		}
		if !o.Until.IsZero() {
			m.Left = durationpb.New(o.Until.Sub(now))
		}
		resp.Operations = append(resp.Operations, m)
	}
	return resp, nil
}

// underWay returns the operations of an object that are under way, in sentences, too.
func (n *Node) underWay(of ops.Object) ([]ops.Operation, []string) {
	list, _ := n.Ops.Snapshot()
	if of != (ops.Object{}) {
		list = ops.About(list, of)
	}
	return list, ops.Sentences(list, of, time.Now())
}

// Lanes implements berthv1.NodeServer.
func (n *Node) Lanes(context.Context, *berthv1.LanesRequest) (*berthv1.LanesResponse, error) {
	resp := &berthv1.LanesResponse{}
	for _, l := range n.Pods.Lanes() {
		resp.Lanes = append(resp.Lanes, laneMessage(l))
	}
	return resp, nil
}

// Ended implements berthv1.NodeServer.
func (n *Node) Ended(context.Context, *berthv1.EndedRequest) (*berthv1.EndedResponse, error) {
	resp := &berthv1.EndedResponse{Exits: map[string]*berthv1.Exit{}}
	for id, e := range n.Pods.Ended() {
		resp.Exits[id] = &berthv1.Exit{
			Code:        e.Code,
			Measured:    e.Measured,
			Reason:      e.Reason,
			Witness:     string(e.Witness),
			FirstThread: e.FirstThread,
			Ended:       timestamp(n.Clock.Wall(e.Ended)),
			Oom:         e.OOM,
			Limit:       string(e.Limit),
			Detail:      e.Detail,
		}
	}
	return resp, nil
}

// laneOf returns the lane of a sandbox or container, nil if nothing is left to do.
func (n *Node) laneOf(id string) *berthv1.Lane {
	for _, l := range n.Pods.Lanes() {
		if l.ID == id {
			return laneMessage(l)
		}
	}
	return nil
}

func laneMessage(l lane.Lane) *berthv1.Lane {
	return &berthv1.Lane{
		Id:      l.ID,
		State:   l.State,
		Since:   timestamp(l.Since),
		Until:   timestamp(l.Until),
		Waiting: int32(l.Waiting), // the queue of a lane is bounded
		Tries:   int32(l.Tries),   // an attempt takes a second or more
		Error:   l.Err,
		Head:    fmt.Sprint(l.Head),
	}
}

// Names returns the message of names, nil for the node.
func Names(n event.Names) *berthv1.Names {
	if n == (event.Names{}) {
		return nil
	}
	return &berthv1.Names{
		Namespace: n.Namespace,
		Pod:       n.Pod,
		Uid:       n.UID,
		Sandbox:   n.Sandbox,
		Container: n.Container,
		Attempt:   n.Attempt,
	}
}

// timestamp returns the message of a wall time, nil for the zero Time. One of this process, which
// time.Now has returned, is that of the clock as it is now.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	now := time.Now()
	return timestamppb.New(now.Add(t.Sub(now)))
}

// instantIn returns the instant of a message, none for nil.
func (n *Node) instantIn(t *timestamppb.Timestamp) clock.Instant {
	if t == nil {
		return clock.Instant{}
	}
	return n.Clock.Instant(t.AsTime())
}

// shown returns an entry in JSON with wall time in place of its instants. One of a newer berth,
// whose instants are not known, stays as it is.
func (n *Node) shown(entry json.RawMessage) string {
	var e event.Entry
	if n.Clock.Plain() || json.Unmarshal(entry, &e) != nil {
		return string(entry)
	}
	b, err := json.Marshal(e.Shown(n.Clock))
	if err != nil {
		return string(entry)
	}
	return string(b)
}
