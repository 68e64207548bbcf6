// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// How long the output of an ended process is read if another process holds it open.
const (
	quietTimeout = time.Second      // without a byte
	drainTimeout = 10 * time.Second // altogether, while the client takes the output
	// clientTimeout is how long a client may take for a piece of the remaining output.
	clientTimeout = time.Minute
)

// output copies the output of a process to its destinations. Its goroutines end when the streams
// do, when the streams are closed, or when a destination fails.
type output struct {
	sources []io.ReadCloser
	copies  sync.WaitGroup
	done    chan struct{} // closed when all is copied
	failed  chan struct{} // closed when a destination has failed
	once    sync.Once     // of failed

	moved   atomic.Int64 // bytes read
	writing atomic.Int32 // copies that wait for their destination
}

// copyOutput begins to copy. A source may be nil; then that stream is not copied.
func copyOutput(p *pipes, stdout, stderr io.Writer) *output {
	o := &output{done: make(chan struct{}), failed: make(chan struct{})}
	o.add(p.stdout, stdout)
	o.add(p.stderr, stderr)
	go func() {
		defer close(o.done)
		o.copies.Wait()
	}()
	return o
}

func (o *output) add(from io.ReadCloser, to io.Writer) {
	if from == nil {
		return
	}
	o.sources = append(o.sources, from)
	o.copies.Go(func() {
		if err := o.copy(from, to); err != nil {
			o.once.Do(func() { close(o.failed) })
		}
	})
}

// copy returns the error of the destination; an error of the source is its end.
func (o *output) copy(from io.Reader, to io.Writer) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			o.moved.Add(int64(n))
			o.writing.Add(1)
			_, werr := to.Write(buf[:n])
			o.writing.Add(-1)
			if werr != nil {
				return werr
			}
		}
		if err != nil {
			return nil
		}
	}
}

// drain waits until all is copied. It is called when the process has ended, and does not wait for
// ever if another process holds the streams open or if the client does not take them. It returns
// early when cancel is closed.
func (o *output) drain(cancel <-chan struct{}) {
	began := time.Now()
	last, lastAt := o.moved.Load(), began
	tick := time.NewTicker(quietTimeout / 4)
	defer tick.Stop()
	for {
		select {
		case <-o.done:
			return
		case <-o.failed:
		case <-cancel:
		case now := <-tick.C:
			if moved := o.moved.Load(); moved != last {
				last, lastAt = moved, now
			}
			patience := quietTimeout
			if o.writing.Load() > 0 {
				patience = clientTimeout
			} else if now.Sub(began) >= drainTimeout {
				patience = 0
			}
			if now.Sub(lastAt) < patience {
				continue
			}
		}
		o.close()
		return
	}
}

// close ends the copies that wait for their sources.
func (o *output) close() {
	for _, s := range o.sources {
		_ = s.Close()
	}
}

var errGone = errors.New("the client is gone")
