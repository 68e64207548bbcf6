// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"berth/internal/base/version"
)

// manCommand writes the manual. It is hidden: packages call it.
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the pages of the manual, one for each command, into a directory",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil { // everybody may read a manual
				return err
			}
			root := cmd.Root()
			root.InitDefaultCompletionCmd()
			if f := root.PersistentFlags().Lookup("endpoint"); f != nil {
				f.DefValue = defaultEndpoint // regardless of the environment
			}
			var errs []error
			everyCommand(root, func(c *cobra.Command) {
				if c == root || c.IsAvailableCommand() {
					errs = append(errs, manPage(c, args[0]))
				}
			})
			return errors.Join(errs...)
		},
	}
}

// manPage writes the page of a command. It has no date, so that the same tree has the same pages.
func manPage(cmd *cobra.Command, dir string) error {
	cmd.DisableAutoGenTag = true // it contains the date of the build
	const never = "Jan 1970"
	day := time.Unix(0, 0).UTC()
	var page bytes.Buffer
	err := doc.GenMan(cmd, &doc.GenManHeader{Section: "8", Source: "berth " + version.Semantic(), Manual: "berth", Date: &day}, &page)
	if err != nil {
		return fmt.Errorf("write the manual of %s: %w", cmd.CommandPath(), err)
	}
	name := filepath.Join(dir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".8")
	return os.WriteFile(name, bytes.Replace(page.Bytes(), []byte(never), nil, 1), 0o644) // everybody may read a manual
}

// everyCommand calls f for a command and all those below it.
func everyCommand(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, c := range cmd.Commands() {
		everyCommand(c, f)
	}
}
