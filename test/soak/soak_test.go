// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

const (
	// usual is how many kills there are without BERTH_KILLS, and stretch after how many of them all is
	// removed, and leaks are looked for.
	usual, stretch = 1000, 20
	// workers make pods at the same time, and residents run through all kills of a stretch.
	workers, residents = 3, 2
)

// soak is a node under churn.
type soak struct {
	t        *testing.T
	n        *node.Node
	registry *testregistry.Registry
	marks    string // the directory in which containers note that they begin and end
	external bool   // containerd is beside berth
	events   *ends
	numbers  atomic.Int64

	mu      sync.Mutex
	figures figures
	away    []node.Span // from when to when berth, or containerd, was not there
}

// figures are what was done and how long it took.
type figures struct {
	kills, whileStarting int
	pods, containers     int
	ends                 map[kind]int
	updates, execs       int
	pulls, imports       int
	calls, repeated      int
	errors               map[string]int // by call and code
	logged               int            // bytes
	cutOff               int            // starts that a kill made fail
	ready, late          []time.Duration
}

func (s *soak) note(edit func(*figures)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	edit(&s.figures)
}

func (s *soak) wrong(text string) { s.t.Error(text) }

// visible notes how long it took until an end was visible, without the time during which berth was
// not there.
func (s *soak) visible(ended, seen time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	took := seen.Sub(ended)
	for _, a := range s.away {
		from, to := a.From, a.To
		if to.IsZero() || to.After(seen) {
			to = seen
		}
		if from.Before(ended) {
			from = ended
		}
		if to.After(from) {
			took -= to.Sub(from)
		}
	}
	s.figures.late = append(s.figures.late, took)
}

// image is an image with a layer of its own.
func (s *soak) image(rnd *rand.Rand) v1.Image {
	body := make([]byte, 64<<10)
	for i := range body {
		body[i] = byte(rnd.Uint32())
	}
	layer, err := testimage.Layer(testimage.File{Name: "file", Mode: 0o644, Body: body})
	if err != nil {
		panic(broken{err.Error()})
	}
	img, err := testimage.Image(v1.Config{Cmd: []string{"true"}}, layer)
	if err != nil {
		panic(broken{err.Error()})
	}
	return img
}

func kills(t *testing.T) int {
	t.Helper()
	text := os.Getenv("BERTH_KILLS")
	if text == "" {
		return usual
	}
	k, err := strconv.Atoi(text)
	if err != nil || k < 0 {
		t.Fatalf("BERTH_KILLS=%q is not a number of kills", text)
	}
	return k
}

func seed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("BERTH_SEED")
	if text == "" {
		return rand.Uint64()
	}
	s, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("BERTH_SEED: %v", err)
	}
	return s
}

// PROPERTIES 4, 5, 6, 8, 10 and 23: berth is killed again and again under churn, and with an external
// containerd also that. No code is wrong, no program is started twice, no event and no byte of a log
// is lost, each call can be repeated, and nothing is left.
func TestAThousandKillsUnderChurn(t *testing.T) {
	number, total := seed(t), kills(t)
	if total == 0 {
		return
	}
	modes := node.Pick(t, "place of containerd", "embedded", "external")
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Logf("BERTH_SEED=%d", number)
			rnd := rand.New(rand.NewPCG(number, 0))
			s := newSoak(t, mode == "external", rnd.IntN(2) == 0)
			defer s.report()
			for left := max(1, total/len(modes)); left > 0; left -= stretch {
				s.stretch(rnd, min(left, stretch))
				if t.Failed() {
					return
				}
			}
		})
	}
}

