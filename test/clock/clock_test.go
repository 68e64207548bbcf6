// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// TestMain refuses to run anywhere but in a guest.
func TestMain(m *testing.M) {
	if os.Getenv("BERTH_GUEST") == "" {
		_, _ = os.Stderr.WriteString("the clock of this machine is not set: make test-guest SUITES=test/clock\n")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// set sets the wall clock ahead, or back.
func set(t *testing.T, by time.Duration) {
	t.Helper()
	now := unix.NsecToTimespec(time.Now().Add(by).UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
		t.Fatal(err)
	}
}

// PROPERTIES 70: the clock is set back and ahead under pods, also while berth is away. The creations
// rise with the attempts, what CRI shows is in order and is right, and the history is there and
// names each step.
func TestTheClockIsSetUnderPods(t *testing.T) {
	n := node.Start(t, node.Options{})
	ahead := time.Duration(0)
	step := func(by time.Duration) {
		t.Helper()
		set(t, by)
		ahead += by
	}
	t.Cleanup(func() { set(t, -ahead) })
	cfg := n.PodConfig()
	first := n.Pod(cfg)
	attempt := func(pod string, no uint32, script string) string {
		c := node.ContainerConfig("app", "sh", "-c", script)
		c.Metadata.Attempt = no
		return n.Run(pod, cfg, c)
	}
	began := time.Now()
	const waits = "trap 'exit 3' TERM; while :; do sleep 0.1; done"
	c0 := attempt(first, 0, waits)
	// right waits until CRI shows what is right: that the container was started just now, and nothing
	// that is later than now.
	right := func(id string, since time.Duration) {
		t.Helper()
		n.Until("its times are right", func() bool {
			st, now := n.Container(id), time.Now()
			at := time.Unix(0, st.GetStartedAt())
			return !at.After(now) && now.Sub(at) < since && st.GetCreatedAt() <= st.GetStartedAt() &&
				(st.GetFinishedAt() == 0 || st.GetStartedAt() <= st.GetFinishedAt() && st.GetFinishedAt() <= now.UnixNano())
		})
	}
	rises := func(ids ...string) {
		t.Helper()
		for i := 1; i < len(ids); i++ {
			if a, b := n.Container(ids[i-1]).GetCreatedAt(), n.Container(ids[i]).GetCreatedAt(); a >= b {
				t.Errorf("attempt %d was created at %d, and the next one at %d", i-1, a, b)
			}
		}
	}
	step(-time.Hour)
	right(c0, time.Since(began)+time.Minute)
	if err := syscall.Kill(n.Pid(c0), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	node.ExpectExit(t, n.Measured(c0), 3, "Error")
	c1 := attempt(first, 1, waits)
	rises(c0, c1)
	step(30 * 24 * time.Hour)
	right(c0, time.Since(began)+time.Minute)
	right(c1, time.Since(began)+time.Minute)

	pid := n.Pid(c1)
	n.Berth.Kill(syscall.SIGKILL)
	step(-2 * time.Hour)
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	n.StartBerth()
	node.ExpectExit(t, n.Ended(c1), 3, "Error")
	right(c1, time.Since(began)+time.Minute)
	c2 := attempt(first, 2, waits)
	rises(c0, c1, c2)

	if _, err := n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: first}); err != nil {
		t.Fatal(err)
	}
	step(-time.Hour)
	cfg.Metadata.Attempt++
	second := n.Pod(cfg)
	list, err := n.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	created := map[string]int64{}
	for _, p := range list.GetItems() {
		created[p.GetId()] = p.GetCreatedAt()
	}
	if created[first] >= created[second] {
		t.Errorf("the sandboxes were created at %d and %d", created[first], created[second])
	}
	// The history is written in parts, and berth was killed soon after the second step: its entry may
	// be lost.
	said, err := n.Command("timeline", c0).CombinedOutput()
	if err != nil || strings.Count(string(said), "the clock was set") < 3 || strings.Index(string(said), "CREATED") > strings.Index(string(said), "exit settled") {
		t.Errorf("the timeline: %v\n%s", err, said)
	}
	if said, err := n.Command("why", c2).CombinedOutput(); err != nil || !strings.Contains(string(said), "the clock was set") {
		t.Errorf("why: %v\n%s", err, said)
	}
}
