// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/serve/access"
)

func auditCommand(pr *printer) *cobra.Command {
	cmd := &cobra.Command{Use: "audit", Short: "Check the record of who used containers"}
	cmd.AddCommand(auditVerifyCommand(pr))
	return cmd
}

// exitBroken is the exit code of audit verify for a chain that is broken.
const exitBroken = 3

func auditVerifyCommand(pr *printer) *cobra.Command {
	var head string
	cmd := &cobra.Command{
		Use:   "verify FILE...",
		Short: "Check that no line of an audit file was changed, inserted or taken out",
		Long: "Check that no line of an audit file was changed, inserted or taken out. Files that were renamed are given in their order, the oldest first.\n" +
			"What was taken from the end is seen with --head, the hash that an earlier check has printed. The exit code is 3 if a line is not\n" +
			"what it was, and 1 if a file cannot be read.",
		Args: cobra.MinimumNArgs(1),
	}
	cmd.Flags().StringVar(&head, "head", "", "hash of a line that has to be there, of an earlier check")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		v := access.NewVerifier(head)
		for _, path := range args {
			if err := addFile(v, path); err != nil {
				return err
			}
		}
		r, err := v.Result()
		if err != nil {
			return exitError{exitBroken, err}
		}
		return pr.print(cmd.OutOrStdout(), r, func(w *tabwriter.Writer) {
			fmt.Fprintf(w, "lines\t%d, whole and in their order\n", r.Lines)
			if r.Lines > 0 {
				fmt.Fprintf(w, "from\t%s\n", r.From.Local().Format(time.DateTime))
				fmt.Fprintf(w, "to\t%s\n", r.To.Local().Format(time.DateTime))
			}
			if r.Before != "" {
				fmt.Fprintln(w, "begins\twith a later file; the one before it was not given")
			}
			if r.Torn > 0 {
				fmt.Fprintf(w, "torn\t%d, where the power was cut\n", r.Torn)
			}
			if r.Missing > 0 {
				fmt.Fprintf(w, "missing\t%d, which the disk did not take\n", r.Missing)
			}
			fmt.Fprintf(w, "head\t%s\n", r.Head)
		})
	}
	return cmd
}

func addFile(v *access.Verifier, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = v.Add(f)
	var broken access.Broken
	if errors.As(err, &broken) {
		return exitError{exitBroken, fmt.Errorf("%s is not what was written: %w", path, err)}
	}
	return err
}
