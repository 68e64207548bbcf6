// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// results is everything that a run measured. It is stored as results.json.
type results struct {
	At       time.Time         `json:"at"`
	Took     string            `json:"took"`
	Machine  []property        `json:"machine"`
	Versions map[string]string `json:"versions"`
	Load     [2]float64        `json:"load"` // one-minute load average before and after
	Sizes    sizes             `json:"sizes,omitzero"`
	Nodes    []int             `json:"nodes,omitempty"` // numbers of pods that were measured with -scale
	// Samples are milliseconds or MiB by metric and daemon, in the order in which they were taken.
	// An exit that was not visible after Bound milliseconds is a sample of that value.
	Samples map[string]map[string][]float64 `json:"samples"`
	Bound   float64                         `json:"bound"`
	// Trace is the life of one pod.
	Trace []phase `json:"trace,omitempty"`
}

// property is a line about the machine.
type property struct {
	What string `json:"what"`
	Is   string `json:"is"`
}

func newResults(s sizes) *results {
	return &results{At: time.Now(), Versions: map[string]string{}, Sizes: s, Samples: map[string]map[string][]float64{}, Bound: ms(bound)}
}

func (r *results) add(metric, daemon string, value float64) {
	if r.Samples[metric] == nil {
		r.Samples[metric] = map[string][]float64{}
	}
	r.Samples[metric][daemon] = append(r.Samples[metric][daemon], math.Round(value*1e4)/1e4)
}

// learn asks a daemon for its version.
func (r *results) learn(ctx context.Context, n *node, setting string) error {
	v, err := n.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", n.name, err)
	}
	r.Versions[n.name] = v.GetRuntimeVersion()
	if setting != "" && n.name == kinds[0].name {
		r.Versions[n.name] += ", with " + setting
	}
	return nil
}

func (r *results) of(metric, daemon string) []float64 { return r.Samples[metric][daemon] }

// percentile returns the nearest-rank percentile: the smallest sample such that p percent of all
// samples are not larger. Without samples it is NaN.
func percentile(samples []float64, p float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[max(0, int(math.Ceil(p/100*float64(len(sorted))))-1)]
}

// numbers matches an array of numbers that indentation has spread over lines. A string in JSON
// cannot match it, because it cannot contain a line break.
var numbers = regexp.MustCompile(`\[\n[-+.0-9e,\s]+\]`)

// write stores the results, each array of samples on one line.
func (r *results) write(path string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(numbers.ReplaceAllFunc(b, func(a []byte) []byte { return bytes.Join(bytes.Fields(a), nil) }), '\n'), 0o644)
}

func readResults(path string) (*results, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &results{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return r, nil
}
