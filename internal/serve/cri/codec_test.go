// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sends encodes a message and decodes it as a client does.
func sends[M proto.Message](t *testing.T, c *codec, m, into M) M {
	t.Helper()
	data, err := c.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	defer data.Free()
	if err := proto.Unmarshal(data.Materialize(), into); err != nil {
		t.Fatal(err)
	}
	return into
}

func TestAListArrivesAsItIs(t *testing.T) {
	c, all := newCodec(), newListed(100).list
	for _, items := range [][]*runtimeapi.Container{all, all, all[:1], nil, all[40:60], all} {
		want := &runtimeapi.ListContainersResponse{Containers: items}
		got := sends(t, c, want, &runtimeapi.ListContainersResponse{})
		if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
			t.Fatal(d)
		}
	}
	changed := proto.Clone(all[7]).(*runtimeapi.Container)
	changed.State = runtimeapi.ContainerState_CONTAINER_EXITED
	all[7] = changed
	got := sends(t, c, &runtimeapi.ListContainersResponse{Containers: all}, &runtimeapi.ListContainersResponse{})
	if got.GetContainers()[7].GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		t.Error("a container that ended is still RUNNING")
	}
	pods := &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "a"}, {Id: "b", Labels: map[string]string{"k": "v"}}}}
	if d := cmp.Diff(pods, sends(t, c, pods, &runtimeapi.ListPodSandboxResponse{}), protocmp.Transform()); d != "" {
		t.Error(d)
	}
	version := &runtimeapi.VersionResponse{RuntimeName: "berth"}
	if d := cmp.Diff(version, sends(t, c, version, &runtimeapi.VersionResponse{}), protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

// PROPERTIES 12: what was listed is forgotten when it is not listed any more.
func TestEncodedItemsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCodec()
		const n = 50
		list := func() {
			m := &runtimeapi.ListContainersResponse{Containers: newListed(n).list} // all of them new
			sends(t, c, m, &runtimeapi.ListContainersResponse{})
		}
		w := &c.containers
		for range 100 {
			list()
			if kept := len(w.recent) + len(w.old); kept > 2*(3*n+slack) {
				t.Fatalf("%d items are kept of lists of %d", kept, n)
			}
		}
		for range 3 {
			time.Sleep(generation + 1)
			sends(t, c, &runtimeapi.ListContainersResponse{}, &runtimeapi.ListContainersResponse{})
		}
		if kept := len(w.recent) + len(w.old); kept != 0 {
			t.Errorf("%d items are kept that do not exist any more", kept)
		}
	})
}

// The setting tricks.encode_once: a change of an item in place, which nobody makes, shows which.
func TestItemsAreEncodedOnceUnlessThatIsTurnedOff(t *testing.T) {
	for _, again := range []bool{false, true} {
		pods := newListed(1)
		c := dialServer(t, &Runtime{Pods: pods, EncodeAgain: again}, slog.New(slog.DiscardHandler), &observed{})
		for _, id := range []string{"before", "after"} {
			pods.list[0].Id = id
			resp, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if got := resp.GetContainers()[0].GetId(); id == "after" && (got == id) != again {
				t.Errorf("encoded anew: %t, want %t", got == id, again)
			}
		}
	}
}
