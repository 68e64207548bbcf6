// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
)

func (a *app) logsCommand() *cobra.Command {
	var follow, stamps bool
	var tail int
	cmd := &cobra.Command{Use: "logs NAME|ID", Short: "Show a container's output", Args: cobra.ExactArgs(1)}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the container ends")
	cmd.Flags().BoolVarP(&stamps, "timestamps", "t", false, "with each line's time")
	cmd.Flags().IntVar(&tail, "tail", -1, "only the last lines")
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
				return fmt.Errorf("container %s keeps no log: it was created without a log path", o.name)
			}
			r := &logReader{path: path, stamps: stamps, out: cmd.OutOrStdout(), err: cmd.ErrOrStderr()}
			running := func() (bool, error) {
				st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: o.id})
				return err == nil && st.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING, err
			}
			return r.read(ctx, tail, follow, running)
		})
	}
	return cmd
}

// logReader prints a CRI log.
type logReader struct {
	path     string
	stamps   bool
	out, err io.Writer
	partial  map[string]bool // streams whose last line was a part
}

// read prints the log from its last tail lines (all, if negative) and follows it, across rotation, while running
// says so.
func (r *logReader) read(ctx context.Context, tail int, follow bool, running func() (bool, error)) error {
	r.partial = map[string]bool{}
	f, err := os.Open(r.path)
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	if tail >= 0 {
		if err := seekTail(f, tail); err != nil {
			return err
		}
	}
	in := bufio.NewReaderSize(f, 64<<10)
	var rest []byte
	last := false // the container has ended: what is there now is all
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
		if next := rotated(f, r.path); next != nil {
			f.Close()
			f = next
			in.Reset(f)
			continue
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

// rotated opens the file that is at path now, if f is another one.
func rotated(f *os.File, path string) *os.File {
	a, err := f.Stat()
	if err != nil {
		return nil
	}
	b, err := os.Stat(path)
	if err != nil || os.SameFile(a, b) {
		return nil
	}
	next, err := os.Open(path)
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

// seekTail puts f before its last n lines, reading backwards.
func seekTail(f *os.File, n int) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return err
	}
	buf := make([]byte, 32<<10)
	pos, lines := end, 0
	for pos > 0 {
		size := min(int64(len(buf)), pos)
		pos -= size
		if _, err := f.ReadAt(buf[:size], pos); err != nil {
			return err
		}
		for i := size - 1; i >= 0; i-- {
			if buf[i] == '\n' && pos+i != end-1 {
				if lines++; lines == n {
					_, err := f.Seek(pos+i+1, io.SeekStart)
					return err
				}
			}
		}
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}
