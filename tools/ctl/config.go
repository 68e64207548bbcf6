// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/base/config"
)

const defaultConfig = "/etc/berth/config.toml"

// load reads a configuration file with its drop-in files. Without a name it reads the file of the
// user's berth, if there is one, or the default one, which need not exist.
func load(file string) (config.Loaded, error) {
	if file == "" {
		return config.LoadIfThere(cmp.Or(usersSettings(), defaultConfig))
	}
	return config.Load(file)
}

func configCommand(check Check) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Print the default configuration, or check or print a file"}
	cmd.AddCommand(
		&cobra.Command{
			Use:   "default",
			Short: "Print all settings with their defaults and what they mean",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return config.WriteDefault(cmd.OutOrStdout())
			},
		},
		&cobra.Command{
			Use:   "show [FILE]",
			Short: "Print a configuration file with its drop-in files, completed with the defaults",
			Args:  cobra.MaximumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				c, err := load(strings.Join(args, ""))
				if err != nil {
					return err
				}
				return c.Write(cmd.OutOrStdout())
			},
		},
		&cobra.Command{
			Use:   "check [FILE]",
			Short: "Check a configuration file and its drop-in files",
			Long: "Check whether berth can start with a configuration file and its drop-in files on this host: the values, the permissions of\n" +
				"the files, the directories, and the programs of runtime handlers. Whatever serve refuses is an error here.",
			Args: cobra.MaximumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				c, err := load(strings.Join(args, ""))
				if err == nil {
					err = errors.Join(slices.Concat(c.CheckFiles(), config.CheckRegistries(c.Image.RegistryDir), []error{c.Check()})...)
				}
				if err == nil && check != nil {
					err = check(c.Config)
				}
				if err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), "the configuration is valid")
				for _, warning := range c.Retired() {
					fmt.Fprintln(cmd.OutOrStdout(), warning)
				}
				if len(c.Files) == 1 {
					return nil
				}
				for _, f := range c.Files {
					fmt.Fprintf(cmd.OutOrStdout(), "%s sets %s\n", f, cmp.Or(strings.Join(c.SetBy(f), ", "), "nothing that holds"))
				}
				return nil
			},
		},
	)
	return cmd
}
