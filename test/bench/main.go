// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// errMissed is the error of -strict.
var errMissed = errors.New("a threshold is not reached")

func command(ctx context.Context, args []string, out, progress io.Writer) error {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(progress)
	dir := f.String("out", "bench", "directory of RESULTS.md, results.json and the plots")
	build := f.String("build", "build", "directory with the output of `make tools build`")
	rounds := f.Int("rounds", 3, "rounds of each daemon")
	fast := f.Bool("quick", false, "do a little of everything, to try the bench; its figures mean nothing")
	only := f.String("only", "", "carry out only the steps whose title contains this, to work on them")
	setting := f.String("set", "", "KEY=VALUE: run berth with this setting, which is no longer as it ships; the results name it, use another -out")
	scale := f.Bool("scale", false, "measure how both daemons bear many pods instead, into SCALE.md and scale.json; -only NAME: one of them")
	pods := f.Int("pods", 500, "with -scale, pods with two containers each; a node with a tenth and with three tenths of them is measured as well")
	plot := f.Bool("plot", false, "measure nothing; write table and plots again from results.json")
	strict := f.Bool("strict", false, "fail when a threshold is not reached")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 || *rounds < 1 {
		return fmt.Errorf("arguments %q, %d rounds: the bench takes flags only, and at least one round", f.Args(), *rounds)
	}
	if *scale {
		if *pods < 2 {
			return fmt.Errorf("%d pods: -scale needs two at least", *pods)
		}
		return scaled(ctx, *build, *dir, *pods, *only, *plot, out, progress)
	}
	r, err := readResults(filepath.Join(*dir, "results.json"))
	if !*plot {
		r, err = measure(ctx, *build, *rounds, *fast, *only, *setting, progress)
	}
	if err != nil {
		return err
	}
	if err := report(*dir, r, !*plot); err != nil {
		return err
	}
	fmt.Fprint(out, markdown(r))
	if *strict && !allReached(verdicts(r)) {
		return errMissed
	}
	return nil
}

func measure(ctx context.Context, build string, rounds int, fast bool, only, setting string, progress io.Writer) (*results, error) {
	s := full(rounds)
	if fast {
		s = quick()
	}
	b := &bench{build: build, sizes: s, only: only, setting: setting, progress: progress, results: newResults(s)}
	return b.measured(ctx, b.run)
}

// measured runs f, and notes the machine and its load.
func (b *bench) measured(ctx context.Context, f func(context.Context) error) (_ *results, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the bench runs real containers and needs root")
	}
	if b.build, err = inside(b.build); err != nil {
		return nil, err
	}
	r := b.results
	r.Machine, r.Versions["runc"], r.Load[0] = machine(os.TempDir()), runcVersion(b.build), load()
	err = f(ctx)
	r.Load[1], r.Took = load(), time.Since(r.At).Round(time.Second).String()
	return r, err
}

// report writes all files, and the raw samples first. NOTES.md, if it exists, is what a person has
// to say about the figures, such as why a threshold is not reached; it becomes the end of
// RESULTS.md.
func report(dir string, r *results, raw bool) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if raw {
		if err := r.write(filepath.Join(dir, "results.json")); err != nil {
			return err
		}
	}
	notes, err := os.ReadFile(filepath.Join(dir, "NOTES.md"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(notes) > 0 {
		notes = append([]byte("\n## Notes\n\n"), notes...)
	}
	files := map[string]string{"RESULTS.md": markdown(r) + string(notes)}
	for name, svg := range plots(r) {
		files[name] = svg
	}
	for name, body := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o644); err != nil {
			return err
		}
	}
	return nil
}
