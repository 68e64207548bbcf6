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

// ofRuntimes are the titles of the steps of a round in which the OCI runtime does some of the work.
var ofRuntimes = []string{"memory and pods at once", "operations", "exec", "exits, polled"}

// runRuntimes measures berth with runc and with another OCI runtime, by turns. other is the name of
// a program in PATH, or the path of one.
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
	name := filepath.Base(path)
	if name == "runc" {
		name = "other"
	}
	own := kinds[0]
	own.prepare = func(n *node) ([]string, error) {
		command, err := prepareBerth(n)
		return append(command, "--set", "runtimes.runc.binary="+path), err
	}
	return b.byTurns(ctx, []way{{kinds[0], "runc"}, {own, name}}, "runtime", steps...)
}
