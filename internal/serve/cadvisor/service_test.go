// SPDX-License-Identifier: Apache-2.0

package cadvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"berth/internal/heart/pod"
)

// PROPERTIES 31: a sandbox without a process has a cgroup for as long as it is READY, and no other
// sandbox has one.
func TestACgroupIsThereWhileItsSandboxIsReady(t *testing.T) {
	h := newHost(t)
	for i, id := range []string{"before", "after", "process", "host", "alone", "elsewhere"} {
		h.run(id)
		h.shim(id, uint32(i+1))
	}
	h.remove("after")
	h.run("process", func(t *pod.Target) { t.Pinned = false })
	h.run("host", func(t *pod.Target) { t.NetNS = "" })
	h.run("alone", func(t *pod.Target) { t.CgroupParent = "" })
	h.run("elsewhere", func(t *pod.Target) { t.CgroupParent = "/gone" })
	h.run("threadless")
	b := h.start()
	h.until("a cgroup of a pod that was there", func() bool { return h.group("before") != "" })
	h.run("after")
	b.Look("after")
	h.until("a cgroup of a pod that came", func() bool { return h.group("after") != "" })
	for _, id := range []string{"process", "host", "alone", "elsewhere", "threadless", "unknown", "aft"} {
		b.Look(id)
	}
	h.run("before", func(t *pod.Target) { t.Running = false })
	b.Look("before")
	h.remove("after")
	b.Look("after")
	h.until("no cgroups", func() bool { return h.group("before") == "" && h.group("after") == "" })
	h.until("no records", func() bool { return len(h.records()) == 0 })
	made, err := os.ReadDir(h.path("cgroups/pods"))
	if err != nil || len(made) > 0 {
		t.Errorf("there are %v, %v", made, err)
	}
}

// PROPERTIES 31: cAdvisor learns a thread once, for each cgroup. The cgroup is removed when that
// thread has gone, since another process may get its ID, and made anew when there is another one,
// and not before; a berth that was killed meanwhile knows what cAdvisor knows.
func TestACgroupIsMadeAnewForAnotherThread(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			h := newHost(t)
			h.run("a")
			h.shim("a", 7)
			h.shim("b", 1)
			b := h.start()
			h.until("a cgroup", func() bool { return h.group("a") != "" })
			if thread, err := h.ask("a"); thread != 7 || err != nil {
				t.Fatalf("thread %d, %v", thread, err)
			}
			again := func() {
				if killed {
					b.kill()
					b = h.start()
				}
				b.Look("a")
				b.Look("b")
				h.until("b is looked at", func() bool { return h.group("b") != "" })
				h.remove("b")
				b.Look("b")
				h.until("b is looked at again", func() bool { return h.group("b") == "" })
				h.run("b")
			}
			h.run("b")
			first := h.group("a")
			again()
			if h.group("a") != first {
				t.Error("the cgroup was made anew although the thread is there")
			}
			h.shim("a", 0)
			again()
			if h.group("a") != "" {
				t.Error("the cgroup is there although the thread has gone")
			}
			h.shim("a", 8)
			again()
			h.until("another cgroup", func() bool { return h.group("a") != "" && h.group("a") != first })
			if thread, err := h.ask("a"); thread != 8 || err != nil {
				t.Fatalf("thread %d, %v", thread, err)
			}
		})
	}
}

// PROPERTIES 31: what a berth that was killed has made is removed by the next one, if its sandbox
// is gone, also when nothing is served any more.
func TestCgroupsOfAKilledBerthAreRemoved(t *testing.T) {
	for name, change := range map[string]func(c *Config){
		"served":      func(*Config) {},
		"turned off":  func(c *Config) { c.Link = "" },
		"elsewhere":   func(c *Config) { c.Link = filepath.Dir(c.State) + "/taken" },
		"no listener": func(c *Config) { c.Listen = func(string) (*net.UnixListener, error) { return nil, errors.New("no") } },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.run("a")
			h.shim("a", 1)
			h.run("gone")
			h.shim("gone", 2)
			b := h.start()
			h.until("cgroups", func() bool { return h.group("a") != "" && h.group("gone") != "" })
			b.kill()
			h.remove("gone")
			for file, text := range map[string]string{"run/cadvisor/b.new": `{"dir":"x"}`, "run/cadvisor/c": "", "taken": ""} {
				if err := os.WriteFile(h.path(file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			b = h.start(change)
			served := name == "served"
			h.until("the cgroup is gone", func() bool { return h.group("gone") == "" && (h.group("a") != "") == served })
			h.until("its record is", func() bool { return len(h.records()) == map[bool]int{true: 1}[served] })
			select {
			case <-b.ended:
				t.Error("it does not go on")
			default:
			}
		})
	}
}

// A cgroup that cannot be removed at once, since somebody has put something into it, is removed
// later.
func TestACgroupThatIsBusyIsRemovedLater(t *testing.T) {
	h := newHost(t)
	cfg := h.config()
	s := Open(cfg)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	s.inNamespace = h.has
	h.run("a")
	h.shim("a", 1)
	s.look(t.Context(), "a")
	inside := h.path("cgroups/pods/a/inside")
	if err := os.Mkdir(inside, 0o700); err != nil {
		t.Fatal(err)
	}
	h.remove("a")
	s.look(t.Context(), "a")
	if h.group("a") == "" || len(h.records()) != 1 {
		t.Fatalf("a busy cgroup is gone, or its record: %q", h.records())
	}
	if err := os.Remove(inside); err != nil {
		t.Fatal(err)
	}
	s.lookAtAll(t.Context())
	if h.group("a") != "" || len(h.records()) != 0 {
		t.Errorf("it is still there: %q", h.records())
	}
}

// Look returns while Run is busy, or does not run.
func TestLookDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Service{
			lis:     &net.UnixListener{},
			pending: map[string]bool{},
			wake:    make(chan struct{}, 1),
		}
		for i := range 1000 {
			s.Look(fmt.Sprint(i % 10))
		}
		if got := s.takePending(); len(got) != 10 {
			t.Errorf("%d are to be looked at, want 10", len(got))
		}
	})
}

// A cgroup stays where it is when its handler gets another cgroup driver, or is not configured any
// more, also when it is made anew.
func TestACgroupStaysWhereItIsWhenItsHandlerChanges(t *testing.T) {
	h := newHost(t)
	h.run("a")
	h.shim("a", 7)
	b := h.start()
	h.until("a cgroup", func() bool { return h.group("a") != "" })
	if thread, err := h.ask("a"); thread != 7 || err != nil {
		t.Fatalf("thread %d, %v", thread, err)
	}
	b.kill()
	first := h.group("a")
	h.run("a", func(t *pod.Target) { t.Handler.SystemdCgroup = true })
	h.shim("a", 8)
	h.start()
	h.until("another cgroup", func() bool { return h.group("a") != "" && h.group("a") != first })
}

// The link and the socket go when berth stops; the cgroups stay with the pods.
func TestCloseRemovesTheLink(t *testing.T) {
	h := newHost(t)
	h.run("a")
	h.shim("a", 1)
	b := h.start()
	h.until("a cgroup", func() bool { return h.group("a") != "" })
	b.kill()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	for _, path := range []string{h.path("link"), b.socket()} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if h.group("a") == "" {
		t.Error("the cgroup is gone")
	}
}
