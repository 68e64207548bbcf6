// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"berth/test/world"
)

// A caller that removes what it has made in part knows the ID before anything is there, and nobody
// else gets that sandbox.
func TestASandboxIsNotedBeforeItIsMade(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		full := errors.New("no space left")
		if _, err := b.RunNotedPodSandbox(t.Context(), config("p1"), "", func(string) error { return full }); !errors.Is(err, full) {
			t.Error(err)
		}
		b.expectLeft(nil)

		release := b.Hold("cni-add", "")
		noted := ""
		made := make(chan string, 1)
		go func() {
			id, err := b.RunNotedPodSandbox(t.Context(), config("p1"), "", func(id string) error {
				noted = id
				b.expectLeft(nil)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			made <- id
		}()
		synctest.Wait()
		if id, err := b.RunPodSandbox(t.Context(), config("p1"), ""); !errdefs.IsAlreadyExists(err) {
			t.Errorf("another call got %q %v", id, err)
		}
		release()
		if id := <-made; id == "" || id != noted {
			t.Errorf("%q was noted, and %q was made", noted, id)
		}
		if _, err := b.RunNotedPodSandbox(t.Context(), config("p1"), "", func(string) error { return nil }); !errdefs.IsAlreadyExists(err) {
			t.Error(err)
		}
	})
}

// PROPERTIES 61: what needs the network waits for its plug-ins, however slow they are: the sysctls
// of the network, which plug-ins would undo, /etc/hosts with the pod's address, and a virtual
// machine, which takes up the interfaces that are there, and has those sysctls set by its OCI
// runtime.
func TestWhatNeedsTheNetworkComesAfterItsPlugins(t *testing.T) {
	const asked = "net.ipv6.conf.all.disable_ipv6"
	for handler, early := range map[string]string{"": "create-task", world.Pinned: "pins", "shim": "", "vm": ""} {
		t.Run("handler "+handler, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				release := b.Hold("cni-add", "")
				done := make(chan string)
				go func() {
					cfg := config("p1")
					cfg.Linux.Sysctls = map[string]string{asked: "1"}
					id, err := b.RunPodSandbox(t.Context(), cfg, handler)
					if err != nil {
						t.Error(err)
					}
					done <- id
				}()
				time.Sleep(time.Minute)
				for _, op := range []string{"sysctls", "hosts", "create-task", "pins"} {
					if got := b.Calls(op, ""); got > 0 != (op == early) {
						t.Errorf("while the plug-ins work: %s was called %d times", op, got)
					}
				}
				release()
				id := <-done
				if set := b.Sysctls(b.ports.NetNS.PathFor(id))[asked]; (set == "1") != (handler != "vm") {
					t.Errorf("%s is %q", asked, set)
				}
				if s := b.Spec(id); s != nil && (s.Linux.Sysctl[asked] == "1") != (handler == "vm") {
					t.Errorf("the OCI runtime sets %v", s.Linux.Sysctl)
				}
				if !strings.Contains(b.Hosts(id), "\n10.0.0.2\th\n") {
					t.Errorf("hosts: %q", b.Hosts(id))
				}
			})
		})
	}
}

// Whichever step fails, everything that was made is undone.
func TestACreationThatFailsLeavesNothing(t *testing.T) {
	for _, op := range []string{"netns", "cni-add", "sysctls", "hosts", "create-sandbox", "create-container", "create-task", "start-task"} {
		t.Run(op, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				lift := b.Refuse(op, "", errors.New("it fails"))
				if _, err := b.RunPodSandbox(t.Context(), config("p1"), ""); err == nil {
					t.Fatal("it did not")
				}
				b.expectLeft(nil)
				if len(b.Records().Sandboxes) != 0 {
					t.Error("the record is left")
				}
				lift()
				b.pod("p1", "") // the name is free
			})
		})
	}
}
