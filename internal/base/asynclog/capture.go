// SPDX-License-Identifier: Apache-2.0

package asynclog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// maxLine is how many bytes of a captured line are kept together.
const maxLine = 16 << 10

// restoreTimeout is how long the end of a capture waits for processes that still hold the pipe.
const restoreTimeout = 100 * time.Millisecond

// CaptureStderr replaces os.Stderr by a pipe that is read into the log, a line a record. It is for
// code that writes to os.Stderr and for child processes that are given it. The caller calls restore
// once, when nothing of that kind runs any more; a child that does gets EPIPE from then on.
func (l *Log) CaptureStderr() (restore func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("capture standard error: %w", err)
	}
	old := os.Stderr
	os.Stderr = w
	var wg sync.WaitGroup
	wg.Go(func() { l.copyLines(r) })
	return func() {
		os.Stderr = old
		_ = w.Close()
		_ = r.SetReadDeadline(time.Now().Add(restoreTimeout)) // a child may still hold the other end
		wg.Wait()
		_ = r.Close()
	}, nil
}

// copyLines logs the lines of r, unformatted, until its end.
func (l *Log) copyLines(r io.Reader) {
	in := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := in.ReadSlice('\n')
		if len(line) > 0 {
			if line[len(line)-1] != '\n' { // the line is too long, or the last one is unfinished
				line = append(line[:len(line):len(line)], '\n')
			}
			_, _ = l.Write(line)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
