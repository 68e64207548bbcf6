// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"berth/internal/base/event"
)

// Values of Record.What.
const (
	Began   = "began"
	Ended   = "ended"
	Started = "started" // the file is written from now on, by another berth than before, or again
	Missing = "missing" // lines could not be written
	Torn    = "torn"    // the line before is not whole: the power was cut
)

// Record is a line of the file. Number and Before are set when it is written.
type Record struct {
	Number uint64 `json:"number"`
	// the SHA-256 of the line before, in hexadecimal; "" for the first
	Before string    `json:"before"`
	At     time.Time `json:"at"`
	What   string    `json:"what"`

	// Of an access:
	Session string `json:"session,omitempty"`
	// exec, exec-sync, attach, port-forward or checkpoint
	Access    string       `json:"access,omitempty"`
	ID        string       `json:"id,omitempty"`
	Namespace string       `json:"namespace,omitempty"`
	Pod       string       `json:"pod,omitempty"`
	Container string       `json:"container,omitempty"`
	By        event.Client `json:"by,omitzero"`
	Args      []string     `json:"args,omitempty"`
	Port      int32        `json:"port,omitempty"`
	Terminal  bool         `json:"terminal,omitempty"`

	// Of its end:
	Code *int32 `json:"code,omitempty"`
	Err  string `json:"error,omitempty"`
	In   int64  `json:"in,omitempty"`  // bytes from the client
	Out  int64  `json:"out,omitempty"` // and to it

	// Of Missing:
	Count int `json:"count,omitempty"`
}

// hash is the hash of a line, without its newline.
func hash(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}
