// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/config"
)

const defaultConfig = "/etc/berth/config.toml"

// load reads a configuration file. Without a name it reads the default one, which need not exist.
func load(file string) (config.Config, error) {
	if file == "" {
		if _, err := os.Stat(defaultConfig); err != nil {
			return config.Default(), nil //nolint:nilerr // the defaults hold
		}
		file = defaultConfig
	}
	return config.Load(file)
}

func configCommand() *cobra.Command {
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
			Short: "Print a configuration file completed with the defaults",
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
			Short: "Check a configuration file",
			Args:  cobra.MaximumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				file := strings.Join(args, "")
				c, err := load(file)
				if err == nil {
					err = errors.Join(c.Check(), config.CheckFile(cmp.Or(file, defaultConfig), c))
				}
				if err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), "the configuration is valid")
				return nil
			},
		},
	)
	return cmd
}
