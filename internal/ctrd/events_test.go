// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"testing"

	eventtypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/typeurl/v2"

	"berth/internal/exit"
)

// For a task whose shim died containerd publishes a 137 that nobody measured: it was taken for the code of a process that
// had ended with 42, where the kernel cannot tell (before Linux 6.15).
func TestWhatContainerdPublishesForADeadShimIsNoMeasurement(t *testing.T) {
	for code, measured := range map[uint32]bool{0: true, 42: true, 143: true, 137: false, 255: false} {
		body, err := typeurl.MarshalAny(&eventtypes.TaskExit{ContainerID: "c1", ID: "c1", ExitStatus: code})
		if err != nil {
			t.Fatal(err)
		}
		var told []exit.Fact
		(&Containerd{}).dispatch(&events.Envelope{Topic: "/tasks/exit", Event: body}, Listener{Exited: func(f exit.Fact) { told = append(told, f) }})
		if len(told) != 1 || told[0].Measured != measured || told[0].Origin != exit.Stream {
			t.Errorf("%d: %v", code, told)
		}
	}
}
