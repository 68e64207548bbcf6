// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"berth/api/client"
	"berth/tools/page"
)

// pageSince is how far back the page goes by default.
const pageSince = 24 * time.Hour

func reportCommand(svc *service, pr *printer) *cobra.Command {
	since, force := pageSince, false
	cmd := &cobra.Command{
		Use:   "report FILE.html",
		Short: "Write what happened on the node as a page that opens without a network",
		Long: "Write what happened on the node, and how it is now, as one HTML file: a summary, and a row for each\n" +
			"workload, from left to right in time.\n" +
			"It opens in any browser, without a network. - is the standard output. With -o json it is the same as JSON, and FILE may\n" +
			"be left out.\n\n" +
			"The file has names, errors and the last lines of logs of containers that have crashed. Its mode is 0600.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 0 && pr.format != "json" || len(args) == 1 && args[0] == "" {
				return errors.New("name one file, such as report.html, or - for the standard output")
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&since, "since", since, "how far back it goes, such as 2h")
	cmd.Flags().BoolVar(&force, "force", false, "write over a file that is there")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if since <= 0 {
			return fmt.Errorf("--since %s is not positive", since)
		}
		if pr.format != "table" && pr.format != "json" {
			return fmt.Errorf("--output %q: a report is HTML, or json", pr.format)
		}
		path := "-"
		if len(args) == 1 {
			path = args[0]
		}
		if _, err := os.Lstat(path); err == nil && path != "-" && !force {
			return fmt.Errorf("%s is there; choose another name, or write over it with --force", path)
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			m, err := newCollector(c, since).model(ctx)
			if err != nil {
				return err
			}
			explainRows(ctx, c, &m)
			var doc bytes.Buffer
			if pr.format == "json" {
				e := json.NewEncoder(&doc)
				e.SetIndent("", "  ")
				err = e.Encode(m)
			} else {
				err = page.Write(&doc, m)
			}
			if err != nil {
				return err
			}
			if path == "-" {
				_, err := cmd.OutOrStdout().Write(doc.Bytes())
				return err
			}
			return writeWhole(path, doc.Bytes(), force)
		})
	}
	return cmd
}

// writeWhole writes a file of mode 0600, all of it or nothing. Unless force is set, a file that is
// there by then is an error and stays as it is.
func writeWhole(path string, data []byte, force bool) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".berth-report-*") // with mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name())
	}()
	if _, err := f.Write(data); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if force {
		err = os.Rename(f.Name(), path)
	} else {
		err = os.Link(f.Name(), path) // which takes no other's place
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
