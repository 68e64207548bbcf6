// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"

	"berth/api/client"
)

// podLogs prints the logs of all containers of a pod, one after the other, and with follow their
// further lines and those of containers started later.
func podLogs(ctx context.Context, c *client.Client, pod object, opt logOptions) error {
	all, err := objects(ctx, c, true)
	if err != nil {
		return err
	}
	cts := containersOf(all, pod.id)
	if opt.follow {
		f := &podFollower{client: c, pod: pod, opt: opt, tags: newTags(opt.out), read: map[string]bool{}, last: map[string]chan struct{}{}}
		return f.run(ctx, all)
	}
	if len(cts) == 0 {
		return severalContainers(all, pod)
	}
	if len(cts) == 1 {
		return containerLog(ctx, c, cts[0], opt)
	}
	tags := newTags(opt.out)
	tags.several = true
	var errs []error
	slices.Reverse(cts) // the oldest first
	for _, ct := range cts {
		out, errOut := tags.writers(ct.name, opt.out, opt.err)
		with := opt
		with.out, with.err = out, errOut
		if err := containerLog(ctx, c, ct, with); err != nil {
			errs = append(errs, err)
		}
		out.end()
		errOut.end()
	}
	if len(errs) == len(cts) {
		return errors.Join(errs...)
	}
	for _, err := range errs { // the others have one
		fmt.Fprintln(opt.err, Visible(client.Explain(err).Error()))
	}
	return nil
}

type podFollower struct {
	client *client.Client
	pod    object
	opt    logOptions
	tags   *tags

	mu    sync.Mutex
	alive map[string]bool // by ID, as it was seen last: it may still write

	read map[string]bool // the attempts that are read, or were
	// by name: closed once the attempt that came last was read to its end
	last map[string]chan struct{}
	wg   sync.WaitGroup
}

// run follows the pod until it is stopped or removed and everything was read, or until ctx ends. A
// service that does not answer is asked again: it may be restarted.
func (f *podFollower) run(ctx context.Context, all []object) error {
	defer f.wg.Wait()
	away := ""
	for first := true; ; first = false {
		gone := f.look(ctx, all, first)
		if gone {
			return nil
		}
		for {
			if !pause(ctx, listEvery) {
				return nil
			}
			var err error
			if all, err = objects(ctx, f.client, true); err == nil {
				away = ""
				break
			}
			if text := client.Explain(err).Error(); text != away && ctx.Err() == nil {
				away = text
				f.say(fmt.Errorf("%s; trying again", text))
			}
		}
	}
}

// look begins to read the logs that are not read yet, and reports whether none can come any more.
func (f *podFollower) look(ctx context.Context, all []object, first bool) (gone bool) {
	pod, there := object{}, false
	for _, o := range all {
		switch {
		case !o.pod:
		case o.id == f.pod.id && (o.running || f.pod.old || !there):
			pod, there = o, true
		// its sandbox was made anew
		case o.full == f.pod.full && !o.old && !f.pod.old && !(there && pod.running):
			pod, there = o, true
		}
	}
	alive := map[string]bool{}
	var cts []object
	for _, o := range all {
		if !o.pod && o.podID == pod.id && there {
			alive[o.id] = o.running || o.created
			cts = append(cts, o)
		}
	}
	f.mu.Lock()
	f.alive = alive
	f.mu.Unlock()
	slices.Reverse(cts) // the earlier attempts first
	latest := map[string]uint32{}
	for _, o := range cts {
		latest[o.name] = max(latest[o.name], o.attempt)
	}
	f.tags.set(len(latest) > 1)
	for _, o := range cts {
		switch {
		case first && o.attempt < latest[o.name]:
			f.read[o.id] = true // it is not wanted
		case !o.created && !f.read[o.id]:
			f.follow(ctx, o, first)
		}
	}
	if !there || pod.running {
		return !there
	}
	for _, a := range alive {
		if a {
			return false
		}
	}
	return true
}

