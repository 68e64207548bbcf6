// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
	"berth/internal/base/version"
	"berth/internal/history/recorder"
	"berth/tools/bundle"
)

const (
	// bundleSince is how far back a bundle goes by default, and bundleTimeout how long it may take:
	// answers that have not come by then are left out.
	bundleSince   = time.Hour
	bundleTimeout = time.Minute
)

func bundleCommand(svc *service) *cobra.Command {
	since, root := bundleSince, ""
	cmd := &cobra.Command{
		Use:   "bundle FILE",
		Short: "Write what happened on the node into a file that a report of a problem can have",
		Long: "Write what happened on the node, what each witness said of each exit, the state of pods and containers, and the settings\n" +
			"that are no text, into one file. berth's simulation can play it: see CONTRIBUTING.md. - is the standard output.\n\n" +
			"The file has the names of namespaces, pods, containers and images, and no commands, environment variables, annotations,\n" +
			"log lines, paths, credentials or texts of errors. Its mode is 0600, and no other file is written over.\n\n" +
			"--root DIR reads the timeline of a berth that does not run, which is kept in the directory DIR.",
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().DurationVar(&since, "since", since, "how far back it goes, such as 2h")
	cmd.Flags().StringVar(&root, "root", "", "the setting root of a berth that does not run")
	_ = cmd.MarkFlagDirname("root")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if since <= 0 {
			return fmt.Errorf("--since %s is not positive", since)
		}
		path := args[0]
		if path == "" {
			return errors.New("name a file, or - for the standard output")
		}
		if _, err := os.Lstat(path); err == nil && path != "-" {
			return fmt.Errorf("%s is there; choose another name", path)
		}
		now := time.Now()
		m := bundle.Manifest{
			Made:    now.UTC(),
			From:    now.Add(-since).UTC(),
			To:      now.UTC(),
			Version: version.String(),
			Kernel:  kernelRelease(),
		}
		if root != "" {
			b, err := storedBundle(m, root)
			if err != nil {
				return err
			}
			return writeBundle(cmd, path, b)
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			b, err := runningBundle(ctx, m, c)
			if err != nil {
				return err
			}
			return writeBundle(cmd, path, b)
		})
	}
	return cmd
}

// runningBundle makes a bundle from the answers of a running berth.
func runningBundle(ctx context.Context, m bundle.Manifest, c *client.Client) (*bundle.Bundle, error) {
	asking, cancel := context.WithTimeout(ctx, bundleTimeout)
	defer cancel()
	node, err := c.Node.State(asking, &berthv1.StateRequest{})
	if client.IsUnimplemented(err) {
		return nil, fmt.Errorf("the service makes no bundles; it is an earlier berth, or another runtime: %w", err)
	}
	if err != nil {
		return nil, err
	}
	m.Version, m.Running = node.GetVersion(), true
	b := bundle.New(m, node)
	for after := uint64(0); ; {
		batch, err := c.Node.Records(asking, &berthv1.RecordsRequest{After: after, Since: timestamppb.New(m.From)})
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			b.Miss("The timeline could not be read any further: the service has not answered within %s.", bundleTimeout)
			return b, nil
		}
		if batch.GetMissing() != "" {
			b.Miss("The timeline is not complete: %s.", batch.GetMissing())
		}
		for _, r := range batch.GetRecords() {
			b.Add(bundle.NamesOf(r.GetOf()), []byte(r.GetEntry()))
		}
		if !batch.GetMore() || batch.GetLast() <= after {
			return b, nil
		}
		after = batch.GetLast()
	}
}

// storedBundle makes a bundle from the files of a berth that does not run.
func storedBundle(m bundle.Manifest, root string) (*bundle.Bundle, error) {
	b := bundle.New(m, nil)
	missing, err := recorder.Stored(filepath.Join(root, "timeline"), m.From, func(r recorder.Record) { b.Add(r.Of, r.Entry) })
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: is %s the setting root of a berth, and is timeline.max_mib more than 0?", err, root)
	}
	if err != nil {
		return nil, err
	}
	b.Miss("No berth was asked: the state of pods and containers, and the settings, are not there.")
	for range missing { // the texts name files and errors
		b.Miss("A file of the timeline cannot be read to its end.")
	}
	return b, nil
}

func writeBundle(cmd *cobra.Command, path string, b *bundle.Bundle) error {
	var doc bytes.Buffer
	if err := b.Write(&doc); err != nil {
		return err
	}
	if path == "-" {
		_, err := cmd.OutOrStdout().Write(doc.Bytes())
		return err
	}
	if err := writeWhole(path, doc.Bytes(), false); err != nil {
		return err
	}
	out := cmd.ErrOrStderr()
	fmt.Fprintf(out, "%s has %d entries of the timeline and %d records.\n", path, b.Manifest.Entries, b.Manifest.Records)
	for _, miss := range b.Manifest.Missing {
		fmt.Fprintln(out, miss)
	}
	return nil
}

// kernelRelease is the release of the running kernel, which is that of the service.
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
