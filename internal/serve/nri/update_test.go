// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func limit(bytes int64) *runtimeapi.LinuxContainerResources {
	return &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: bytes}
}

// Plug-ins were not asked about the resources of pods, and were not shown them.
func TestAPluginFollowsTheResourcesOfAPod(t *testing.T) {
	s, _ := start(t, 10*time.Second)
	p := join(t, s, &plugin{})
	ctx := t.Context()
	target := sandbox("p")
	target.PodOverhead = limit(1)
	if err := s.SandboxRun(ctx, target); err != nil {
		t.Fatal(err)
	}
	if err := s.UpdatingPod(ctx, target, nil, limit(5)); err != nil {
		t.Fatal(err)
	}
	target.PodResources = limit(5)
	s.UpdatedPod(ctx, target)
	s.UpdatedPod(ctx, sandbox("never run")) // it is not known, and not known afterwards either
	until(t, "the plug-in is notified", func() bool { return p.has("updated-pod never run - -") })
	want := []string{"synchronize ", "run p name-p 10.0.0.1", "update-pod p - 5", "updated-pod p 1 5", "updated-pod never run - -"}
	if got := p.all(); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	pods, _ := s.known.all()
	if len(pods) != 1 || memory(pods[0].GetLinux().GetPodResources()) != "5" {
		t.Errorf("the next plug-in is synchronised with %v", pods)
	}
}

// PROPERTIES 27: a plug-in may refuse new resources of a pod; one that hangs does not hold them up.
func TestAPluginRefusesTheResourcesOfAPod(t *testing.T) {
	s, _ := start(t, 100*time.Millisecond)
	refuses := &plugin{fail: map[string]error{"update-pod": errors.New("not so much")}}
	join(t, s, refuses)
	if err := s.UpdatingPod(t.Context(), sandbox("p"), nil, limit(5)); err == nil || !strings.Contains(err.Error(), "not so much") {
		t.Errorf("got %v", err)
	}
	refuses.stub.Stop()
	until(t, "the plug-in is gone", func() bool { return s.UpdatingPod(t.Context(), sandbox("p"), nil, limit(5)) == nil })

	hang := make(chan struct{})
	defer close(hang)
	slow := join(t, s, &plugin{hang: map[string]chan struct{}{"update-pod": hang}})
	if err := s.UpdatingPod(t.Context(), sandbox("p"), nil, limit(6)); err != nil {
		t.Errorf("a plug-in that hangs holds the call up: %v", err)
	}
	if !slow.has("update-pod p - 6") {
		t.Error("the plug-in was not asked")
	}
}
