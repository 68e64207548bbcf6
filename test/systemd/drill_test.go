// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/test/command"
	"berth/test/node"
	"berth/tools/doctor"
	"berth/tools/drill"
)

// A drill that may restart berth does so, and a bystander lives on. Where systemd makes the cgroups,
// no slice is left.
func TestADrillRestartsBerth(t *testing.T) {
	for _, by := range node.Pick(t, "maker of cgroups", "cgroupfs", "systemd") {
		t.Run(by, func(t *testing.T) {
			h := start(t, map[string]string{"systemd": driver}[by], "")
			_, runs := h.Sh("sleep 10000")
			pid, before := h.Pid(runs), h.number("berth", "MainPID")
			out, err := command.Within(t, 20*time.Minute, "/usr/local/bin/berth", "doctor", "--drill", "--restart-berth",
				"--step", "its process is killed", "--within", "6m", "-o", "json").Output()
			var r drill.Result
			if jerr := json.Unmarshal(out, &r); jerr != nil {
				t.Fatalf("%v, %v: %s", err, jerr, out)
			}
			if len(r.Steps) != 2 {
				t.Fatalf("%d steps: %s", len(r.Steps), out)
			}
			last := r.Steps[1]
			if last.NotTried != "" || !strings.Contains(last.Note, "berth served again after") || h.number("berth", "MainPID") == before {
				t.Errorf("berth was not restarted: %+v", last)
			}
			for _, s := range r.Steps { // an emulated machine may be slow: no time is looked at
				t.Logf("%+v", s)
				// Without a code from the kernel it is the shim's, if that is asked in time.
				known := s.Code == 137 || !h.Exact() && s.Code == 255 && s.Reason == "Unknown"
				if s.NotTried != "" || s.State != "EXITED" || !known {
					t.Errorf("%+v", s)
				}
			}
			if len(r.Left) > 0 {
				t.Errorf("left: %q", r.Left)
			}
			h.expectRunning(runs, pid)
			for _, pattern := range []string{"/sys/fs/cgroup/berthdrill*", "/tmp/berthdrill*"} {
				if left, _ := filepath.Glob(pattern); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			}
		})
	}
}

// The unit that is installed, and the machine that it is tested on, have no errors.
func TestDoctorFindsNoErrorInTheUnit(t *testing.T) {
	h := start(t, "", "")
	out, err := command.Within(t, 20*time.Minute, "/usr/local/bin/berth", "doctor", "-o", "json").Output()
	var r doctor.Report
	if jerr := json.Unmarshal(out, &r); jerr != nil {
		t.Fatalf("%v, %v: %s", err, jerr, out)
	}
	t.Logf("%s", h.run("sh", "-c", "/usr/local/bin/berth doctor -v; true"))
	for _, a := range r.Answers {
		if a.Check == "unit" && (len(a.Findings) > 0 || a.NotAsked != "" || a.Nothing != "") {
			t.Errorf("%+v", a)
		}
	}
}
