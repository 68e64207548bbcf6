// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"testing"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/typeurl/v2"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
)

// For a task whose shim has died containerd publishes a 137 that nobody measured. It was taken for
// the code of a process that had ended with 42, where the kernel does not report codes (before
// Linux 6.15).
func TestWhatContainerdPublishesForADeadShimIsNotAMeasurement(t *testing.T) {
	for code, measured := range map[uint32]bool{0: true, 42: true, 143: true, 137: false, 255: false} {
		event, err := typeurl.MarshalAny(&eventtypes.TaskExit{ContainerID: "c1", ID: "c1", ExitStatus: code})
		if err != nil {
			t.Fatal(err)
		}
		var got []exit.Fact
		e := &events.Envelope{Topic: "/tasks/exit", Timestamp: time.Now(), Event: event}
		(&Containerd{PodShims: &PodShims{clock: clock.New(nil)}}).dispatch(e, Listener{Exited: func(f exit.Fact) { got = append(got, f) }})
		if len(got) != 1 || got[0].Measured != measured || got[0].Origin != exit.Stream {
			t.Errorf("%d: %v", code, got)
		}
		if len(got) == 1 && !got[0].At.Stamp().Equal(e.Timestamp) { // the event has no instant of its own
			t.Errorf("%d: at %s, published at %s", code, got[0].At, e.Timestamp)
		}
	}
}
