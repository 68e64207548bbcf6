// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
)

// ofRuntimes are the titles of the steps in which the OCI runtime has a part.
var ofRuntimes = []string{"memory and pods at once", "operations", "exec", "exits, polled"}

// runRuntimes measures berth by turns with runc and with another OCI runtime: a program in PATH, or the
// path of one.
func (b *bench) runRuntimes(ctx context.Context, other string) error {
	path, err := exec.LookPath(other)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return fmt.Errorf("-runtime %s: %w", other, err)
	}
	version, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return fmt.Errorf("-runtime %s: ask it for its version: %w", other, err)
	}
	version, _, _ = bytes.Cut(version, []byte("\n"))
	b.out.printf("# %s\n", version)
	stop, err := b.serve(1)
	if err != nil {
		return err
	}
	defer stop()
	steps := slices.DeleteFunc(b.round(), func(s step) bool { return !slices.Contains(ofRuntimes, s.title) })
	if len(steps) != len(ofRuntimes) {
		return fmt.Errorf("a round has %d of the steps %q", len(steps), ofRuntimes)
	}
	type way struct {
		kind
		runtime string
	}
	name := filepath.Base(path)
	if name == "runc" {
		name = "other"
	}
	order := []way{{kinds[0], "runc"}, {with(kinds[0], "runtimes.runc.binary="+path), name}}
	for i := range b.rounds {
		for _, w := range order {
			if err := b.measure(ctx, w.kind, fmt.Sprintf("round %d of %d, %s", i+1, b.rounds, w.runtime), "/runtime="+w.runtime, steps); err != nil {
				return err
			}
		}
		slices.Reverse(order)
	}
	return nil
}
