// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
)

func (a *app) logsCommand() *cobra.Command {
	var follow, stamps bool
	var tail int
	cmd := &cobra.Command{Use: "logs NAME|ID", Short: "Print the output of a container", Args: cobra.ExactArgs(1), ValidArgsFunction: a.complete(containers, one)}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow the output until the container ends")
	cmd.Flags().BoolVarP(&stamps, "timestamps", "t", false, "print the time of each line")
	cmd.Flags().IntVar(&tail, "tail", -1, "print only this many of the last lines")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			o, err := resolve(ctx, c, args[0], false, true)
			if err != nil {
				return err
			}
			st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: o.id})
			if err != nil {
				return err
			}
			path := st.GetStatus().GetLogPath()
			if path == "" {
				return fmt.Errorf("container %s has no log, because it was created without a log path", o.name)
			}
			r := &logReader{
				path:   path,
				stamps: stamps,
				out:    raw(cmd.OutOrStdout()), // as the container wrote it
				err:    raw(cmd.ErrOrStderr()),
			}
			running := func() (bool, error) {
				st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: o.id})
				return err == nil && st.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING, err
			}
			return r.read(ctx, tail, follow, running)
		})
	}
	return cmd
}

// logReader prints a log in the CRI format.
type logReader struct {
	path     string
	stamps   bool
	out, err io.Writer
	partial  map[string]bool                        // streams whose last line is unfinished
	skip     map[string]bool                        // streams whose next parts belong to a line before the tail
	rotated  func(f *os.File, path string) *os.File // the function of that name; tests wrap it
}

// read prints the last tail lines of the log, or all of it if tail is negative. With follow it goes
// on, across rotations, until running returns false and the log is read to its end.
func (r *logReader) read(ctx context.Context, tail int, follow bool, running func() (bool, error)) error {
	r.partial, r.skip = map[string]bool{}, map[string]bool{}
	if r.rotated == nil {
		r.rotated = rotated
	}
	f, err := openLog(r.path)
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	if tail >= 0 {
		if r.skip, err = seekTail(f, tail); err != nil {
			return err
		}
	}
	in := bufio.NewReaderSize(f, 64<<10)
	var rest []byte
	var next *os.File // what f was rotated to; f is read to its end first
	last := false     // the container has ended: what is there now is all
	for {
		line, err := in.ReadBytes('\n')
		rest = append(rest, line...)
		if err == nil {
			if err := r.line(rest); err != nil {
				return err
			}
			rest = rest[:0]
			continue
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		if next != nil {
			f.Close()
			f, next, rest = next, nil, rest[:0]
			in.Reset(f)
			continue
		}
		if next = r.rotated(f, r.path); next != nil {
			continue // lines may have been written between the end that was seen and the rotation
		}
		if !follow || last {
			return nil
		}
		alive, err := running()
		if err != nil {
			return err
		}
		last = !alive
		t := time.NewTimer(100 * time.Millisecond)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

// openLog opens a log. Whoever may write into the directory of a pod's logs can put something else
// there: a link leads to any file that root can read, and opening a FIFO waits for its writer. The
// links that the kubelet makes lead to logs, and are not where a container's status says its log is.
func openLog(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("the log %s is a link and not a regular file; look at where it leads yourself", path)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("the log %s is not a regular file", path), err, f.Close())
	}
	return f, nil
}

// rotated opens the file that is at path now, and returns nil if that is f.
func rotated(f *os.File, path string) *os.File {
	a, err := f.Stat()
	if err != nil {
		return nil
	}
	b, err := os.Lstat(path)
	if err != nil || os.SameFile(a, b) {
		return nil
	}
	next, err := openLog(path)
	if err != nil {
		return nil
	}
	return next
}

// line prints one line of the log: TIME STREAM TAG TEXT.
func (r *logReader) line(b []byte) error {
	f := bytes.SplitN(b, []byte(" "), 4)
	if len(f) != 4 {
		return fmt.Errorf("%s has a line that is not in the CRI log format: %.60q", r.path, b)
	}
	w := r.out
	stream := string(f[1])
	if r.skip[stream] {
		r.skip[stream] = string(f[2]) == "P"
		return nil
	}
	if stream == "stderr" {
		w = r.err
	}
	text := f[3]
	if string(f[2]) == "P" {
		text = bytes.TrimSuffix(text, []byte("\n"))
	}
	if r.stamps && !r.partial[stream] {
		fmt.Fprintf(w, "%s ", f[0])
	}
	r.partial[stream] = string(f[2]) == "P"
	_, err := w.Write(text)
	return err
}

// seekTail moves f to the beginning of its last n lines. A line that was logged in parts counts as
// one. skip contains the streams that begin there with parts of an earlier line.
func seekTail(f *os.File, n int) (skip map[string]bool, err error) {
	type start struct {
		at   int64
		skip map[string]bool
	}
	ring := make([]start, 0, min(n, 1024))
	var pos int64
	count, partial := 0, map[string]bool{}
	for in := bufio.NewReaderSize(f, 64<<10); ; {
		line, err := in.ReadSlice('\n')
		head, size := line, int64(len(line))
		if errors.Is(err, bufio.ErrBufferFull) {
			head = bytes.Clone(line)
			for errors.Is(err, bufio.ErrBufferFull) {
				line, err = in.ReadSlice('\n')
				size += int64(len(line))
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if w := bytes.SplitN(head, []byte(" "), 4); len(w) == 4 {
			if stream := string(w[1]); n > 0 {
				if !partial[stream] {
					s := start{pos, maps.Clone(partial)}
					if len(ring) < n {
						ring = append(ring, s)
					} else {
						ring[count%n] = s
					}
					count++
				}
				partial[stream] = string(w[2]) == "P"
			}
		}
		pos += size
	}
	first := start{at: pos, skip: map[string]bool{}}
	switch {
	case count > n:
		first = ring[count%n]
	case count > 0:
		first = ring[0]
	}
	_, err = f.Seek(first.at, io.SeekStart)
	return first.skip, err
}
