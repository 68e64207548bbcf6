// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/state"
)

func TestAViewBelongsToItsContainer(t *testing.T) {
	if id, isView := viewedBy(viewKey("c1", 2)); id != "c1" || !isView {
		t.Error(id, isView)
	}
	if id, isView := viewedBy("c1"); id != "c1" || isView {
		t.Error(id, isView)
	}
	if withImageRefs(&state.Container{Config: &runtimeapi.ContainerConfig{}}) != nil {
		t.Error("mounts out of nothing")
	}
}
