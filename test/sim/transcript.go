// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/world"
)

// transcript is the record of a script, for a person to read: its text, its steps with their
// numbers, and after each step the events that a subscriber received and the answers to calls in
// the background until the next one began.
//
// It has the time of each line to a tenth of a second, and lines of the same step are sorted. So it
// does not depend on the order within the same instant.
type transcript struct {
	mu      sync.Mutex
	began   time.Time
	lines   []string
	steps   int
	learned []learned         // since the last step
	heading []string          // of the next step
	names   map[string]string // of containers and sandboxes, by ID
}

// learned is one thing that was learned. Of two at the same time an event of a lower type is before
// one of a higher, and an answer before all events.
type learned struct {
	at, text string
	kind     int
}

func newTranscript() *transcript {
	return &transcript{began: time.Now(), names: map[string]string{}}
}

// at is the time since the story began.
func (t *transcript) at() string {
	return fmt.Sprintf("%12s", time.Since(t.began).Truncate(100*time.Millisecond))
}

// text adds a line of the script's text, which stands before the next step.
func (t *transcript) text(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heading = append(t.heading, line)
}

// step adds a step that begins.
func (t *transcript) step(statement string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flushLocked()
	if len(t.heading) > 0 {
		if t.steps > 0 {
			t.lines = append(t.lines, "")
		}
		t.lines = append(append(t.lines, t.heading...), "")
		t.heading = nil
	}
	t.steps++
	t.lines = append(t.lines, fmt.Sprintf("%3d %s  %s", t.steps, t.at(), strings.Join(strings.Fields(statement), " ")))
}

// answer adds the answer to a statement that did not succeed.
func (t *transcript) answer(statement string, err error) {
	if err == nil {
		return
	}
	why := "fails"
	if code := status.Code(errgrpc.ToGRPC(err)); code != codes.Unknown {
		why = code.String()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.learned = append(t.learned, learned{at: t.at(), text: strings.TrimSpace(statement) + ": " + why, kind: -1})
}

// event adds an event that a subscriber received.
func (t *transcript) event(ev *runtimeapi.ContainerEventResponse) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id, end := ev.GetContainerId(), ""
	if pod := ev.GetPodSandboxStatus(); pod != nil {
		t.names[pod.GetId()] = pod.GetMetadata().GetName()
	}
	for _, c := range ev.GetContainersStatuses() {
		t.names[c.GetId()] = c.GetMetadata().GetName()
		if c.GetId() == id && c.GetState() == exited {
			end = fmt.Sprintf(" EXITED %d %s", c.GetExitCode(), c.GetReason())
		}
	}
	name := t.names[id]
	if name == "" {
		name = world.Short(id)
	}
	what := strings.TrimSuffix(strings.TrimPrefix(ev.GetContainerEventType().String(), "CONTAINER_"), "_EVENT")
	t.learned = append(t.learned, learned{at: t.at(), text: fmt.Sprintf("event %s %s%s", what, name, end), kind: int(ev.GetContainerEventType())})
}

func (t *transcript) flushLocked() {
	slices.SortFunc(t.learned, func(a, b learned) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind), cmp.Compare(a.text, b.text))
	})
	for _, l := range t.learned {
		t.lines = append(t.lines, fmt.Sprintf("    %s      %s", l.at, l.text))
	}
	t.learned = nil
}

// String is the transcript so far.
func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flushLocked()
	return strings.Join(t.lines, "\n") + "\n"
}
