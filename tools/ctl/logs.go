// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/internal/base/inroot"
)

func logsCommand(svc *service) *cobra.Command {
	var o logOptions
	var container, since string
	cmd := &cobra.Command{
		Use:   "logs NAME|ID [CONTAINER]",
		Short: "Print the output of a container, or of all containers of a pod",
		Long: "Print the output of a container, or of all containers of a pod. If a pod has several, each line begins with the name\n" +
			"of its container, in a colour on a terminal unless NO_COLOR is set. With --follow, a container is followed until\n" +
			"it ends. A pod is followed until it is stopped or removed: containers that are started or restarted meanwhile are\n" +
			"followed, too.",
		Example:           "  berth logs -f web\n  berth logs -p web -c nginx\n  berth logs --since 10m default/web/nginx",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: svc.complete(pods, containers, one),
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "follow the output until the container ends or the pod is stopped")
	cmd.Flags().BoolVarP(&o.stamps, "timestamps", "t", false, "print the time of each line")
	cmd.Flags().IntVarP(&o.tail, "tail", "n", -1, "print only this many of the last lines, of each container")
	cmd.Flags().StringVar(&since, "since", "", "print only what is not older, such as 10m or 2026-01-02T15:04:05Z")
	cmd.Flags().BoolVarP(&o.previous, "previous", "p", false, "print the output of the attempt before the latest one")
	cmd.Flags().StringVarP(&container, "container", "c", "", "the container of the pod NAME")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if o.since, err = parseSince(since); err != nil {
			return err
		}
		if o.previous && o.follow {
			return errors.New("--previous and --follow exclude each other: an earlier attempt writes nothing any more")
		}
		switch {
		case len(args) == 2 && container != "":
			return fmt.Errorf("the container is named twice: %s and -c %s", args[1], container)
		case len(args) == 2:
			container = args[1]
		}
		o.out, o.err = raw(cmd.OutOrStdout()), raw(cmd.ErrOrStderr()) // as the container wrote it
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			if container != "" {
				ct, err := resolveIn(ctx, c, args[0], container)
				if err != nil {
					return err
				}
				return containerLog(ctx, c, ct, o)
			}
			found, err := resolveLogs(ctx, c, args[0])
			if err != nil {
				return err
			}
			if found.pod {
				return podLogs(ctx, c, found, o)
			}
			return containerLog(ctx, c, found, o)
		})
	}
	return cmd
}

// logOptions selects the lines of a log to print, and the outputs.
type logOptions struct {
	follow, stamps, previous bool
	tail                     int // negative: all
	since                    time.Time
	out, err                 io.Writer
}

// parseSince reads an instant, or how long ago it was.
func parseSince(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return time.Now().Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	return time.Time{}, fmt.Errorf("--since %q is neither a duration, such as 10m, nor an instant, such as 2026-01-02T15:04:05Z", s)
}

// resolveLogs finds the container or the pod whose output is wanted. A pod that has a container of
// its own name means itself, with all its containers.
func resolveLogs(ctx context.Context, c *client.Client, what string) (object, error) {
	found, err := resolve(ctx, c, what, true, true)
	if err == nil || what == "" {
		return found, err
	}
	all, lerr := objects(ctx, c, true)
	if lerr != nil {
		return object{}, lerr
	}
	isPod := func(o object) bool { return o.pod }
	cts := slices.DeleteFunc(slices.Clone(all), isPod)
	pods := slices.DeleteFunc(all, func(o object) bool { return !o.pod })
	pod, perr := pick(pods, what, true)
	ct, cerr := pick(cts, what, true)
	if perr == nil && cerr == nil && ct.podID == pod.id {
		return pod, nil
	}
	return object{}, err
}

// containerLog prints the log of one attempt of a container.
func containerLog(ctx context.Context, c *client.Client, o object, opt logOptions) error {
	if opt.previous {
		var err error
		if o, err = previous(ctx, c, o); err != nil {
			return err
		}
	}
	path, err := logPath(ctx, c, o)
	if err != nil {
		return err
	}
	r := &logReader{path: path, stamps: opt.stamps, since: opt.since, out: opt.out, err: opt.err}
	running := func() (bool, error) {
		st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: o.id})
		return err == nil && st.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING, err
	}
	return r.read(ctx, opt.tail, opt.follow, running)
}

// logPath asks where the log of a container is.
func logPath(ctx context.Context, c *client.Client, o object) (string, error) {
	st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: o.id})
	if err != nil {
		return "", err
	}
	if path := st.GetStatus().GetLogPath(); path != "" {
		return path, nil
	}
	return "", fmt.Errorf("container %s %w", o.name, errNoLog)
}

var errNoLog = errors.New("has no log, because it was created without a log path")

// previous returns the attempt of a container that was before this one.
func previous(ctx context.Context, c *client.Client, o object) (object, error) {
	all, err := objects(ctx, c, true)
	if err != nil {
		return object{}, err
	}
	for _, p := range all { // the latest comes first
		if !p.pod && p.full == o.full && p.podID == o.podID && p.attempt < o.attempt {
			return p, nil
		}
	}
	return object{}, fmt.Errorf("container %s (%s) has no previous attempt; it is attempt %d, and earlier ones are not there any more", o.full, short(o.id), o.attempt)
}

// logReader prints a log in the CRI format.
type logReader struct {
	path     string
	stamps   bool
	since    time.Time // older lines are left out
	out, err io.Writer
	partial  map[string]bool // streams whose last line is unfinished
	// streams whose next parts belong to a line before the tail
	skip    map[string]bool
	rotated func(f *os.File, path string) *os.File // the function of that name; tests wrap it
}

// maxLogLine bounds a line that is read, in bytes. A longer one is not a log: a file that was cut
// short while it was being written can begin with a hole of its old length.
const maxLogLine = 64 << 20

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
	var next *os.File // the file after a rotation; f is read to its end first
	last := false     // the container has ended: no more lines will come
	for {
		line, err := in.ReadSlice('\n')
		rest = append(rest, line...)
		if errors.Is(err, bufio.ErrBufferFull) {
			if len(rest) > maxLogLine {
				return fmt.Errorf("%s has a line of more than %d bytes, which is not in the CRI log format: %.60q", r.path, maxLogLine, rest)
			}
			continue
		}
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

// openLog opens the log at a path from a container's status. The kubelet and berth play give each
// container a directory in that of its pod: no link from there on is followed. The links that the
// kubelet makes lead to logs, but are not the paths in a container's status.
func openLog(path string) (*os.File, error) {
	container, file := filepath.Split(filepath.Clean(path))
	pod, name := filepath.Split(filepath.Clean(container))
	f, err := inroot.OpenLog(filepath.Clean(pod), filepath.Join(name, file))
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("the log %s is a link and not a regular file; look at where it leads yourself", path)
	}
	return f, err
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
	if !r.since.IsZero() && !r.partial[stream] {
		if at, err := time.Parse(time.RFC3339Nano, string(f[0])); err == nil && at.Before(r.since) {
			r.skip[stream] = string(f[2]) == "P"
			return nil
		}
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
