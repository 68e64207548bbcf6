// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/imageverifier/bindir"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/ops"
)

// runVerifiers runs the programs of a directory, as containerd's plug-in
// io.containerd.image-verifier does: all have to end with 0. Each has a time-out, and is killed
// with its children. errUnsigned: one has ended with another code.
func runVerifiers(ctx context.Context, dir string, timeout time.Duration, n name, target ocispec.Descriptor) error {
	if _, err := verifiers(dir); err != nil {
		return err
	}
	cfg := bindir.Config{BinDir: dir, MaxVerifiers: -1}
	setDuration(&cfg.PerVerifierTimeout, timeout)
	ctx, op := ops.Begin(ctx, ops.Work{Kind: ops.Plugin, What: "an image verifier of " + dir})
	defer op.End()
	j, err := bindir.NewImageVerifier(&cfg).VerifyImage(ctx, n.full, target)
	switch {
	case err != nil:
		return fmt.Errorf("%w; each program has %s", err, timeout)
	case ctx.Err() != nil: // a program that was cut off has not answered, whichever code it ended with
		return fmt.Errorf("the verifiers of %s took too long: %w", dir, ctx.Err())
	case !j.OK:
		return errUnsigned{j.Reason}
	}
	return nil
}

// setDuration sets a setting whose type has no name here.
func setDuration[T ~int64](to *T, d time.Duration) { *to = T(d) }

// verifiers lists the programs of a directory. A directory that is not there, or empty, would let
// everything in, and a file that others may write to could be any program.
func verifiers(dir string) ([]os.FileInfo, error) {
	st, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("verifier_dir: %w", err)
	}
	if err := checkWriters(dir, st); err != nil {
		return nil, fmt.Errorf("verifier_dir: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) == 0 {
		err = errors.New("it has no programs")
	}
	if err != nil {
		return nil, fmt.Errorf("verifier_dir %s: %w", dir, err)
	}
	var programs []os.FileInfo
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		st, err := os.Stat(path)
		if err == nil {
			err = checkWriters(path, st)
		}
		if err == nil && (!st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0) {
			err = fmt.Errorf("%s is not a program", path)
		}
		if err != nil {
			return nil, fmt.Errorf("verifier_dir: %w", err)
		}
		programs = append(programs, st)
	}
	return programs, nil
}

// identifyVerifiers returns a text that differs when the programs of a directory do.
func identifyVerifiers(dir string) (string, error) {
	programs, err := verifiers(dir)
	if err != nil {
		return "", err
	}
	var all strings.Builder
	fmt.Fprintf(&all, "%s\n", dir)
	for _, p := range programs {
		fmt.Fprintf(&all, "%q %d %d\n", p.Name(), p.Size(), p.ModTime().UnixNano())
	}
	return all.String(), nil
}
