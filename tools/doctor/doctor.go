// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Severity is how bad a finding is.
type Severity string

// The severities, the worst first.
const (
	Error   Severity = "error"   // pods do not run, or not safely
	Warning Severity = "warning" // some pods do not run, or something goes wrong later
	Note    Severity = "note"    // good to know
)

// Finding is something that is wrong.
type Finding struct {
	Severity Severity `json:"severity"`
	What     string   `json:"what"` // the fault, and its effect
	Do       string   `json:"do"`   // the remedy
}

// Answer is the result of one check. Nothing is wrong if it has neither findings nor a reason why
// there are none.
type Answer struct {
	Check    string    `json:"check"`
	Question string    `json:"question"`
	Findings []Finding `json:"findings,omitempty"`
	// the reason if there is no answer, or only a part
	NotAsked string `json:"notAsked,omitempty"`
	// that the subject of the check does not exist on the machine
	Nothing string `json:"nothingToLookAt,omitempty"`
}

// Report has the answers of all checks, in the order of the table.
type Report struct {
	Service string   `json:"service"` // whether there was a berth to ask
	Answers []Answer `json:"answers"`
}

// Count returns the number of findings of a severity.
func (r Report) Count(s Severity) (n int) {
	for _, a := range r.Answers {
		for _, f := range a.Findings {
			if f.Severity == s {
				n++
			}
		}
	}
	return n
}

// NotAsked returns the number of checks that could not ask.
func (r Report) NotAsked() (n int) {
	for _, a := range r.Answers {
		if a.NotAsked != "" {
			n++
		}
	}
	return n
}

// Well returns the number of checks that found nothing wrong.
func (r Report) Well() (n int) {
	for _, a := range r.Answers {
		if len(a.Findings) == 0 && a.NotAsked == "" && a.Nothing == "" {
			n++
		}
	}
	return n
}

// check is one question about a machine.
type check struct {
	name     string
	question string // that a yes answers well
	// ask returns the findings. An error names the question that could not be asked; findings
	// beside it hold all the same.
	ask func(ctx context.Context, m *machine) ([]Finding, error)
}

// limit is how long a check may take.
const limit = 10 * time.Second

// Examine asks every question, side by side, and returns once each has an answer or its time is
// over. A check whose time is over may go on in the background until the process ends: a disk that
// hangs cannot be interrupted.
func Examine(ctx context.Context, h Host) Report {
	m := newMachine(ctx, h)
	answers := make([]chan Answer, len(checks))
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for i, c := range checks {
		answers[i] = make(chan Answer, 1)
		go func() { answers[i] <- c.answer(ctx, m) }()
	}
	r := Report{Service: m.service()}
	for i, c := range checks {
		select {
		case a := <-answers[i]:
			r.Answers = append(r.Answers, a)
		case <-ctx.Done():
			a := Answer{Check: c.name, Question: c.question, NotAsked: notInTime(ctx)}
			select {
			case a = <-answers[i]: // both were there
			default:
			}
			r.Answers = append(r.Answers, a)
		}
	}
	return r
}

// notInTime gives the reason if there is no answer because a context has ended.
func notInTime(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Sprintf("there was no answer within %s", limit)
	}
	return "it was interrupted"
}

// answer asks one question. A check that panics could not ask.
func (c check) answer(ctx context.Context, m *machine) (a Answer) {
	a = Answer{Check: c.name, Question: c.question}
	defer func() {
		if p := recover(); p != nil {
			a.NotAsked = fmt.Sprintf("the check has a defect: %v", p)
		}
	}()
	found, err := c.ask(ctx, m)
	rank := func(s Severity) int { return slices.Index([]Severity{Error, Warning, Note}, s) }
	slices.SortStableFunc(found, func(x, y Finding) int { return rank(x.Severity) - rank(y.Severity) })
	a.Findings = found
	var nothing errNothing
	switch {
	case errors.As(err, &nothing):
		a.Nothing = string(nothing)
	case err != nil:
		a.NotAsked = err.Error()
	}
	return a
}

// errNothing is the error of a check that has nothing to look at on this machine.
type errNothing string

func (e errNothing) Error() string { return string(e) }

// findings collects the findings of a check, and the questions that it could not ask.
type findings struct {
	found []Finding
	errs  []error
}

func (f *findings) add(s Severity, do, what string, args ...any) {
	f.found = append(f.found, Finding{Severity: s, What: fmt.Sprintf(what, args...), Do: do})
}

// unasked keeps an error if there is one.
func (f *findings) unasked(err error) {
	if err != nil {
		f.errs = append(f.errs, err)
	}
}

func (f *findings) result() ([]Finding, error) { return f.found, errors.Join(f.errs...) }
