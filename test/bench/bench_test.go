// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"encoding/xml"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/encoding"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/config"
)

// The lines are those of golang.org/design/14313-benchmark-format, which benchstat reads.
func TestMeasurementsAreLinesOfTheBenchmarkFormat(t *testing.T) {
	var b strings.Builder
	rec := record{&lines{to: &b}, "/daemon=berth"}
	rec.line("ListContainers/containers=200", 1500*time.Microsecond, "ns/op", 2*time.Second, "cpu-ns/op")
	rec.line("AtRest", 0.84, "%core")
	rec.line("Memory/pods=50", 60<<20, "pss-B")
	if err := rec.time("Pull", func() error { return errors.New("no") }); err == nil || !strings.Contains(err.Error(), "Pull") {
		t.Errorf("the error of a call: %v", err)
	}
	want := "BenchmarkListContainers/containers=200/daemon=berth 1 1500000 ns/op 2000000000 cpu-ns/op\n" +
		"BenchmarkAtRest/daemon=berth 1 0.84 %core\n" +
		"BenchmarkMemory/pods=50/daemon=berth 1 62914560 pss-B\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	if got := samples("goos: linux\n# x\n"+b.String(), "ns/op", 1e6); len(got) != 1 || !slices.Equal(got["ListContainers/containers=200"]["berth"], []float64{1.5}) {
		t.Errorf("read back: %v", got)
	}
}

func TestPercentileIsTheSmallestSampleThatCoversTheShare(t *testing.T) {
	var hundred []float64
	for i := range 100 {
		hundred = append(hundred, float64(i+1))
	}
	for p, want := range map[float64]float64{50: 50, 99: 99, 100: 100, 0: 1} {
		if got := percentile(hundred, p); got != want {
			t.Errorf("percentile %g: %g, want %g", p, got, want)
		}
	}
	if got := percentile([]float64{1, 2, 3}, 99); got != 3 {
		t.Errorf("99th percentile of three: %g", got)
	}
}

func TestPicturesAreWellFormedAndStayInside(t *testing.T) {
	for name, results := range map[string]string{
		"nothing": "",
		"off every scale": `
BenchmarkKillToExited/daemon=berth 1 0 ns/op
BenchmarkKillToExited/daemon=berth 1 100 ns/op
BenchmarkKillToExited/daemon=crio 1 1000000000000 ns/op
BenchmarkKillToExitedDeleteHangs/own/daemon=containerd 1 60000000000 ns/op
BenchmarkMakePod/pods=0/daemon=berth 1 0 ns/op
BenchmarkAtRest/pods=50/daemon=berth 1 0 %core
BenchmarkMemory/pods=50/daemon=crio 1 1 pss-B 1 rss-B
BenchmarkMemory/shims/pods=50/daemon=crio 1 1000000000000 pss-B
`,
	} {
		for _, c := range pictures {
			svg := c.draw(results)
			if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
				t.Errorf("%s of %s:\n%s", c.name, name, svg)
			}
			d := xml.NewDecoder(strings.NewReader(svg))
			for {
				tok, err := d.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatalf("%s of %s: %v", c.name, name, err)
				}
				if e, ok := tok.(xml.StartElement); ok {
					for _, a := range e.Attr {
						if strings.HasPrefix(a.Value, "-") && a.Name.Local != "class" {
							t.Errorf("%s of %s: %s=%s", c.name, name, a.Name.Local, a.Value)
						}
					}
				}
			}
		}
	}
}

