// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/command"
	"berth/test/node"
)

// slow has systemd wait before it starts berth again, so that what a test does meanwhile, which
// takes some seconds in an emulated machine, is done before berth is back.
const slow = "[Service]\nRestartSec=20\n"

// The unit is active once CRI is served and not before, so that nothing that is ordered after it
// finds berth missing. Its log is in the journal.
func TestTheUnitIsActiveWhenCRIIsServed(t *testing.T) {
	h := start(t, "", "")
	h.systemctl("stop", "berth")
	h.systemctl("enable", "--now", "berth")
	status := func() string {
		out, _ := command.New(t, "/usr/local/bin/berth", "status").CombinedOutput() // it ends with 3 if berth is not ready
		return string(out)
	}
	if out := status(); !strings.Contains(out, "RuntimeReady") {
		t.Errorf("CRI is not served: berth status: %s", out)
	}
	h.until("containerd has answered", func() bool { return strings.Contains(status(), "RuntimeReady  true") })
	for name, want := range map[string]string{
		"Type":                   "notify",
		"ActiveState":            "active",
		"SubState":               "running",
		"UnitFileState":          "enabled",
		"Result":                 "success",
		"NRestarts":              "0",
		"FileDescriptorStoreMax": "4096",
	} {
		if got := h.property("berth", name); got != want {
			t.Errorf("%s of berth.service is %q, not %q", name, got, want)
		}
	}
	h.logged("berth is ready on " + socket)
	h.stored(1) // the CRI socket
	h.systemctl("disable", "berth")
}

// berth's records are in the journal with fields, by which the exit of a container is found, also
// by a berth that was started after the container. The text is the same as before. A kernel that
// does not report codes may have had the exit settled before its shim said it: then a correction
// follows.
func TestTheJournalFindsAnExitByItsContainer(t *testing.T) {
	h := start(t, "", "")
	_, id := h.Sh("exit 42")
	node.ExpectExit(t, h.measured(id), 42, "Error")
	_, ends := h.waits()
	pid := h.Pid(ends)
	h.systemctl("restart", "berth")
	h.end(pid, syscall.SIGTERM)
	h.measured(ends)
	for _, id := range []string{id, ends} {
		var found []map[string]any
		h.until("the exit of "+id+" is in the journal", func() bool {
			found = nil
			for line := range strings.Lines(h.run("journalctl", "--no-pager", "-o", "json", "ID="+id, "EVENT=ExitSettled", "EVENT=ExitCorrected")) {
				var m map[string]any
				if err := json.Unmarshal([]byte(line), &m); err != nil {
					t.Fatalf("%v: %s", err, line)
				}
				found = append(found, m)
			}
			return len(found) > 0 && found[len(found)-1]["CODE"] == "42"
		})
		last := found[len(found)-1]
		for name, want := range map[string]string{"CONTAINER": "c", "NAMESPACE": "default", "REASON": "Error", "CODE": "42", "PRIORITY": "6", "SYSLOG_IDENTIFIER": "berth"} {
			if last[name] != want {
				t.Errorf("%s is %v, want %s, in %v", name, last[name], want, last)
			}
		}
		if text, _ := found[0]["MESSAGE"].(string); !strings.Contains(text, `msg="exit settled" id=`+id) || len(found) > 2 {
			t.Errorf("%d records, of which the first is %q", len(found), text)
		}
	}
}

