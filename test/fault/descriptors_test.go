// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// descriptors are the numbers of the descriptors that a process has open.
func descriptors(t *testing.T, pid int) map[int]bool {
	t.Helper()
	found, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Error(err)
	}
	open := map[int]bool{}
	for _, f := range found {
		if fd, err := strconv.Atoi(f.Name()); err == nil {
			open[fd] = true
		}
	}
	return open
}

// exhaust holds berth at the limit of its descriptors until release is called: it keeps what it has,
// and whatever it opens fails with EMFILE. What it closes is taken from it, too.
func exhaust(t *testing.T, n *node.Node) (release func()) {
	t.Helper()
	pid := n.Berth.Pid()
	var usual unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &usual); err != nil {
		t.Fatal(err)
	}
	tighten := func() {
		free := uint64(0)
		for open := descriptors(t, pid); open[int(free)]; {
			free++
		}
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: free, Max: usual.Max}, nil); err != nil {
			t.Error(err)
		}
	}
	tighten()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticks := time.NewTicker(20 * time.Millisecond)
		defer ticks.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticks.C:
				tighten()
			}
		}
	}()
	release = sync.OnceFunc(func() {
		close(stop)
		<-done
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &usual, nil); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(release)
	return release
}

// starved is a pod whose berth has no descriptors for a while.
type starved struct {
	*node.Node
	t   *testing.T
	cfg *runtimeapi.PodSandboxConfig
	pod string

	containers     int       // how many were made
	staying        []process // these run all the time
	ending         []process // these end meanwhile
	stopped, eater process   // a stop is asked for; the OOM killer ends it
	beginning      []string  // these are started meanwhile
}

// process is the first one of a container. It ends with the code when it gets SIGTERM.
type process struct {
	id   string
	pid  int
	code int32
}

func (s *starved) config(command ...string) *runtimeapi.ContainerConfig {
	s.containers++
	return node.ContainerConfig(fmt.Sprint("c", s.containers), command...)
}

func (s *starved) run(c *runtimeapi.ContainerConfig, code int) process {
	s.t.Helper()
	id := s.Run(s.pod, s.cfg, c)
	ready(s.Node, id)
	return process{id, s.Pid(id), int32(code)}
}

// several runs containers that end with a code of their own, from one on.
func (s *starved) several(count, code int) (all []process) {
	s.t.Helper()
	for i := range count {
		all = append(all, s.run(s.config("sh", "-c", exitOnTerm(code+i)), code+i))
	}
	return all
}

// prepare makes those to which something happens.
func (s *starved) prepare() {
	s.t.Helper()
	const ends, begin = 5, 4
	s.ending, s.stopped = s.several(ends, 20), s.several(1, 30)[0]
	eats := s.config("sh", "-c", "trap 'exec tail /dev/zero' TERM; echo ready; sleep 1000 & wait")
	eats.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
	s.eater = s.run(eats, 137)
	s.beginning = nil
	for i := range begin {
		s.beginning = append(s.beginning, s.Create(s.pod, s.cfg, s.config("sh", "-c", fmt.Sprint("exit ", 40+i))))
	}
}

// honest fails the test if one is reported as ended that runs, or with a code that is not its own.
func (s *starved) honest() {
	s.t.Helper()
	for _, p := range slices.Concat([]process{s.stopped}, s.staying, s.ending) {
		st := s.Container(p.id)
		switch st.GetState() {
		case runtimeapi.ContainerState_CONTAINER_RUNNING:
		case runtimeapi.ContainerState_CONTAINER_EXITED:
			if st.GetExitCode() != p.code || syscall.Kill(p.pid, 0) == nil {
				s.t.Fatalf("process %d, which ends with %d: %v\n%s", p.pid, p.code, st, timeline(s.t, s.Node, p.id))
			}
		default:
			s.t.Fatal(st)
		}
	}
}

