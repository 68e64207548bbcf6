// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// reboots gives a container the capability to call reboot(2).
func reboots(cfg *runtimeapi.ContainerConfig) *runtimeapi.ContainerConfig {
	cfg.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_BOOT"}}
	return cfg
}

// PROPERTIES 49: what a reboot leaves of the first thread is settled with what the shim says, if the
// container can be rebooted. Everything else is settled at once.
func TestAContestedCodeWaitsForTheShim(t *testing.T) {
	const after = 400 * time.Millisecond // the shim learns of it
	for _, tc := range []struct {
		name        string
		reboots     bool
		joined      bool // by a container that may reboot it
		first, code uint32
		waits       bool
	}{
		{name: "it called reboot", reboots: true, first: 0, code: 129, waits: true},
		{name: "another process called reboot", reboots: true, first: 137, code: 130, waits: true},
		{name: "it may reboot, and exits with 0", reboots: true, first: 0, code: 0, waits: true},
		{name: "it may reboot, and exits otherwise", reboots: true, first: 42, code: 42},
		{name: "it may not reboot, and exits with 0", first: 0, code: 0},
		{name: "it may not reboot, and is killed", first: 137, code: 137},
		{name: "it may not reboot, and is rebooted from outside", first: 137, code: 129},
		{name: "one that joins its namespace may reboot it", joined: true, first: 137, code: 129, waits: true},
		{name: "another thread ends it", first: 3, code: 9},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				b.ShimDelay = after
				p := b.pod("p1", "")
				cfg := ctr("c1")
				if tc.reboots {
					reboots(cfg)
				}
				c := b.create(p, cfg)
				if err := b.StartContainer(t.Context(), c); err != nil {
					t.Fatal(err)
				}
				if tc.joined {
					joins := reboots(ctr("c2"))
					o := joins.GetLinux().GetSecurityContext().GetNamespaceOptions()
					o.Pid, o.TargetId = runtimeapi.NamespaceMode_TARGET, c
					b.create(p, joins)
				}
				began := time.Now()
				if !b.ExitApart(c, tc.code, tc.first) {
					t.Fatal("it does not run")
				}
				<-b.Unit(c).Settled()
				if waited := time.Since(began) > 0; waited != tc.waits {
					t.Errorf("settled after %v", time.Since(began))
				}
				reason := map[bool]string{true: "Completed", false: "Error"}
				if now := tc.first; !tc.waits {
					b.expect(c, exited, int32(now), reason[now == 0])
				} else {
					b.expect(c, exited, int32(tc.code), reason[tc.code == 0])
				}
				time.Sleep(time.Second)
				b.expect(c, exited, int32(tc.code), reason[tc.code == 0])
			})
		})
	}
}

// PROPERTIES 49: a shim that hangs holds up a contested code by its bound, and no longer.
func TestAContestedCodeWaitsForAShimThatHangsByItsBoundOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.ShimDelay = time.Minute
		c := b.create(b.pod("p1", ""), reboots(ctr("c1")))
		if err := b.StartContainer(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		b.ExitApart(c, 129, 0)
		<-b.Unit(c).Settled()
		if d := time.Since(began); d != 1500*time.Millisecond {
			t.Errorf("settled after %v", d)
		}
		b.expect(c, exited, 0, "Completed")
		time.Sleep(2 * time.Minute)
		b.expect(c, exited, 129, "Error")
	})
}

// PROPERTIES 49: the shim's event is lost. What the shim answers when the task is released is the last
// that can be learned of the code.
func TestTheLastAnswerOfAShimCorrectsTheFirstThreadsCode(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		b.Swallow(1, 0)
		b.ExitApart(c, 9, 0)
		time.Sleep(time.Minute)
		b.expect(c, exited, 9, "Error")
	})
}

// PROPERTIES 49: berth is killed after a code of the first thread was settled, and the next one learns
// the process's from the shim.
func TestTheNextBerthCorrectsTheFirstThreadsCode(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.ShimDelay = time.Minute
		c := b.run(b.pod("p1", ""), "c1")
		b.ExitApart(c, 9, 0)
		<-b.Unit(c).Settled()
		b.expect(c, exited, 0, "Completed")
		records := b.kill()
		time.Sleep(2 * time.Minute)
		b = restart(t, b.World, records)
		time.Sleep(time.Minute)
		b.expect(c, exited, 9, "Error")
	})
}
