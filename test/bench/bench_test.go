// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/encoding"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestPercentileIsTheSmallestSampleThatCoversTheShare(t *testing.T) {
	var hundred []float64
	for i := range 100 {
		hundred = append(hundred, float64(100-i)) // 100 to 1: the order does not matter
	}
	for _, c := range []struct {
		samples []float64
		p, want float64
	}{
		{hundred, 50, 50}, {hundred, 99, 99}, {hundred, 100, 100}, {hundred, 0, 1},
		{[]float64{7}, 50, 7}, {[]float64{7}, 99, 7},
		{[]float64{1, 2}, 50, 1}, {[]float64{3, 1, 2}, 50, 2}, {[]float64{3, 1, 2}, 99, 3},
	} {
		if got := percentile(c.samples, c.p); got != c.want {
			t.Errorf("percentile %g of %d samples: %g, want %g", c.p, len(c.samples), got, c.want)
		}
	}
	if got := percentile(nil, 50); !math.IsNaN(got) {
		t.Errorf("percentile of nothing: %g, want NaN", got)
	}
	if hundred[0] != 100 {
		t.Error("percentile sorted its caller's samples")
	}
}

// made returns a run in which every sample of berth is b and every sample of containerd is c.
func made(b, c float64) *results {
	r := newResults(full(1))
	r.At = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, m := range metrics(r.Sizes) {
		for range 5 {
			if m.key == cniAlone && !math.IsNaN(c) { // it is berth's alone that is measured
				r.add(m.key, "berth", c-5)
				continue
			}
			r.add(m.key, "berth", b)
			r.add(m.key, "containerd", c)
		}
	}
	return r
}

func TestVerdictsFollowTheSamples(t *testing.T) {
	reached := func(r *results) (list []bool) {
		for _, v := range verdicts(r) {
			list = append(list, v.reached)
		}
		return list
	}
	all := func(list []bool, want bool) bool {
		return !slices.Contains(list, !want)
	}
	if got := reached(made(1, 1000)); !all(got, true) {
		t.Errorf("a thousandth of containerd's everywhere: %v", got)
	}
	if got := reached(made(11, 10)); !all(got, false) {
		t.Errorf("slower than containerd everywhere: %v", got)
	}
	if got := reached(newResults(full(1))); !all(got, false) {
		t.Errorf("what was not measured counts as reached: %v", got)
	}
	// As fast as containerd is enough where no more is asked for, and 5 ms is under 10 ms.
	for _, v := range verdicts(made(5, 5)) {
		if want := strings.Contains(v.threshold, "no slower") || strings.Contains(v.threshold, "no more") || strings.Contains(v.threshold, "5 ms more") || strings.Contains(v.threshold, "under 10 ms"); v.reached != want {
			t.Errorf("%s: reached %t with equal samples", v.threshold, v.reached)
		}
	}
}

func TestTableSaysPlainlyWhatIsNotReached(t *testing.T) {
	if md := markdown(made(1, 1000)); strings.Contains(md, "**not reached**") || !strings.Contains(md, "not reached: 0.") {
		t.Errorf("all thresholds are reached:\n%s", md)
	}
	md := markdown(made(11, 10))
	if got, want := strings.Count(md, "**not reached**"), len(verdicts(made(11, 10))); got != want {
		t.Errorf("%d rows say not reached, want %d:\n%s", got, want, md)
	}
	for _, m := range metrics(full(1)) {
		if !strings.Contains(md, "| "+m.title+" |") {
			t.Errorf("no row for %s", m.title)
		}
	}
	if md := markdown(newResults(full(1))); !strings.Contains(md, "not measured") {
		t.Errorf("a table of nothing:\n%s", md)
	}
	if md := markdown(newResults(quick())); !strings.Contains(md, "A quick run") {
		t.Errorf("a quick run is not called one:\n%s", md)
	}
}

func TestAnExitThatNobodySawIsMoreThanTheBound(t *testing.T) {
	r := made(1, 1)
	r.Samples[stuckOwn]["containerd"] = []float64{r.Bound, r.Bound}
	md := markdown(r)
	if !strings.Contains(md, "> 60 s") || !strings.Contains(md, "< 0.00002") {
		t.Errorf("the bound is written as if it were measured:\n%s", md)
	}
}

func TestEveryValueIsReadable(t *testing.T) {
	for _, c := range []struct {
		v    float64
		unit string
		want string
	}{
		{0.123, "ms", "0.12 ms"}, {12.34, "ms", "12.3 ms"}, {123.4, "ms", "123 ms"}, {1234, "ms", "1.23 s"}, {60000, "ms", "> 60 s"}, {61.23, "MiB", "61.2 MiB"}, {math.NaN(), "ms", "not measured"},
	} {
		if got := value(c.v, c.unit, 60000); got != c.want {
			t.Errorf("%g %s: %q, want %q", c.v, c.unit, got, c.want)
		}
	}
}