// follow reads the log of one attempt, after that of the attempt before. At first it waits until
// the existing lines were printed, so that the containers' lines do not mix.
func (f *podFollower) follow(ctx context.Context, o object, first bool) {
	path, err := logPath(ctx, f.client, o)
	if errors.Is(err, errNoLog) {
		f.read[o.id] = true
		f.say(err)
	}
	if err != nil {
		return // otherwise it is asked again
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) && f.aliveNow(o.id) {
		return // it is not there yet
	}
	before, done := f.last[o.name], make(chan struct{})
	f.read[o.id], f.last[o.name] = true, done
	caught := make(chan struct{})
	catch := sync.OnceFunc(func() { close(caught) })
	tail := f.opt.tail
	if !first {
		tail = -1
	}
	f.wg.Go(func() {
		defer close(done)
		defer catch()
		if before != nil {
			select {
			case <-before:
			case <-ctx.Done():
				return
			}
		}
		out, errOut := f.tags.writers(o.name, f.opt.out, f.opt.err)
		defer out.end()
		defer errOut.end()
		reader := &logReader{path: path, stamps: f.opt.stamps, since: f.opt.since, out: out, err: errOut}
		err := reader.read(ctx, tail, true, func() (bool, error) {
			catch()
			return f.aliveNow(o.id), nil
		})
		if err != nil {
			f.say(fmt.Errorf("container %s: %w", o.name, err))
		}
	})
	if first {
		<-caught
	}
}

func (f *podFollower) aliveNow(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alive[id]
}

// say prints an error of reading; the rest goes on.
func (f *podFollower) say(err error) {
	f.tags.mu.Lock()
	defer f.tags.mu.Unlock()
	fmt.Fprintln(f.opt.err, Visible(client.Explain(err).Error()))
}

// tags puts the names of containers before their lines.
type tags struct {
	mu      sync.Mutex // held while a line is written
	several bool       // otherwise there is nothing to tell apart
	colours bool
	of      map[string]int // the colour, by name
}

func newTags(out io.Writer) *tags {
	return &tags{
		colours: coloured(out),
		of:      map[string]int{},
	}
}

func (t *tags) set(several bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.several = t.several || several
}

// colours of names: those that can be read on a light and on a dark ground.
var colours = []int{36, 33, 35, 32, 34, 31}

// before returns the prefix of a line. The caller holds the lock.
func (t *tags) before(name string) string {
	if !t.several {
		return ""
	}
	text := "[" + Visible(name) + "] "
	if !t.colours {
		return text
	}
	if _, known := t.of[name]; !known {
		t.of[name] = colours[len(t.of)%len(colours)]
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", t.of[name], text)
}

// writers returns the writers for the lines of a container on its two outputs.
func (t *tags) writers(name string, out, err io.Writer) (stdout, stderr *namedWriter) {
	return &namedWriter{tags: t, name: name, w: out}, &namedWriter{tags: t, name: name, w: err}
}

// longestLine is how much of a line is kept until its end is known, in bytes. A longer line is
// printed in several.
const longestLine = 256 << 10

// namedWriter writes whole lines, each after the name of its container.
type namedWriter struct {
	tags *tags
	name string
	w    io.Writer
	line []byte // that is not complete yet
}

// Write prints the lines that are complete, and keeps the rest.
func (w *namedWriter) Write(p []byte) (int, error) {
	w.line = append(w.line, p...)
	for {
		i := bytes.IndexByte(w.line, '\n')
		if i < 0 {
			break
		}
		if err := w.print(w.line[:i+1]); err != nil {
			return 0, err
		}
		w.line = append(w.line[:0], w.line[i+1:]...)
	}
	if len(w.line) > longestLine {
		w.end()
	}
	return len(p), nil
}

// end prints an unfinished line.
func (w *namedWriter) end() {
	if len(w.line) > 0 {
		_ = w.print(append(w.line, '\n'))
		w.line = w.line[:0]
	}
}

func (w *namedWriter) print(line []byte) error {
	w.tags.mu.Lock()
	defer w.tags.mu.Unlock()
	_, err := w.w.Write(append([]byte(w.tags.before(w.name)), line...))
	return err
}
