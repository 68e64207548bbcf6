// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const suite = `[{"SuiteSucceeded": %v, "SpecReports": [
{"LeafNodeType": "BeforeSuite", "State": "passed"},
{"LeafNodeType": "It", "LeafNodeText": "runs", "ContainerHierarchyTexts": ["[k8s.io] Pod"], "State": "passed"},
{"LeafNodeType": "It", "LeafNodeText": "is not selected", "State": "skipped"},
{"LeafNodeType": "It", "LeafNodeText": "needs AppArmor", "State": "skipped", "Failure": {"Message": "AppArmor is off\nat line 1"}},
{"LeafNodeType": "It", "LeafNodeText": "hangs", "ContainerHierarchyTexts": ["[k8s.io] Pod"], "State": "timedout", "Failure": {"Message": "late"}},
{"LeafNodeType": "It", "LeafNodeText": "waits", "State": "pending"}]}]`

// A check that was skipped is not passed, one that did not end has failed, and each is counted
// once.
func TestWhatWasSkippedIsNotPassed(t *testing.T) {
	c, err := count([]byte(strings.Replace(suite, "%v", "false", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if c.Passed != 1 || c.Failed != 1 || c.Skipped != 2 || c.Unselected != 1 || c.Reasons["AppArmor is off"] != 1 || c.Reasons["pending"] != 1 {
		t.Errorf("got %+v", c)
	}
	if len(c.Failures) != 1 || c.Failures[0] != "[k8s.io] Pod hangs" {
		t.Errorf("failed: %q", c.Failures)
	}
	for what, report := range map[string]string{
		"nothing ran":      `[{"SuiteSucceeded": true, "SpecReports": [{"LeafNodeType": "It", "State": "skipped"}]}]`,
		"it is cut off":    suite[:len(suite)/2],
		"it is empty":      "",
		"the suite failed": `[{"SuiteSucceeded": false, "SpecReports": [{"LeafNodeType": "It", "State": "passed"}]}]`,
	} {
		if c, err := count([]byte(report)); err == nil {
			t.Errorf("%s, and it counts as %+v", what, c)
		}
	}
}

// What was not run is said so, and has no counts.
func TestThePageSaysWhatWasNotRun(t *testing.T) {
	p := Page{
		Made: time.Unix(0, 0),
		Results: []Result{
			{Runtime: "berth", Version: "1", Counts: Counts{Passed: 7, Failed: 1, Skipped: 2, Failures: []string{"x"}, Reasons: map[string]int{"no AppArmor": 2}}},
			{Runtime: "CRI-O", NotRun: "crio is not in PATH"},
		},
		Promises: Promises{Count: 1, Tests: map[int]int{3: 2}},
	}
	var b strings.Builder
	if err := p.write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"on 1970-01-01", "| berth | 1 | 7 | 1 | 2 | 0 |", "- failed: x\n", "- skipped, 2: no AppArmor\n",
		"| CRI-O |  | **not run** | | | | crio is not in PATH |", "not in PATH)", "| 3 | 2 |", "**Not run**: there is no result of `make soak`",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page does not say %q:\n%s", want, b.String())
		}
	}
}

// The section that is written by hand outlives the next run.
func TestThePageKeepsWhatIsWrittenByHand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	for _, suite := range []string{"**Not run.**", "A table.\n\n### Failures\n\n- one"} {
		var b strings.Builder
		if err := (Page{Suite: suite, Soak: "0 lost"}).write(&b); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := kept(file); got != suite || err != nil {
			t.Errorf("%q became %q, %v", suite, got, err)
		}
	}
	if got, err := kept(file + "-none"); got != "**Not run.**" || err != nil {
		t.Errorf("without a page: %q, %v", got, err)
	}
}

// The counts come from the documents as they are, so a new form of theirs is noticed.
func TestTheDocumentsCanBeCounted(t *testing.T) {
	f, err := fields("../..")
	if err != nil || f.Honoured < 100 || f.Refused == 0 || f.NoEffect == 0 {
		t.Errorf("got %+v, %v", f, err)
	}
	p, err := promises("../..")
	if err != nil || p.Count < 40 {
		t.Errorf("got %+v, %v", p, err)
	}
	for n, tests := range p.Tests {
		if tests == 0 {
			t.Errorf("promise %d has no test", n)
		}
	}
}

func TestTheLastSoakIsFoundInWhatItPrinted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "soak.log")
	if got, err := soak(file); got != "" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	text := "=== RUN   TestA\n    soak_test.go:3: figures:\n        kills  100\n        lost   0\n    x_test.go:1: other\n--- PASS: TestA (3.00s)\nPASS\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := soak(file); got != "kills  100\nlost   0\n--- PASS: TestA (3.00s)" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if err := os.WriteFile(file, []byte("=== RUN   TestA\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := soak(file); err == nil {
		t.Errorf("a soak that was cut off is %q", got)
	}
}

// What was run in the guest is taken with its kernel and its day, and nothing else is.
func TestAResultIsTakenFromTheGuest(t *testing.T) {
	file := filepath.Join(t.TempDir(), guestFile)
	day := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	if r, err := saved(file, day); err != nil || r.NotRun == "" {
		t.Errorf("without a file: %+v, %v", r, err)
	}
	ran := Result{Runtime: "berth, containerd inside", Version: "1", Counts: Counts{Passed: 7, Reasons: map[string]int{"x": 1}}}
	p := Page{Made: day, Kernel: "6.1.0", Cores: 2, Results: []Result{ran, {Runtime: "CRI-O", NotRun: "no"}}}
	if err := p.save(file); err != nil {
		t.Fatal(err)
	}
	r, err := saved(file, day)
	if err != nil || r.Passed != 7 || r.Reasons["x"] != 1 || !strings.Contains(r.Runtime, "guest: Linux 6.1.0, 2 cores, emulated, 2026-11-24") {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, err := saved(file, day.AddDate(0, 0, -1)); err == nil {
		t.Error("a result of the future is taken")
	}
	p.Results = append(p.Results, ran)
	if err := p.save(file); err == nil {
		t.Error("two results are saved as one")
	}
	for _, text := range []string{"", "{}", "{"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := saved(file, day); err == nil {
			t.Errorf("%q is %+v", text, r)
		}
	}
}

// What names another runtime is read in full, or is an error.
func TestAnotherRuntimeIsNamedWithItsSockets(t *testing.T) {
	for text, want := range map[string]other{
		"cri-o=/run/c.sock":             {"cri-o", "/run/c.sock", ""},
		"cri-o=/run/c.sock,/run/n.sock": {"cri-o", "/run/c.sock", "/run/n.sock"},
	} {
		if got, err := parseOther(text); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "/run/c.sock", "=/run/c.sock", "cri-o=c.sock", "cri-o=/run/c.sock,", "cri-o=/run/c.sock,n.sock"} {
		if got, err := parseOther(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}