// What is drawn over the number of pods is the sum of the medians of what is named, where all of it was
// measured.
func TestAFigureOfANodeThatFills(t *testing.T) {
	l := panel{names: []string{"Memory", "Memory/shims"}, unit: "pss-B"}
	got := l.figures(`
BenchmarkMemory/pods=50/daemon=berth 1 10 pss-B 99 rss-B
BenchmarkMemory/pods=500/daemon=berth 1 40 pss-B
BenchmarkMemory/shims/pods=500/daemon=berth 1 100 pss-B
BenchmarkMemory/shims/pods=500/daemon=berth 1 200 pss-B
BenchmarkMemory/shims/pods=500/daemon=berth 1 900 pss-B
BenchmarkMemoryOfAnother/pods=500/daemon=berth 1 7 pss-B
BenchmarkMemory/pods=500/daemon=crio 1 99 rss-B
`)
	if want := []point{{500, 240}}; len(got) != 1 || !slices.Equal(got["berth"], want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := apart([]end{{y: 10}, {y: 100}, {y: 95}}); got[0].y != 100 || got[1].y != 85 || got[2].y != 10 {
		t.Errorf("%v", got)
	}
}

// The committed pictures are those of the committed results.
func TestPicturesAreThoseOfTheResults(t *testing.T) {
	dir := filepath.Join("..", "..", "bench")
	for _, c := range pictures {
		results, err := os.ReadFile(filepath.Join(dir, c.of))
		if err != nil {
			t.Fatal(err)
		}
		drawn, err := os.ReadFile(filepath.Join(dir, c.name))
		if err != nil {
			t.Fatal(err)
		}
		if c.draw(string(results)) != string(drawn) {
			t.Errorf("bench/%s is not that of bench/%s: run the bench with -plot", c.name, c.of)
		}
	}
}

func TestANodeIsMeasuredAtThreeSizes(t *testing.T) {
	for pods, want := range map[int][]int{500: {50, 150, 500}, 20: {2, 6, 20}, 2: {1, 2}} {
		if got := counts(pods); !slices.Equal(got, want) {
			t.Errorf("%d pods: %v, want %v", pods, got, want)
		}
	}
}

// The layers compress to about half, as those of real images do.
func TestTheContentOfLayersIsCompressible(t *testing.T) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	content := compressible(rand.NewChaCha8([32]byte{}), 1<<20)
	if _, err := w.Write(content); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	if share := float64(b.Len()) / float64(len(content)); len(content) != 1<<20 || share < 0.4 || share > 0.7 {
		t.Errorf("%d bytes compress to %.2f of that", len(content), share)
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
}

// docs/tricks.md has each trick with its setting, which exists, and the committed results have it on
// and off. The files that it names are there.
func TestEachTrickIsListedAndMeasured(t *testing.T) {
	root := filepath.Join("..", "..")
	read := func(path string) string {
		b, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	docs, measured := read("docs/tricks.md"), read("bench/tricks.txt")
	var keys []string
	for _, trick := range tricks {
		key, value, _ := strings.Cut(trick.setting, "=")
		keys = append(keys, key)
		cfg := config.Default()
		if err := cfg.Set(key, value); err != nil {
			t.Error(err)
		}
		for _, is := range []string{"on", "off"} {
			if of := "/of=" + key + "/trick=" + is + " "; !strings.Contains(measured, of) {
				t.Errorf("bench/tricks.txt has nothing of %q", of)
			}
		}
		if !strings.Contains(docs, "`"+key) {
			t.Errorf("docs/tricks.md does not have %s", key)
		}
	}
	for f := range reflect.TypeFor[config.Tricks]().Fields() {
		if key := "tricks." + f.Tag.Get("toml"); !slices.Contains(keys, key) {
			t.Errorf("%s is not measured", key)
		}
	}
	for _, path := range regexp.MustCompile("`((?:internal|logger|tools)/[^`]*)`").FindAllStringSubmatch(docs, -1) {
		if _, err := os.Stat(filepath.Join(root, path[1])); err != nil {
			t.Error(err)
		}
	}
}

// conmon cuts a line of output where what it has read ends. Other lines that are not whole are errors.
func TestOutputMayBeLoggedInPieces(t *testing.T) {
	line := strings.Repeat("x", lineLength-1)
	const utc, offset = "2006-01-02T15:04:05.5Z", "2006-01-02T15:04:05.123456789+00:00"
	for what, c := range map[string]struct {
		log  string
		want int
	}{
		"whole":               {utc + " stdout F " + line + "\n" + offset + " stdout F " + line + "\n", 2},
		"in pieces":           {offset + " stdout P " + line[:7] + "\n" + offset + " stdout F " + line[7:] + "\n", 1},
		"the last is missing": {offset + " stdout P " + line[:7] + "\n", -1},
		"torn":                {utc + " stdout F " + line[:7] + "\n", -1},
		"two in one":          {utc + " stdout F " + line + line + "\n", -1},
		"cut off":             {utc + " stdout F " + line, -1},
		"not of a log":        {line + "\n", -1},
	} {
		got, err := countLines(strings.NewReader(c.log))
		if (err != nil) != (c.want < 0) || err == nil && got != c.want {
			t.Errorf("%s: got %d, %v, want %d", what, got, err, c.want)
		}
	}
}

// A daemon that cannot be compared is an error, before anything is measured.
func TestADaemonOfElsewhereHasItsProgramsInPath(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if err := os.WriteFile(filepath.Join(dir, "crio"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := compared("crio", ""); err == nil || !strings.Contains(err.Error(), "conmon") || !strings.Contains(err.Error(), "pinns") {
		t.Errorf("without conmon and pinns: %v", err)
	}
	if _, err := compared("docker", ""); err == nil {
		t.Error("docker is compared")
	}
	if k, err := compared("", ""); err != nil || len(k) != 2 {
		t.Errorf("without another daemon: %v, %v", k, err)
	}
}

// A setting changes berth alone, and the list of daemons that the next bench compares keeps none.
func TestASettingIsBerthsAlone(t *testing.T) {
	k, err := compared("", "runtimes.runc.shim_pods=50")
	if err != nil || len(k) != 2 || !slices.Equal(k[0].settings, []string{"runtimes.runc.shim_pods=50"}) || k[1].settings != nil {
		t.Errorf("got %+v, %v", k, err)
	}
	if kinds[0].settings != nil {
		t.Errorf("the setting has stayed: %v", kinds[0].settings)
	}
	for _, mode := range []string{"-tricks", "-probes"} {
		if err := command(t.Context(), []string{"-set", "a=b", mode, "-out", t.TempDir()}); err == nil || !strings.Contains(err.Error(), "-set") {
			t.Errorf("-set with %s: %v", mode, err)
		}
	}
}
