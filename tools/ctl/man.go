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

	"berth/internal/base/config"
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
			errs := []error{manConfig(args[0])}
			everyCommand(root, func(c *cobra.Command) {
				if c == root || c.IsAvailableCommand() {
					errs = append(errs, manPage(c, args[0]))
				}
			})
			return errors.Join(errs...)
		},
	}
}

// exitStatus describes the exit codes of a command. docs/cli.md has them for all.
func exitStatus(cmd *cobra.Command) string {
	const usual = "0 if it succeeded, 1 if it failed, 130 if Ctrl-C or SIGTERM ended it."
	switch cmd.Name() {
	case "exec", "attach", "run", "play":
		return "That of the command or the container; 128 and the number of the signal that ended it; 127 if the program is not there, " +
			"126 if it cannot be executed, 125 if berth itself failed. " + usual
	case "status", "doctor", "verify":
		return usual + " 3 if it found something wrong: the node is not ready, the machine has an error, or a line was changed."
	}
	return usual
}

// manConfig writes berth-config(5): each setting with its default and its meaning.
func manConfig(dir string) error {
	var settings bytes.Buffer
	if err := config.WriteDefault(&settings); err != nil {
		return err
	}
	var page bytes.Buffer
	fmt.Fprintf(&page, ".TH BERTH-CONFIG 5 \"\" \"berth %s\" berth\n.SH NAME\nberth-config - the settings of berth\n.SH DESCRIPTION\n"+
		"%s is a TOML file, and the files of /etc/berth/conf.d are merged with it, key by key. These are all settings with their defaults. "+
		"\\fBberth config check\\fP checks the files.\n.SH SETTINGS\n.nf\n", version.Semantic(), defaultConfig)
	for line := range strings.Lines(settings.String()) {
		page.WriteString(`\&` + strings.ReplaceAll(line, `\`, `\e`))
	}
	page.WriteString(".fi\n.SH SEE ALSO\nberth(8), berth-config-check(8)\n")
	if filepath.Base(dir) == "man8" {
		dir = filepath.Join(filepath.Dir(dir), "man5")
		if err := os.MkdirAll(dir, 0o755); err != nil { // everybody may read a manual
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "berth-config.5"), page.Bytes(), 0o644) // everybody may read a manual
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
	fmt.Fprintf(&page, "\n.SH EXIT STATUS\n.nh\n.PP\n%s\n.SH FILES\n", exitStatus(cmd))
	for _, f := range [][2]string{
		{defaultConfig, "settings; berth-config(5)"},
		{"/etc/berth/conf.d/*.toml", "settings that are merged with them"},
		{defaultEndpoint, "the socket that the commands speak to"},
		{"/var/lib/berth", "records, images, layers and the history"},
		{"/run/berth", "state that a reboot may take"},
		{"/var/log/pods", "logs of containers"},
	} {
		fmt.Fprintf(&page, ".TP\n%s\n%s\n", f[0], f[1])
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