func newSoak(t *testing.T, external, serviceManager bool) *soak {
	dir := filepath.Join(node.Module(t), "build", "soak")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	log, err := os.CreateTemp(dir, "berth-*.log")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = log.Close()
		if !t.Failed() {
			_ = os.Remove(log.Name())
		} else {
			t.Logf("berth's log: %s", log.Name())
		}
	})
	s := &soak{t: t, external: external, registry: testregistry.Start(t), events: &ends{codes: map[string]int32{}}}
	s.figures.ends, s.figures.errors = map[kind]int{}, map[string]int{}
	s.n = node.Start(t, node.Options{External: external, ServiceManager: serviceManager, Stderr: log, Args: []string{"--log-level", "debug"}})
	t.Logf("descriptors are kept beyond berth's death: %v", serviceManager)
	s.marks = s.n.Dir + "/marks"
	if err := os.Mkdir(s.marks, 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

// stretch kills berth under churn, lets the churn end, removes everything, and looks for leaks.
func (s *soak) stretch(rnd *rand.Rand, kills int) {
	ctx, unfollow := context.WithCancel(s.t.Context())
	defer unfollow()
	go s.events.follow(ctx, s.n.Dir+"/berth.sock")
	type resident struct {
		id   string
		pid  int
		code int32
	}
	cfg := s.n.PodConfig()
	pod := s.n.Pod(cfg)
	var stay []resident
	for i := range residents {
		code := 1 + rnd.Int32N(99)
		id := s.n.Run(pod, cfg, node.ContainerConfig(fmt.Sprint("resident", i), "sh", "-c", fmt.Sprintf("trap 'exit %d' TERM; echo ready; sleep 1000 & wait", code)))
		s.n.Until("it is ready", func() bool { return s.n.Log(id) == "ready\n" })
		stay = append(stay, resident{id, s.n.Pid(id), code})
	}

	stop := make(chan struct{})
	var wg sync.WaitGroup
	work := func(f func(<-chan struct{}, *rand.Rand)) {
		own := rand.New(rand.NewPCG(rnd.Uint64(), rnd.Uint64()))
		wg.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					b, ok := p.(broken)
					if !ok {
						panic(p)
					}
					s.wrong(b.why)
				}
			}()
			f(stop, own)
		})
	}
	for range workers {
		work(s.pods)
	}
	work(s.images)
	for range kills {
		pause(rnd, 1500*time.Millisecond)
		s.kill(rnd)
		for _, r := range stay {
			if st := s.n.Container(r.id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || s.n.Pid(r.id) != r.pid {
				s.wrong(fmt.Sprintf("a container that runs as process %d is %v", r.pid, st))
			}
		}
		if s.t.Failed() {
			break
		}
	}
	close(stop)
	wg.Wait()
	s.n.Until("berth is connected to containerd", s.n.Connected)
	for _, r := range stay {
		if _, err := s.n.StopContainer(s.t.Context(), &runtimeapi.StopContainerRequest{ContainerId: r.id, Timeout: 100}); err != nil {
			s.t.Error(err)
			continue
		}
		node.ExpectExit(s.t, s.n.Container(r.id), r.code, "Error")
	}
	s.n.RemoveAll(s.t.Context())
	s.n.NoLeaks(s.t.Context())
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	for _, w := range s.events.wrong {
		s.wrong(w)
	}
}

// kill kills berth, or containerd, or both, and waits until they are back.
func (s *soak) kill(rnd *rand.Rand) {
	victim := "berth"
	if s.external {
		victim = []string{"berth", "berth", "containerd", "both"}[rnd.IntN(4)]
	}
	gone := time.Now()
	s.mu.Lock()
	s.away = append(s.away, node.Span{From: gone})
	s.mu.Unlock()
	if victim != "containerd" {
		s.n.Berth.Kill(syscall.SIGKILL)
	}
	if victim != "berth" {
		s.n.Containerd.Kill(syscall.SIGKILL)
	}
	pause(rnd, 300*time.Millisecond)
	if victim != "berth" {
		s.n.StartContainerd()
	}
	if victim != "containerd" {
		for rnd.IntN(4) == 0 { // also while it comes up
			p := s.n.SpawnBerth()
			pause(rnd, 400*time.Millisecond)
			p.Kill(syscall.SIGKILL)
			s.note(func(f *figures) { f.kills++; f.whileStarting++ })
		}
		began := time.Now()
		s.n.ServeBerth()
		s.note(func(f *figures) { f.ready = append(f.ready, time.Since(began)) })
	}
	s.mu.Lock()
	s.away[len(s.away)-1].To = time.Now()
	s.figures.kills++
	s.mu.Unlock()
}

func pause(rnd *rand.Rand, most time.Duration) {
	time.Sleep(time.Duration(rnd.Int64N(int64(most))))
}

// report prints the figures.
func (s *soak) report() {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.figures
	ended, sum := map[string]int{}, 0
	for how, k := range f.ends {
		ended[how.String()] = k
		sum += k
	}
	s.events.mu.Lock()
	events := s.events.events
	s.events.mu.Unlock()
	lines := []string{
		fmt.Sprintf("kills            %d, of them %d while berth was starting", f.kills, f.whileStarting),
		fmt.Sprintf("pods             %d", f.pods),
		fmt.Sprintf("containers       %d started, %d ended: %s", f.containers, sum, list(ended)),
		fmt.Sprintf("starts cut off   %d, before the program began", f.cutOff),
		fmt.Sprintf("other            %d updates, %d execs, %d pulls, %d imports", f.updates, f.execs, f.pulls, f.imports),
		fmt.Sprintf("calls            %d, of them %d repeated; errors: %s", f.calls, f.repeated, list(f.errors)),
		fmt.Sprintf("events           %d", events),
		fmt.Sprintf("logs             %d bytes", f.logged),
		fmt.Sprintf("until ready      %s", spread(f.ready)),
		fmt.Sprintf("until EXITED     %s, without the time during which somebody was killed", spread(f.late)),
	}
	s.t.Logf("figures:\n%s", strings.Join(lines, "\n"))
}

// spread is the median and the longest of times.
func spread(times []time.Duration) string {
	if len(times) == 0 {
		return "not measured"
	}
	sorted := slices.Clone(times)
	slices.Sort(sorted)
	return fmt.Sprintf("%s in the median of %d, %s at most", sorted[len(sorted)/2].Round(time.Millisecond), len(sorted), sorted[len(sorted)-1].Round(time.Millisecond))
}
