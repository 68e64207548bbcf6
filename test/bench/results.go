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

// results is everything a run found: results.json.
type results struct {
	At       time.Time         `json:"at"`
	Took     string            `json:"took"`
	Machine  []fact            `json:"machine"`
	Versions map[string]string `json:"versions"`
	Load     [2]float64        `json:"load"` // one-minute load average before and after
	Sizes    sizes             `json:"sizes"`
	// Samples are milliseconds or MiB by metric and daemon, in the order they were taken. An exit that was watched for
	// Bound milliseconds without being seen is a sample of that value.
	Samples map[string]map[string][]float64 `json:"samples"`
	Bound   float64                         `json:"bound"`
}

// fact is a line about the machine.
type fact struct {
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

// learn asks a daemon who it is.
func (r *results) learn(ctx context.Context, n *node) error {
	v, err := n.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", n.name, err)
	}
	r.Versions[n.name] = v.GetRuntimeVersion()
	return nil
}

func (r *results) of(metric, daemon string) []float64 { return r.Samples[metric][daemon] }

// percentile is the nearest-rank one: the smallest sample such that p percent of all are not larger. NaN for none.
func percentile(samples []float64, p float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[max(0, int(math.Ceil(p/100*float64(len(sorted))))-1)]
}

// numbers is an array that indentation has spread over lines; no string of JSON has a line break.
var numbers = regexp.MustCompile(`\[\n[-+.0-9e,\s]+\]`)

// write writes them with one line for each array of samples.
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