func TestPlotsAreWellFormedAndStayInside(t *testing.T) {
	some := made(3, 4000)
	some.Samples[killToExited]["berth"] = []float64{0, 0.0001, 1e6} // off every scale
	for name, r := range map[string]*results{"some": some, "nothing": newResults(full(1)), "one daemon": made(1, math.NaN())} {
		if name == "one daemon" {
			for _, m := range r.Samples {
				delete(m, "containerd")
			}
		}
		pictures := plots(r)
		if len(pictures) != 3 {
			t.Errorf("%s: %d pictures", name, len(pictures))
		}
		for file, svg := range pictures {
			check(t, name+": "+file, svg)
		}
	}
}

// check parses a picture and looks for coordinates outside it.
func check(t *testing.T, name, svg string) {
	t.Helper()
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Errorf("%s has a place that is not a number", name)
	}
	d := xml.NewDecoder(strings.NewReader(svg))
	elements := 0
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if e, ok := tok.(xml.StartElement); ok {
			elements++
			if e.Name.Space != "http://www.w3.org/2000/svg" {
				t.Errorf("%s: element %s is not SVG's", name, e.Name.Local)
			}
			for _, a := range e.Attr {
				if x := a.Value; strings.HasPrefix(x, "-") && (a.Name.Local == "x" || a.Name.Local == "cx" || a.Name.Local == "x1" || a.Name.Local == "width") {
					t.Errorf("%s: %s=%s", name, a.Name.Local, x)
				}
			}
		}
	}
	if elements < 5 {
		t.Errorf("%s has %d elements", name, elements)
	}
}

func TestResultsSurviveTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	r := made(1.23456, 1e-7)
	r.Machine = []property{{"processor", "[1, 2]\n[ 3 ]"}}
	if err := r.write(path); err != nil {
		t.Fatal(err)
	}
	got, err := readResults(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.Machine[0] != r.Machine[0] || !slices.Equal(got.of(restart, "berth"), r.of(restart, "berth")) || markdown(got) != markdown(r) {
		t.Errorf("read back: %+v", got)
	}
	b, _ := os.ReadFile(path)
	if lines := bytes.Count(b, []byte("\n")); lines > 220 {
		t.Errorf("%d lines: samples are not one line each", lines)
	}
}

// A client that does not decode the answer still knows whether it is complete.
func TestItemsOfAnAnswerAreCountedWithoutDecoding(t *testing.T) {
	list := &runtimeapi.ListContainersResponse{}
	for i := range 1500 {
		list.Containers = append(list.Containers, &runtimeapi.Container{Id: strings.Repeat("c", i%200)})
	}
	sent, err := encoding.GetCodecV2("proto").Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	var r received
	if err := (undecoded{}).Unmarshal(sent, &r); err != nil {
		t.Fatal(err)
	}
	if got, err := r.items(); got != 1500 || err != nil {
		t.Errorf("%d items, %v; want 1500", got, err)
	}
	if _, err := r[:len(r)-1].items(); err == nil {
		t.Error("half an item counts as one")
	}
	if got, err := received(nil).items(); got != 0 || err != nil {
		t.Errorf("an empty answer: %d items, %v", got, err)
	}
}

func TestProcessorTimeOfAProcessGrows(t *testing.T) {
	before, err := processorTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for after := before; after == before; {
		if after, err = processorTime(os.Getpid()); err != nil || after < before {
			t.Fatalf("from %s to %s: %v", before, after, err)
		}
	}
	if _, err := processorTime(1 << 22); err == nil { // PID_MAX_LIMIT: the kernel gives no process this ID
		t.Error("a process that does not exist has used processor time")
	}
}

// -plot reports a run in the same way as the run itself, and a missed threshold is an error only
// with -strict.
func TestPlotNotesAndStrict(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "NOTES.md"), []byte("Why so.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := report(dir, made(11, 10), true); err != nil {
		t.Fatal(err)
	}
	if err := command(context.Background(), []string{"-plot", "-out", dir}, io.Discard, io.Discard); err != nil {
		t.Error(err)
	}
	if err := command(context.Background(), []string{"-plot", "-strict", "-out", dir}, io.Discard, io.Discard); !errors.Is(err, errMissed) {
		t.Errorf("-strict with missed thresholds: %v", err)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "RESULTS.md")); !strings.HasSuffix(string(b), "## Notes\n\nWhy so.\n") {
		t.Errorf("the notes are not in the results:\n%s", b)
	}
	for _, f := range []string{"RESULTS.md", "exits.svg", "operations.svg", "memory.svg"} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			t.Error(err)
		}
	}
}
