// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	berthv1 "berth/api/berth/v1"
	"berth/internal/base/event"
	"berth/internal/base/exit"
)

// Format is the number of the layout. It is raised when an earlier berth could not make sense of
// it.
const Format = 1

// MaxEntries is how many entries a bundle has at most.
const MaxEntries = 200_000

// ErrFormat is the error of [Read] for a bundle of a newer format.
var ErrFormat = errors.New("a newer berth has made the bundle")

// Manifest describes a bundle.
type Manifest struct {
	Format  int       `json:"format"`
	Made    time.Time `json:"made"`
	From    time.Time `json:"from"` // entries before it are left out
	To      time.Time `json:"to"`
	Version string    `json:"version"` // of the berth that has made the bundle
	Kernel  string    `json:"kernel"`  // its release
	// Running says that a berth was running, and answered. Without it there are no records and no
	// configuration.
	Running bool `json:"running"`
	// Exact is set if the kernel reports exit codes to the holder of a pidfd (Linux 6.15).
	Exact bool `json:"exact"`
	// Entries and Records count the lines of the files.
	Entries int `json:"entries"`
	Records int `json:"records"`
	// Missing names in sentences the data that is missing.
	Missing []string `json:"missing,omitempty"`
}

// Record is a sandbox or container, as berth knows it at the end of the bundle.
type Record struct {
	ID      string      `json:"id"`
	Of      event.Names `json:"of"`
	Handler string      `json:"handler"` // a word, or "other"
	// Pinned says of a sandbox that no process holds its namespaces.
	Pinned bool `json:"pinned,omitempty"`
	// Host says that the processes are the host's, whose ends the kernel reports.
	Host    bool      `json:"host"`
	Systemd bool      `json:"systemd,omitempty"` // makes the cgroups
	Image   string    `json:"image,omitempty"`
	State   string    `json:"state"` // CRI's, in short: CREATED, RUNNING, EXITED, READY or NOTREADY
	Created time.Time `json:"created"`
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	Code    int32     `json:"code,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	// Waits is the step that its lane is at, if there is one, and Tries how often it was tried.
	Waits string `json:"waits,omitempty"`
	Tries int    `json:"tries,omitempty"`
}

// Entry is an entry of the timeline, with the names of its object.
type Entry struct {
	Of    event.Names `json:"of,omitzero"`
	Entry event.Entry `json:"entry"`
}

// Bundle is the content of a file. Its entries are in the order in which they were made.
type Bundle struct {
	Manifest      Manifest
	Configuration *berthv1.Settings // those without a text that a person has chosen
	Records       []Record
	Entries       []Entry

	max                    int // of entries
	unknown, unread, older int
}

// New begins a bundle with the allowed part of the answer of a running berth; the answer is nil
// if no berth was asked.
func New(m Manifest, answer *berthv1.StateResponse) *Bundle {
	b := &Bundle{Manifest: m, Configuration: settingsOf(answer.GetSettings()), max: MaxEntries}
	b.Manifest.Format = Format
	b.Manifest.Exact = answer.GetExact()
	for _, o := range answer.GetObjects() {
		b.Records = append(b.Records, recordOf(o))
	}
	return b
}

// Add adds the allowed part of an entry, which is the JSON of an [event.Entry].
func (b *Bundle) Add(of event.Names, entry []byte) {
	var n event.Entry
	switch err := json.Unmarshal(entry, &n); {
	case errors.Is(err, event.ErrUnknown):
		b.unknown++
		return
	case err != nil:
		b.unread++
		return
	}
	if n.At.Stamp().Before(b.Manifest.From) {
		return
	}
	if len(b.Entries) == b.max {
		b.Entries = slices.Delete(b.Entries, 0, b.max/10)
		b.older += b.max / 10
	}
	n.ID, n.Event = idOf(n.ID), allow(n.Event)
	b.Entries = append(b.Entries, Entry{namesOf(of), n})
}

// Miss notes in a sentence that something is missing in the bundle.
func (b *Bundle) Miss(format string, args ...any) {
	b.Manifest.Missing = append(b.Manifest.Missing, fmt.Sprintf(format, args...))
}

// finish completes the manifest.
func (b *Bundle) finish() {
	for _, m := range []struct {
		n    int
		what string
	}{
		{b.unknown, "are of a kind that this berth does not write"},
		{b.unread, "could not be read"},
		{b.older, "are older, and there are too many"},
	} {
		if m.n > 0 {
			b.Miss("%d entries are left out: they %s.", m.n, m.what)
		}
	}
	b.unknown, b.unread, b.older = 0, 0, 0
	for _, e := range b.Entries {
		if lost, ok := e.Entry.Event.(event.EntriesLost); ok {
			b.Miss("The timeline has lost %d entries between %s and %s.", lost.Count,
				lost.From.Stamp().Format(time.RFC3339), lost.To.Stamp().Format(time.RFC3339))
		}
	}
	b.Manifest.Entries, b.Manifest.Records = len(b.Entries), len(b.Records)
}

// Verdict is the end of one container as berth has reported it.
type Verdict struct {
	ID     string
	Of     event.Names
	Code   uint32
	Reason string
	OOM    bool
	Signal int // that ended it, or 0
}

// String returns the verdict in a few words.
func (v Verdict) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d %s", v.Code, v.Reason)
	if v.Signal != 0 {
		fmt.Fprintf(&s, ", signal %d", v.Signal)
	}
	if v.OOM {
		s.WriteString(", OOM")
	}
	return s.String()
}

// VerdictOf returns the verdict of an exit.
func VerdictOf(id string, of event.Names, e event.Exit) Verdict {
	f := exit.Fact{Code: e.Code, Measured: e.Measured, Origin: e.Witness}
	return Verdict{
		ID:     id,
		Of:     of,
		Code:   e.Code,
		Reason: e.Reason,
		OOM:    e.OOM,
		Signal: f.Signal(),
	}
}

// Verdicts returns the last verdict of each container that has ended, in the order of the ends.
func (b *Bundle) Verdicts() (list []Verdict) {
	for _, n := range b.Entries {
		e, ok := ExitIn(n.Entry.Event)
		if !ok || n.Of.Container == "" {
			continue
		}
		v := VerdictOf(n.Entry.ID, n.Of, e)
		if i := slices.IndexFunc(list, func(o Verdict) bool { return o.ID == v.ID }); i >= 0 {
			list[i] = v
		} else {
			list = append(list, v)
		}
	}
	return list
}

// ExitIn returns the exit that an event tells, if it tells one that is settled.
func ExitIn(e event.Event) (event.Exit, bool) {
	switch e := e.(type) {
	case event.ExitSettled:
		return e.Exit, true
	case event.ExitCorrected:
		return e.Exit, true
	case event.ExitRecalled:
		return e.Exit, true
	}
	return event.Exit{}, false
}
