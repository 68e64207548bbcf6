// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// madeNode returns a run with -scale in which each value of berth's is the number of pods to that
// power, and containerd's ten times as much.
func madeNode(power int) *results {
	r := newResults(sizes{})
	r.Nodes = counts(500)
	for _, m := range nodeMetrics() {
		for _, pods := range r.Nodes {
			v := 1.
			for range power {
				v *= float64(pods)
			}
			r.add(at(m.key, pods), "berth", v)
			r.add(at(m.key, pods), "containerd", 10*v)
		}
	}
	return r
}

func TestANodeIsMeasuredAtThreeSizes(t *testing.T) {
	for pods, want := range map[int][]int{500: {50, 150, 500}, 20: {2, 6, 20}, 2: {1, 2}} {
		got := counts(pods)
		if len(got) != len(want) || got[0] != want[0] || got[len(got)-1] != pods {
			t.Errorf("%d pods: %v, want %v", pods, got, want)
		}
	}
}

func TestGrowthThatIsFasterThanLinearIsNamed(t *testing.T) {
	for power, reached := range map[int]bool{0: true, 1: true, 2: false} {
		r := madeNode(power)
		for _, m := range nodeMetrics() {
			if g := growth(r, m.key); g < float64(power)-0.01 || g > float64(power)+0.01 {
				t.Errorf("%s grows with the power %g, want %d", m.key, g, power)
			}
		}
		vs := nodeVerdicts(r)
		if vs[0].reached != true || vs[2].reached != reached {
			t.Errorf("power %d: %+v", power, vs)
		}
	}
	r := newResults(sizes{})
	r.Nodes = counts(500)
	for _, v := range nodeVerdicts(r) {
		if v.reached {
			t.Errorf("%s: reached without a sample", v.threshold)
		}
	}
}

func TestTheTableOfANodeHasEveryRow(t *testing.T) {
	dir := t.TempDir()
	if err := madeNode(1).write(filepath.Join(dir, "scale.json")); err != nil {
		t.Fatal(err)
	}
	if err := command(context.Background(), []string{"-scale", "-plot", "-out", dir}, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	md, err := os.ReadFile(filepath.Join(dir, "SCALE.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range nodeMetrics() {
		if !strings.Contains(string(md), "| "+m.title+" |") {
			t.Errorf("no row for %s", m.title)
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
