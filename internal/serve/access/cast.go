// SPDX-License-Identifier: Apache-2.0

package access

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	// maxCast is how much of a session is kept, in bytes.
	maxCast = 64 << 20
	// maxPieces is how many pieces wait for the disk. Further pieces are left out, and the
	// recording notes that.
	maxPieces = 1024
)

// cast is the recording of a terminal, in version 2 of the format of asciinema.
// https://docs.asciinema.org/manual/asciicast/v2/
type cast struct {
	began  time.Time
	pieces chan []byte

	mu     sync.Mutex
	closed bool
	rest   []byte // of a character that is not whole
	size   int
	lost   bool
}

// openCast begins the recording of a session, nil if that cannot be. A goroutine writes it, because
// a disk may not answer.
func (l *Log) openCast(v *visit) *cast {
	if err := os.MkdirAll(l.cfg.Sessions, 0o700); err != nil {
		l.cfg.Log.Warn("session of a terminal not recorded", "id", v.id, "err", err)
		return nil
	}
	name := fmt.Sprintf("%s-%s.cast", v.began.UTC().Format("20060102T150405"), v.session)
	f, err := os.OpenFile(filepath.Join(l.cfg.Sessions, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		l.cfg.Log.Warn("session of a terminal not recorded", "id", v.id, "err", err)
		return nil
	}
	c := &cast{began: v.began, pieces: make(chan []byte, maxPieces)}
	head, _ := json.Marshal(map[string]any{ // of strings and numbers, which are always written
		"version":   2,
		"width":     80,
		"height":    24,
		"timestamp": v.began.Unix(),
		"title":     v.record.Namespace + "/" + v.record.Pod + "/" + v.record.Container,
	})
	c.pieces <- append(head, '\n')
	go func() {
		defer f.Close()
		var failed error
		for p := range c.pieces {
			if failed != nil {
				continue
			}
			if _, failed = f.Write(p); failed != nil {
				l.cfg.Log.Warn("recording of a terminal ended early", "id", v.id, "err", failed)
			}
		}
	}()
	return c
}

// wrote records output of the terminal. A character that is in two pieces is kept with the second.
func (c *cast) wrote(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b = append(c.rest, b...)
	whole := len(b)
	for i := 1; i <= utf8.UTFMax-1 && i <= len(b); i++ {
		if r := b[len(b)-i:]; utf8.RuneStart(r[0]) {
			if !utf8.FullRune(r) {
				whole = len(b) - i
			}
			break
		}
	}
	c.rest = append([]byte(nil), b[whole:]...)
	if whole > 0 {
		c.addLocked("o", string(b[:whole]))
	}
}

// resized keeps the size of the terminal.
func (c *cast) resized(width, height uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked("r", fmt.Sprintf("%dx%d", width, height))
}

// addLocked adds an event. c.mu must be held.
func (c *cast) addLocked(kind, data string) {
	if c.closed || c.lost {
		return
	}
	line, err := json.Marshal([]any{time.Since(c.began).Seconds(), kind, data})
	if err != nil {
		return
	}
	line = append(line, '\n')
	c.size += len(line)
	if c.size > maxCast || len(c.pieces) >= maxPieces-1 {
		c.lost = true
		line, _ = json.Marshal([]any{time.Since(c.began).Seconds(), "m", "the rest was not recorded: it is too long, or the disk too slow"})
		line = append(line, '\n')
	}
	select {
	case c.pieces <- line:
	default:
	}
}

// close ends the recording.
func (c *cast) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		close(c.pieces)
	}
}