// Pods go on while systemd restarts berth, and after kill -9 of it. Calls made meanwhile wait, and
// the code of what ended meanwhile is exact. systemd keeps a descriptor for each process.
//
// PROPERTIES 4 and 5.
func TestPodsOutliveRestartsAndKills(t *testing.T) {
	h := start(t, paused, slow)
	_, runs := h.Sh("sleep 10000")
	runsPid := h.Pid(runs)
	for _, name := range []string{"restart", "kill -9"} {
		pod, ends := h.waits()
		pid, before := h.Pid(ends), h.number("berth", "MainPID")
		h.stored(5) // the CRI socket, two sandboxes and two containers
		down, calls := make(chan struct{}), sync.WaitGroup{}
		calls.Go(func() {
			<-down
			if err := h.call(); err != nil {
				t.Errorf("a call made after %s: %v", name, err)
			}
		})
		if name == "restart" {
			// A container ends at some instant of the restart; calls are made all the time.
			stop := make(chan struct{})
			calls.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := h.call(); err != nil {
						t.Errorf("a call made during a restart: %v", err)
					}
				}
			})
			close(down)
			restarted := make(chan struct{})
			go func() { defer close(restarted); h.systemctl("restart", "berth") }()
			h.end(pid, syscall.SIGTERM)
			<-restarted
			close(stop)
		} else {
			if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			h.until("systemd has noticed", func() bool { return h.property("berth", "SubState") == "auto-restart" })
			close(down)
			h.stored(5)
			h.end(pid, syscall.SIGTERM)
			if state := h.property("berth", "SubState"); state != "auto-restart" {
				t.Errorf("berth was to be away, and its unit is %s", state)
			}
		}
		calls.Wait()
		if h.number("berth", "MainPID") == before {
			t.Errorf("%s: it is the same berth", name)
		}
		node.ExpectExit(t, h.measured(ends), 42, "Error")
		h.expectRunning(runs, runsPid)
		h.stored(4)
		if _, err := h.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
			t.Fatal(err)
		}
		h.stored(3)
	}
}

// PROPERTIES 76: a signal to every process of the unit ended every pod, by way of its shim. Shims
// leave the unit's group, also one that an older berth has left there.
func TestASignalToTheWholeUnitEndsNoPod(t *testing.T) {
	h := start(t, paused, "")
	_, id := h.waits()
	pid := h.Pid(id)
	shim := h.parent(pid)
	apart := func() bool { return h.group(shim) != h.group(h.number("berth", "MainPID")) }
	h.until("the shim has left the unit", apart)
	procs := h.group(h.number("berth", "MainPID")) + "/cgroup.procs"
	if err := os.WriteFile(procs, []byte(strconv.Itoa(shim)), 0); err != nil || apart() {
		t.Fatalf("%v, or the shim is not in the unit", err)
	}
	h.systemctl("restart", "berth")
	h.until("the next berth has moved the shim", apart)
	before := h.number("berth", "MainPID")
	h.systemctl("kill", "-s", "KILL", "berth")
	h.until("another berth is active", func() bool {
		return h.property("berth", "ActiveState") == "active" && h.number("berth", "MainPID") != before
	})
	if err := h.call(); err != nil {
		t.Fatal(err)
	}
	h.expectRunning(id, pid)
	if !lives(shim) {
		t.Error("the shim was killed with the unit")
	}
	h.end(pid, syscall.SIGTERM)
	node.ExpectExit(t, h.measured(id), 42, "Error")
}

// A stop of the unit leaves pods running, and the next start finds them. The shim has the code of
// what ended meanwhile, and a stopped unit has no descriptors.
func TestAStopLeavesPodsRunning(t *testing.T) {
	h := start(t, paused, "")
	pod, runs := h.Sh("sleep 10000")
	_, ends := h.waits()
	runsPid, endsPid := h.Pid(runs), h.Pid(ends)
	h.systemctl("stop", "berth")
	if state := h.property("berth", "ActiveState") + " " + h.property("berth", "Result"); state != "inactive success" {
		t.Errorf("the stopped unit is %s", state)
	}
	h.end(endsPid, syscall.SIGTERM)
	if !lives(runsPid) {
		t.Error("a container was ended with the unit")
	}
	h.systemctl("start", "berth")
	node.ExpectExit(t, h.measured(ends), 42, "Error")
	h.expectRunning(runs, runsPid)
	if st, err := h.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod}); err != nil || st.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
		t.Errorf("%v %v", st, err)
	}
	h.stored(4)
}

