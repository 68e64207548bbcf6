// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	lineLength = 98 // of a line of output, with its end
	// leastInLog is the least length of a line in a log. containerd leaves out zeros at the end of the
	// time.
	leastInLog = len("2006-01-02T15:04:05Z stdout F ") + lineLength
	// complete is how long a log has not grown that is complete.
	complete = time.Second
	// linesPerFile is how many lines are in the file that a container writes over and over.
	linesPerFile = 100_000
	// rotateAt is the size at which a log is rotated, in bytes.
	rotateAt = 64 << 20
)

// writer is the command of a container that writes a file of lines, count times, with a call of the
// kernel for each line, as programs do whose output is not buffered.
func writer(count int) []string {
	return []string{"sh", "-c", fmt.Sprintf("yes %s | head -c %d > /lines; i=0; while [ $i -lt %d ]; do dd if=/lines bs=%d 2>/dev/null; i=$((i+1)); done",
		strings.Repeat("x", lineLength-1), linesPerFile*lineLength, count, lineLength)}
}

// runOutput measures outputs of each daemon, or of the one whose name contains b.only, by turns.
func (b *bench) runOutput(ctx context.Context) error {
	stop, err := b.serve(1)
	if err != nil {
		return err
	}
	defer stop()
	only, order := b.only, slices.Clone(b.kinds)
	b.only = ""
	steps := []step{{"output", func(ctx context.Context, n *node, rec record) error { return n.outputs(ctx, b.sizes.OutputMB, rec) }, false}}
	for i := range b.rounds {
		for _, k := range order {
			if !strings.Contains(k.name, only) {
				continue
			}
			if err := b.measure(ctx, k, fmt.Sprintf("round %d of %d", i+1, b.rounds), "/daemon="+k.name, steps); err != nil {
				return err
			}
		}
		slices.Reverse(order)
	}
	return nil
}

// outputs measures how long it takes until so many megabytes of output are in the log of a
// container, and the processor time of the daemon and the container together; then the same with a
// log that is rotated. A byte that is not in the log, or is there twice, is an error.
func (n *node) outputs(ctx context.Context, megabytes int, rec record) error {
	for _, rotated := range []bool{false, true} {
		name := fmt.Sprintf("Output/MB=%d", megabytes)
		if rotated {
			name += "/rotated"
		}
		if err := n.output(ctx, name, max(1, megabytes*1e6/(linesPerFile*lineLength)), rotated, rec); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) output(ctx context.Context, name string, count int, rotated bool, rec record) error {
	p, err := n.run(ctx, n.podConfig(), "")
	if err != nil {
		return err
	}
	id, err := n.create(ctx, p, containerConfig("c", writer(count)...))
	if err != nil {
		return err
	}
	before, err := n.usedWithPods()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := n.startContainer(ctx, id); err != nil {
		return err
	}
	files, last, err := n.follow(ctx, id, filepath.Join(p.config.GetLogDirectory(), "c.log"), int64(count*linesPerFile*leastInLog), rotated)
	if err != nil {
		return err
	}
	took := last.Sub(began)
	after, err := n.usedWithPods()
	if err != nil {
		return err
	}
	rec.line(name, took, "ns/op", after-before, "cpu-ns/op")
	lines, err := countFiles(files)
	if err != nil {
		return err
	}
	if lines != count*linesPerFile {
		return fmt.Errorf("%d lines are in the log, %d were written", lines, count*linesPerFile)
	}
	return errors.Join(n.stopPod(ctx, p.id), n.removePod(ctx, p.id))
}

// follow waits until a log, with the files that it has been rotated to, has at least a size and
// does not grow any more. It returns these files in the order in which they were written, and when
// the log grew last.
func (n *node) follow(ctx context.Context, id, log string, size int64, rotated bool) (files []string, last time.Time, err error) {
	var before, seen int64 // in the files that were rotated away, and in all
	for last = time.Now(); ; time.Sleep(time.Millisecond) {
		st, err := os.Stat(log)
		if err != nil {
			return nil, last, err
		}
		now := time.Now()
		if all := before + st.Size(); all != seen {
			seen, last = all, now
		}
		switch {
		case ctx.Err() != nil:
			return nil, last, ctx.Err()
		case seen >= size && now.Sub(last) > complete:
			return append(files, log), last, nil
		case now.Sub(last) > bound:
			return nil, last, fmt.Errorf("log %s has %d bytes, less than %d, and does not grow", log, seen, size)
		case rotated && st.Size() > rotateAt:
			old := fmt.Sprintf("%s.%d", log, len(files)+1)
			if err := os.Rename(log, old); err != nil {
				return nil, last, err
			}
			if _, err := n.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id}); err != nil {
				return nil, last, about("reopen the log of container", id, err)
			}
			if st, err = os.Stat(old); err != nil {
				return nil, last, err
			}
			before += st.Size()
			files = append(files, old)
		}
	}
}

// countFiles counts the lines of a log whose files follow each other, and removes them.
func countFiles(files []string) (lines int, err error) {
	var all []io.Reader
	var open []*os.File
	defer func() {
		for _, f := range open {
			_ = f.Close() // it was only read
		}
	}()
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return 0, err
		}
		open, all = append(open, f), append(all, f)
	}
	if lines, err = countLines(io.MultiReader(all...)); err != nil {
		return 0, err
	}
	for _, name := range files {
		err = errors.Join(err, os.Remove(name))
	}
	return lines, err
}

// countLines counts the lines that a container has written in its log, which may be in several
// files. A foreign line is an error. conmon cuts a line at the end of a read: the pieces have the
// tag P, except for the last.
func countLines(log io.Reader) (count int, err error) {
	want := strings.Repeat("x", lineLength-1)
	whole := []byte{}
	in := bufio.NewReaderSize(log, 1<<20)
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line)+len(whole) == 0 {
			return count, nil
		}
		_, piece, ok := bytes.Cut(line, []byte(" stdout ")) // after the time, in UTC or with an offset
		if err != nil || !ok || len(piece) < 3 || piece[1] != ' ' {
			return count, fmt.Errorf("line %d of the log is %.200q: %w", n, line, err)
		}
		whole = append(whole, piece[2:len(piece)-1]...)
		if piece[0] == 'P' {
			continue
		}
		if string(whole) != want {
			return count, fmt.Errorf("line %d of the log ends a line of output that is %.200q", n, whole)
		}
		whole = whole[:0]
		count++
	}
}

// usedWithPods is the processor time of the daemon, of its children, and of all pods.
func (n *node) usedWithPods() (time.Duration, error) {
	pods := n.account
	pods.dir = filepath.Join(filepath.Dir(n.account.dir), n.cgroup)
	own, err := n.account.used()
	if err != nil {
		return 0, err
	}
	theirs, err := pods.used()
	if errors.Is(err, fs.ErrNotExist) { // there was no container yet
		err = nil
	}
	return own + theirs, err
}
