// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Report is the result of a check of audit files.
type Report struct {
	Lines int       `json:"lines"`
	From  time.Time `json:"from,omitzero"`
	To    time.Time `json:"to,omitzero"`
	// the hash of the last line: keep it, and nothing can be taken from the end unseen
	Head   string `json:"head,omitempty"`
	Number uint64 `json:"number,omitempty"` // of the last line
	// lines that a power cut has torn, after which the chain goes on
	Torn    int `json:"torn"`
	Missing int `json:"missing"` // lines that could not be written
	// the hash that the first line is chained to: "" for the first of all
	Before string `json:"before,omitempty"`
}

// Broken is the error of [Verifier.Add] for a chain that is broken.
type Broken struct {
	Line int // of the file, from 1
	Why  string
}

func (b Broken) Error() string { return fmt.Sprintf("line %d: %s", b.Line, b.Why) }

// Verifier checks a chain, whose files are added in their order.
type Verifier struct {
	Report
	head string // that has to be found; "" for none
	seen bool
}

// NewVerifier returns a verifier. head is the hash of a line that has to be in the files, or "".
func NewVerifier(head string) *Verifier { return &Verifier{head: head} }

// Add checks one file. The error is [Broken], or one of reading.
func (v *Verifier) Add(from io.Reader) error {
	r := bufio.NewReaderSize(from, 1<<20)
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		whole := bytes.HasSuffix(line, []byte("\n"))
		line = bytes.TrimSuffix(line, []byte("\n"))
		if err := v.line(n, line, whole, r); err != nil {
			return err
		}
	}
}

// line checks one line. A line that is not a record must be torn, and the next one must note that.
func (v *Verifier) line(n int, line []byte, whole bool, r *bufio.Reader) error {
	var rec Record
	sum := hash(line)
	if json.Unmarshal(line, &rec) != nil || rec.Number == 0 || !whole {
		next, _ := r.Peek(maxLine)
		if i := bytes.IndexByte(next, '\n'); i >= 0 {
			next = next[:i]
		}
		var after Record
		switch {
		case len(next) == 0:
		case json.Unmarshal(next, &after) != nil || after.What != Torn || after.Before != sum:
			return Broken{n, "it is not a record, and the next line does not mark it as torn"}
		}
		v.Torn++
		v.Head = sum
		return nil
	}
	switch {
	case v.Lines == 0 && v.Head == "":
		v.Before, v.From = rec.Before, rec.At
	case rec.Before != v.Head:
		return Broken{n, "it is not chained to the line before, which was changed, or lines between them were taken out"}
	case rec.Number <= v.Number:
		return Broken{n, fmt.Sprintf("it has the number %d after %d", rec.Number, v.Number)}
	}
	v.Lines++
	v.Head, v.Number, v.To = sum, rec.Number, rec.At
	if rec.What == Missing {
		v.Missing += rec.Count
	}
	if sum == v.head {
		v.seen = true
	}
	return nil
}

// Result returns the report. It returns an error if the line with the expected hash is absent.
func (v *Verifier) Result() (Report, error) {
	if v.head != "" && !v.seen {
		return v.Report, errors.New("no line has the hash that is asked for: lines were taken from the end, or it is that of another file")
	}
	return v.Report, nil
}