// PROPERTIES 68: systemd is shutting the machine down. berth, which it ends before the containers,
// ends them itself, and their codes are on record. Here a program stands for systemctl that answers
// as it does then: the machine has other tests to run.
func TestAShutdownOfTheMachineHasTheCodesOfItsContainers(t *testing.T) {
	const bin = "/run/berth-test"
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(bin) })
	if err := os.WriteFile(bin+"/systemctl", []byte("#!/bin/sh\necho stopping\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	h := start(t, "", "[Service]\nEnvironment=PATH="+bin+":/usr/local/libexec/berth:/usr/sbin:/usr/bin:/sbin:/bin\n")
	_, id := h.waits()
	h.systemctl("stop", "berth")
	if state := h.property("berth", "ActiveState") + " " + h.property("berth", "Result"); state != "inactive success" {
		t.Errorf("the stopped unit is %s", state)
	}
	if err := os.Remove(bin + "/systemctl"); err != nil {
		t.Fatal(err)
	}
	h.systemctl("start", "berth")
	node.ExpectExit(t, h.measured(id), 42, "Error")
	if text := h.run("berth", "why", id); !strings.Contains(text, "The machine was shut down") {
		t.Errorf("why: %s", text)
	}
}

// PROPERTIES 5: berth and the shim are both killed, and the container ends with 42 while berth is
// away. systemd, as process 1, reaps it. A kernel from 6.15 on tells the next berth the code by the
// descriptor that systemd kept. An older one tells that the process ended, and the code is unknown,
// not made up.
func TestACodeThatNobodyMeasuredIsUnknown(t *testing.T) {
	h := start(t, paused, slow)
	_, id := h.waits()
	pid := h.Pid(id)
	shim := h.parent(pid)
	h.stored(3)
	exact := h.Exact()
	if err := syscall.Kill(h.number("berth", "MainPID"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.until("systemd has noticed", func() bool { return h.property("berth", "SubState") == "auto-restart" })
	h.end(shim, syscall.SIGKILL)
	h.end(pid, syscall.SIGTERM)
	if err := h.call(); err != nil {
		t.Fatal(err)
	}
	if exact {
		node.ExpectExit(t, h.Ended(id), 42, "Error")
	} else {
		node.ExpectExit(t, h.Ended(id), 255, "Unknown")
	}
}

// With berth.socket, the first call starts berth, a call that is made while berth is stopped starts
// it again, and no call fails while it is restarted.
func TestTheSocketUnitStartsBerth(t *testing.T) {
	h := start(t, paused, "")
	_, runs := h.Sh("sleep 10000")
	pid := h.Pid(runs)
	h.systemctl("stop", "berth")
	h.systemctl("enable", "--now", "berth.socket")
	if state := h.property("berth", "ActiveState"); state != "inactive" {
		t.Errorf("berth is %s before anybody called", state)
	}
	for _, away := range []func(){
		func() {},
		func() { h.systemctl("stop", "berth.service") },
		func() { h.end(h.number("berth", "MainPID"), syscall.SIGKILL) },
	} {
		away()
		if err := h.call(); err != nil {
			t.Errorf("the call that starts berth: %v", err)
		}
		h.until("berth is active", func() bool { return h.property("berth", "ActiveState") == "active" })
		h.expectRunning(runs, pid)
	}
	h.stored(2)
	h.systemctl("disable", "--now", "berth.socket")
	h.systemctl("restart", "berth.service") // which opens the socket itself again
	h.expectRunning(runs, pid)
}

// A berth that cannot start is started again until it can: a node is of no use without it.
func TestBerthIsStartedUntilItCan(t *testing.T) {
	h := start(t, "", "")
	h.systemctl("stop", "berth")
	h.configure("no_such_setting = 1\n")
	began := time.Now()
	h.systemctl("--no-block", "start", "berth")
	h.until("it was started seven times", func() bool { return h.number("berth", "NRestarts") >= 6 })
	t.Logf("seven starts took %s", time.Since(began))
	h.logged("no_such_setting")
	h.configure("")
	h.until("berth is active", func() bool { return h.property("berth", "ActiveState") == "active" })
	if err := h.call(); err != nil {
		t.Error(err)
	}
}
