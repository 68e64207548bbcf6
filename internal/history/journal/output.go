// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Socket is where journald takes records.
const Socket = "/run/systemd/journal/socket"

const (
	// patience is how long one record waits for journald.
	patience = time.Second
	// pause is how long nothing is tried after journald has taken nothing.
	pause = 10 * time.Second
	// maxField is how long a field may be when the record is too large for one message, and cut is
	// what its end says then.
	maxField = 16 << 10
	cut      = "... (cut off, it is too long for the journal)"
)

// Output sends records to journald. It is for one goroutine.
type Output struct {
	stderr io.Writer
	socket string
	mark   [markSize]byte
	conn   *net.UnixConn
	after  time.Time // nothing is sent before it
	said   bool      // that records go to standard error
}

// New makes an output, whose fallback is stderr.
func New(stderr io.Writer, socket string) *Output {
	o := &Output{stderr: stderr, socket: socket}
	_, _ = rand.Read(o.mark[:]) // never fails
	return o
}

// Write takes records as the handlers of [Output.Handler] write them, any number of them, and lines of
// others between them. The error is that of standard error.
func (o *Output) Write(b []byte) (int, error) {
	var plain bytes.Buffer
	flush := func() error {
		defer plain.Reset()
		if plain.Len() == 0 {
			return nil
		}
		_, err := o.stderr.Write(plain.Bytes())
		return err
	}
	for rest := b; len(rest) > 0; {
		if !bytes.HasPrefix(rest, o.mark[:]) {
			n := bytes.Index(rest, o.mark[:])
			if n < 0 {
				n = len(rest)
			}
			plain.Write(rest[:n])
			rest = rest[n:]
			continue
		}
		text, fields, n := unframe(rest)
		if n == 0 {
			return 0, errors.Join(flush(), errors.New("a record of the log is torn"))
		}
		rest = rest[n:]
		if err := flush(); err != nil { // in their order
			return 0, err
		}
		why := o.send(append([]field{{"MESSAGE", strings.TrimSuffix(text, "\n")}}, fields...))
		if why == nil {
			continue
		}
		if !o.said {
			o.said = true
			fmt.Fprintf(&plain, "berth: the journal takes no records, the log goes on to standard error without fields: %v\n", why)
		}
		plain.WriteString(text)
	}
	return len(b), flush()
}

// errPause is the error while nothing is tried.
var errPause = errors.New("it took nothing a moment ago")

// send sends one record.
func (o *Output) send(fields []field) error {
	if time.Now().Before(o.after) {
		return errPause
	}
	err := o.try(encode(fields))
	if errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.ENOBUFS) {
		for i := range fields {
			fields[i].value = shorten(fields[i].value)
		}
		err = o.try(encode(fields))
	}
	if err != nil {
		o.after = time.Now().Add(pause)
	}
	return err
}

// try sends a message. The connection is made anew after an error, since journald may have restarted.
func (o *Output) try(b []byte) error {
	for again := o.conn != nil; ; again = false {
		if o.conn == nil {
			c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: o.socket, Net: "unixgram"})
			if err != nil {
				return err
			}
			o.conn = c
		}
		_ = o.conn.SetWriteDeadline(time.Now().Add(patience))
		_, err := o.conn.Write(b)
		if err == nil || errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.ENOBUFS) {
			return err
		}
		_ = o.conn.Close()
		if o.conn = nil; !again || errors.Is(err, unix.EAGAIN) || isTimeout(err) {
			return err
		}
	}
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// encode is a message of the native protocol: NAME=VALUE a line, or for a value of several lines its
// name, its length and itself.
func encode(fields []field) []byte {
	var b []byte
	for _, f := range fields {
		b = append(b, f.name...)
		if !strings.Contains(f.value, "\n") {
			b = append(append(append(b, '='), f.value...), '\n')
			continue
		}
		b = binary.LittleEndian.AppendUint64(append(b, '\n'), uint64(len(f.value)))
		b = append(append(b, f.value...), '\n')
	}
	return b
}

// shorten cuts a value that is too long, and says so at its end.
func shorten(s string) string {
	if len(s) <= maxField {
		return s
	}
	n := maxField
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + cut
}
