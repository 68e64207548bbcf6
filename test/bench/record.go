// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The names of measurements that are used in several places.
const (
	killToExited     = "KillToExited"
	killToEvent      = "KillToEvent"
	killWhilePulling = "KillToExitedWhilePulling"
	killBusy         = "KillToExitedBusy"
	killToEnd        = "KillToEndBusy"   // the kernel's part of these
	endToExited      = "EndToExitedBusy" // and the daemon's
	writeBusy        = "SyncedWriteBusy" // which waits for a write like this one
	stuckOwn         = "KillToExitedOwnDeleteHangs"
	stuckOther       = "KillToExitedOthersDeletesHang"
	exitsAtOnce      = "ExitsAtOnce/each"
)

// lines is where results go, from any goroutine.
type lines struct {
	mu sync.Mutex
	to io.Writer
}

func (l *lines) printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.to, format, args...)
}

// record writes measurements in Go's benchmark format.
type record struct {
	*lines
	of string // the labels, such as /daemon=berth: the end of each name
}

// line writes one measurement. values are a number or a duration, and its unit, and so on.
func (r record) line(name string, values ...any) {
	var w strings.Builder
	for i, v := range values {
		switch v := v.(type) {
		case time.Duration:
			fmt.Fprintf(&w, " %d", v.Nanoseconds())
		case float64:
			w.WriteString(" " + strconv.FormatFloat(math.Round(v*1e4)/1e4, 'f', -1, 64))
		default:
			fmt.Fprintf(&w, " %v", values[i])
		}
	}
	r.printf("Benchmark%s%s 1%s\n", name, r.of, &w)
}

// time carries out a call and writes how long it took.
func (r record) time(name string, call func() error) error {
	began := time.Now()
	err := call()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	r.line(name, time.Since(began), "ns/op")
	return nil
}

// samples reads the values of a unit from results, by name and daemon, divided by per.
func samples(results, unit string, per float64) map[string]map[string][]float64 {
	all := map[string]map[string][]float64{}
	for line := range strings.Lines(results) {
		f := strings.Fields(line)
		at := slices.Index(f, unit)
		if at < 3 {
			continue
		}
		name, daemon, ok := strings.Cut(strings.TrimPrefix(f[0], "Benchmark"), "/daemon=")
		if v, err := strconv.ParseFloat(f[at-1], 64); err == nil && ok {
			if all[name] == nil {
				all[name] = map[string][]float64{}
			}
			all[name][daemon] = append(all[name][daemon], v/per)
		}
	}
	return all
}
