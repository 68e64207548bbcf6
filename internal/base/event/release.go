// SPDX-License-Identifier: Apache-2.0

package event

import (
	"log/slog"
	"slices"
	"strings"
)

// AttemptFailed reports that a step of a lane is tried again later.
type AttemptFailed struct {
	Step    string `json:"step"`
	Attempt int    `json:"attempt"`
	Err     string `json:"err"`
}

func (e AttemptFailed) line() Line {
	return warn(Berth, "lane attempt failed", e.Err, slog.String("step", e.Step), slog.Int("attempt", e.Attempt))
}

// AttemptPostponed reports that a step of a lane waits for another lane, as it should.
type AttemptPostponed struct {
	Step    string `json:"step"`
	Attempt int    `json:"attempt"`
	Until   string `json:"until"`
}

func (e AttemptPostponed) line() Line {
	return step(Berth, "lane attempt postponed",
		slog.String("step", e.Step), slog.Int("attempt", e.Attempt), slog.String("until", e.Until))
}

// AttemptPanicked reports that a step of a lane panicked. berth goes on, and the lane tries again.
type AttemptPanicked struct {
	Lane    string `json:"lane,omitempty"` // "" for the lane of the unit's life
	Attempt int    `json:"attempt"`
	Err     string `json:"err"`
	Stack   string `json:"stack"`
}

func (e AttemptPanicked) line() Line {
	l := warn(Berth, "lane attempt panicked", e.Err, slog.Int("attempt", e.Attempt), slog.String("stack", e.Stack))
	l.Level = slog.LevelError
	if e.Lane != "" {
		l.Attrs = slices.Insert(l.Attrs, 0, slog.String("lane", e.Lane))
	}
	return l
}

// Released reports that a part of the holds was given back.
type Released struct {
	What  []string `json:"what"`
	Holds []string `json:"holds"` // the remaining holds
}

func (e Released) line() Line {
	return step(Berth, "holds released",
		slog.String("what", strings.Join(e.What, ",")), slog.String("holds", strings.Join(e.Holds, ",")))
}

// Removed reports that nothing is held any more, and that the record is deleted.
type Removed struct{}

func (Removed) line() Line { return step(Berth, "record removed") }

// OrphanFound reports that an object of berth's has no record, and is being removed.
type OrphanFound struct{}

func (OrphanFound) line() Line { return info(Berth, "orphan without a record, removing it") }

// OrphanRemoved reports that it is removed.
type OrphanRemoved struct{}

func (OrphanRemoved) line() Line { return info(Berth, "orphan removed") }

// OrphansUnlisted reports that the search for orphans is incomplete.
type OrphansUnlisted struct {
	What string `json:"what"`
	Err  string `json:"err"`
}

func (e OrphansUnlisted) line() Line {
	return warn(Berth, "search for orphans incomplete", e.Err, slog.String("without", e.What))
}
