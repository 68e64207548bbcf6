// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// failing is a test that may fail: what it would say of that is kept.
type failing struct {
	testing.TB
	end time.Time // when all tests end; zero for never

	mu   sync.Mutex
	said string
}

func (f *failing) Deadline() (time.Time, bool) { return f.end, !f.end.IsZero() }

func (f *failing) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.said += fmt.Sprintf(format, args...) + "\n"
}

func (f *failing) Failed() bool { return f.all() != "" }

func (f *failing) Logf(format string, args ...any) { f.Errorf(format, args...) }

func (f *failing) all() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.said
}

// A call that was never answered took all tests of the package with it, and left what it held to those
// of other packages. It fails its test, which says what berth waited for, and nothing is left of the node.
func TestACallThatIsNotAnsweredCostsOneTestItsVerdict(t *testing.T) {
	f := &failing{TB: t}
	var n *Node
	t.Cleanup(func() { // after the node was stopped
		for _, want := range []string{
			"StopContainer takes too long", "berth debug lanes: [", // of the call
			"goroutine ", "(*Runtime).StopContainer", // in berth's log
			"left behind", "containerd-shim-runc-v2",
		} {
			if !strings.Contains(f.all(), want) {
				t.Errorf("the test that hangs does not say %q", want)
			}
		}
		if left := wait(n.left); len(left) > 0 {
			t.Errorf("left behind, and not swept: %q", left)
		}
		if t.Failed() {
			t.Log(f.all())
		}
	})
	n = Start(f, Options{})
	_, id := n.Sh("trap '' TERM; sleep 1000 & while :; do wait; done")
	c, err := dial(n.Dir+"/berth.sock", time.Second, func(string) { n.hangs("StopContainer takes too long") })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 3600}); err == nil {
		t.Error("the container could be stopped: the test proves nothing")
	}
}

// A test that waits for something else than an answer loses its berth in time, so that what waits for
// berth ends, and the tests behind it have the other half of the time.
func TestATestThatHangsLosesItsBerth(t *testing.T) {
	f := &failing{TB: t}
	n := Start(f, Options{})
	f.end = time.Now().Add(time.Second)
	defer n.bound()()
	n.Berth.Wait()
	if !strings.Contains(n.Berth.Output(), "goroutine ") || !strings.Contains(f.all(), "the test has not ended within") {
		t.Errorf("the test has said %s", f.all())
	}
}
