// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"berth/tools/doctor"
	"berth/tools/drill"
)

func examined() doctor.Report {
	return doctor.Report{
		Service: "berth answers",
		Answers: []doctor.Answer{
			{Check: "kernel", Question: "Is it new?"},
			{Check: "unit", Question: "Does it hold?", Nothing: "there is no unit"},
			{Check: "swap", Findings: []doctor.Finding{{Severity: doctor.Warning, What: "swap is on", Do: "swapoff"}}},
			{Check: "clock", NotAsked: "not permitted\nat all"},
			{Check: "ports", Findings: []doctor.Finding{{Severity: doctor.Error, What: "taken", Do: "free it"}}},
		},
	}
}

func table(f func(w *tabwriter.Writer)) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	f(w)
	_ = w.Flush()
	return b.String()
}

func TestDoctorWritesTheWorstFirst(t *testing.T) {
	out := table(func(w *tabwriter.Writer) { writeReport(w, examined(), false) })
	e, w, n := strings.Index(out, "ERROR"), strings.Index(out, "WARNING"), strings.Index(out, "NOT ASKED")
	if e < 0 || w < e || n < w {
		t.Errorf("got\n%s", out)
	}
	says(t, "doctor", out, "Do: free it", "Do: swapoff", "not permitted; at all",
		"1 of 5 checks found nothing wrong, 1 had nothing to look at; 1 error, 1 warning, 0 notes, 1 not asked")
	if strings.Contains(out, "Is it new?") || strings.Contains(out, "there is no unit") {
		t.Errorf("what is well is listed without -v:\n%s", out)
	}
	says(t, "doctor -v", table(func(w *tabwriter.Writer) { writeReport(w, examined(), true) }), "ok ", "Is it new?", "there is no unit")
}

// A script sees an error by the code, and does not take what could not be asked for well.
func TestDoctorExitsWithWhatItFound(t *testing.T) {
	r := examined()
	if err := reportError(r); ExitCode(err) != 3 {
		t.Errorf("an error: %v", err)
	}
	r.Answers = r.Answers[:4]
	if err := reportError(r); err == nil || ExitCode(err) != 1 {
		t.Errorf("something could not be asked: %v", err)
	}
	r.Answers = r.Answers[:3]
	if err := reportError(r); err != nil {
		t.Errorf("a warning: %v", err)
	}
}

func TestADrillIsATable(t *testing.T) {
	r := drill.Result{Took: 4 * time.Second, Steps: []drill.Step{
		{Name: "it is killed", State: "EXITED", Code: 137, Reason: "Error", AfterFault: 2 * time.Millisecond, AfterEnd: time.Millisecond, Removed: time.Second},
		{Name: "it hangs", NotTried: "there is no shim"},
		{Name: "it ends", State: "EXITED", Code: 0, Reason: "Completed", Wrong: "it ended with 0"},
	}}
	out := table(func(w *tabwriter.Writer) { writeDrill(w, r) })
	says(t, "the drill", out, "137", "2ms", "yes", "not tried", "NO", "it hangs: there is no shim", "it ends: it ended with 0", "nothing is left of it")
	if err := drillError(r); ExitCode(err) != 3 || !strings.Contains(err.Error(), "1 step did not go as berth promises") {
		t.Errorf("got %v", err)
	}
	if r.Steps = r.Steps[:2]; drillError(r) != nil {
		t.Errorf("what was not tried is no failure: %v", drillError(r))
	}
	if r.Interrupted = true; ExitCode(drillError(r)) != exitInterrupted {
		t.Errorf("interrupted: %v", drillError(r))
	}
	r.Left = []string{"the pod x, which berth rm -f x removes"}
	if err := drillError(r); ExitCode(err) != 3 || !strings.Contains(err.Error(), "berth rm -f x") {
		t.Errorf("left behind: %v", err)
	}
	if out := table(func(w *tabwriter.Writer) { writeDrill(w, r) }); strings.Contains(out, "nothing is left") {
		t.Errorf("something is left, and the table says\n%s", out)
	}
}

// Another runtime is not broken by a drill for berth.
func TestADrillRefusesAnotherRuntime(t *testing.T) {
	f := services()
	f.runtime = "cri-o"
	_, err := run(serveFake(t, f), "doctor", "--drill")
	if err == nil || !strings.Contains(err.Error(), "cri-o") && !strings.Contains(err.Error(), "as root") || len(f.calls) > 0 {
		t.Errorf("got %v, and the calls %v", err, f.calls)
	}
}

func TestFlagsOfADrillAloneAreRefused(t *testing.T) {
	_, err := run(serveFake(t, services()), "doctor", "--restart-berth")
	if err == nil || !strings.Contains(err.Error(), "--drill") {
		t.Errorf("got %v", err)
	}
}
