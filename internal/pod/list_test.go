// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"testing/synctest"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Package cri encodes an item of a list once, for as long as it is the same message.
func TestListsShareTheItemsOfWhatHasNotChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := b.pod("p1", "")
		c := b.run(p, "c")
		containers := func() *runtimeapi.Container { return b.ListContainers(nil)[0] }
		before, sandbox := containers(), b.ListPodSandbox(nil)[0]
		if containers() != before || b.ListPodSandbox(nil)[0] != sandbox {
			t.Error("two lists have different messages, and nothing has changed")
		}
		if err := b.StopContainer(t.Context(), c, 0); err != nil {
			t.Fatal(err)
		}
		after := containers()
		if after == before || after.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || before.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the container ended, and lists have %v before and %v after", before, after)
		}
		if err := b.StopPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if got := b.ListPodSandbox(nil)[0]; got == sandbox || got.GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("the sandbox was stopped, and lists have %v", got)
		}
	})
}
