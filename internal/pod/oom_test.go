// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
)

// podInSlice runs a pod whose containers are in systemd's scopes, in a slice of the pod.
func podInSlice(t *testing.T, b *bubble) string {
	t.Helper()
	cfg := config("p1")
	cfg.Linux.CgroupParent = "/kubepods.slice/kubepods-pod1.slice"
	id, err := b.RunPodSandbox(t.Context(), cfg, "scopes")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// oomIn has the OOM killer fire in a container, which the groups above count as well.
func (w *world) oomIn(id string) {
	group := w.cgroupOf(id)
	w.set(func() { w.oom[group]++; w.oom[filepath.Dir(group)]++ })
}

// vanish takes the group of a container away, as systemd does once a scope is empty.
func (w *world) vanish(id string) {
	group := w.cgroupOf(id)
	w.set(func() { w.fail["oom "+group] = errdefs.ErrNotFound })
}

// PROPERTIES 10: systemd removes the group of a scope before anybody read its counter, and the shim
// has not read it either. The pod's group counted, and what other containers of the pod counted is
// not taken for this one's.
func TestAnOOMKillInAScopeThatVanishedIsThePodsToTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := podInSlice(t, b)
		earlier, child := b.run(p, "earlier"), b.run(p, "child")
		w.oomIn(earlier) // before the others run
		w.oomIn(child)   // it goes on, since it was not its init
		killed, plain := b.run(p, "killed"), b.run(p, "plain")
		w.oomIn(child)
		w.oomIn(killed)
		end := func(id string) {
			w.vanish(id)
			b.exit(id, 137, true)
			synctest.Wait()
		}
		end(killed)
		end(plain)
		b.expect(killed, exited, 137, "OOMKilled")
		b.expect(plain, exited, 137, "Error")
		end(earlier)
		b.expect(earlier, exited, 137, "OOMKilled")

		again := b.run(p, "again")
		end(again)
		b.expect(again, exited, 137, "Error")
	})
}

// The next berth knows what the pod's group had counted before the container ran.
func TestAnOOMKillInAScopeWhileBerthWasAwayIsThePodsToTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := podInSlice(t, b)
		before := b.run(p, "before")
		w.oomIn(before)
		w.vanish(before)
		b.exit(before, 137, true)
		synctest.Wait()
		killed, plain := b.run(p, "killed"), b.run(p, "plain")
		records := b.records()
		b.stop()
		w.oomIn(killed)
		w.vanish(killed)
		b = startWith(t, w, records)
		b.exit(killed, 137, true)
		synctest.Wait()
		b.expect(before, exited, 137, "OOMKilled")
		b.expect(killed, exited, 137, "OOMKilled")
		w.vanish(plain)
		b.exit(plain, 137, true)
		synctest.Wait()
		b.expect(plain, exited, 137, "Error")
	})
}

// A group that pods share says nothing about one of them, and where the group of a process does not
// vanish nobody asks for another.
func TestASharedGroupIsNotAskedForOOMKills(t *testing.T) {
	for _, handler := range []string{"runc", "scopes"} {
		t.Run(fmt.Sprint("handler ", handler), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				b := start(t, w)
				plain := b.run(b.pod("p1", handler), "plain")
				w.set(func() { w.oom["."]++ })
				w.vanish(plain)
				b.exit(plain, 137, true)
				synctest.Wait()
				b.expect(plain, exited, 137, "Error")
			})
		})
	}
}