// starve takes the descriptors away while containers are started, are stopped and end, and
// containerd is killed.
func (s *starved) starve() {
	s.t.Helper()
	release := exhaust(s.t, s.Node)
	var wg sync.WaitGroup
	for _, id := range s.beginning {
		wg.Go(func() {
			// It fails, or not: berth may have a descriptor after all, that of what has ended.
			_, _ = s.StartContainer(s.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
		})
	}
	wg.Go(func() {
		ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
		defer cancel()
		_, _ = s.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: s.stopped.id, Timeout: 100})
	})
	for _, p := range append([]process{s.eater}, s.ending...) {
		if err := syscall.Kill(p.pid, syscall.SIGTERM); err != nil {
			s.t.Fatal(err)
		}
		s.Until("the process has ended", func() bool { s.honest(); return syscall.Kill(p.pid, 0) != nil })
	}
	if s.Containerd != nil {
		s.Containerd.Kill(syscall.SIGKILL)
		s.StartContainerd()
	}
	for range 100 { // the witnesses are asked again meanwhile
		s.honest()
		time.Sleep(20 * time.Millisecond)
	}
	release()
	wg.Wait()
}

// recovers expects that everything is as it was asked for, and can be removed.
func (s *starved) recovers() {
	s.t.Helper()
	s.Until("berth is connected", s.Connected)
	if _, err := s.StopContainer(s.t.Context(), &runtimeapi.StopContainerRequest{ContainerId: s.stopped.id, Timeout: 100}); err != nil {
		s.t.Error(err)
	}
	node.ExpectExit(s.t, s.Ended(s.eater.id), 137, "OOMKilled")
	ended := append([]process{s.stopped}, s.ending...)
	for _, p := range ended {
		node.ExpectExit(s.t, s.Ended(p.id), p.code, "Error")
	}
	for i, id := range s.beginning {
		s.Until("it has been started", func() bool {
			if s.Container(id).GetState() != runtimeapi.ContainerState_CONTAINER_CREATED {
				return true
			}
			_, err := s.StartContainer(s.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
			return err == nil
		})
		if st := s.Ended(id); st.GetExitCode() != 128 || st.GetReason() != "StartError" {
			node.ExpectExit(s.t, st, int32(40+i), "Error")
		}
	}
	for _, p := range s.staying {
		if st := s.Container(p.id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || s.Pid(p.id) != p.pid {
			s.t.Errorf("what runs as process %d is %v", p.pid, st)
		}
	}
	_, after := s.Sh("exit 50")
	node.ExpectExit(s.t, s.Ended(after), 50, "Error")
	for _, p := range append(ended, s.eater) {
		s.beginning = append(s.beginning, p.id)
	}
	for _, id := range s.beginning {
		if _, err := s.RemoveContainer(s.t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			s.t.Error(err)
		}
	}
	s.RemoveAll(s.t.Context(), s.pod)
}

// PROPERTIES 2, 5 and 10: berth can open nothing for a while, in which containers end, are
// started and stopped, and containerd is killed. Nothing is reported as ended that runs, and nothing
// with a code that is not its own; and once there are descriptors again, everything is as it was
// asked for, and nothing is left.
func TestBerthWithoutDescriptorsInventsNothing(t *testing.T) {
	both(t, quick, func(t *testing.T, n *node.Node, _ *faults) {
		s := &starved{Node: n, t: t, cfg: n.PodConfig()}
		s.pod = n.Pod(s.cfg)
		s.staying = s.several(2, 10)
		before := len(descriptors(t, n.Berth.Pid()))
		for range times(t, 1) {
			s.prepare()
			s.starve()
			s.recovers()
			if t.Failed() {
				t.FailNow()
			}
		}
		for _, p := range s.staying {
			if err := syscall.Kill(p.pid, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			node.ExpectExit(t, n.Ended(p.id), p.code, "Error")
		}
		const slack = 5 // connections come and go
		n.Until("berth has given its descriptors back", func() bool { return len(descriptors(t, n.Berth.Pid())) <= before+slack })
	})
}
