// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth/tools/install"
)

func installCommand() *cobra.Command {
	var o install.Options
	var uninstall bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install berth from an unpacked archive, upgrade it, or uninstall it",
		Long: "Install what is in the unpacked archive that this berth is in: programs, systemd units, manual, completion, and " +
			"/etc/berth/config.toml unless it is there. A berth that was installed so and runs is restarted; its pods live on. " +
			"What was written is on record in PREFIX/share/berth/installed, and --uninstall removes exactly that, but no file that " +
			"was changed.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			o.From = cmp.Or(o.From, filepath.Join(filepath.Dir(exe), ".."))
			if o.Root, err = filepath.Abs(cmp.Or(o.Root, "/")); err != nil {
				return err
			}
			o.Out = cmd.OutOrStdout()
			if _, err := os.Stat("/run/systemd/system"); err == nil && o.Root == "/" {
				o.Systemctl = systemctl
			}
			if uninstall {
				return install.Uninstall(cmd.Context(), o)
			}
			return install.Install(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&o.Prefix, "prefix", "/usr/local", "install below this directory")
	cmd.Flags().StringVar(&o.Root, "root", "", "take this directory for the root of the host, as packages are made (default /)")
	cmd.Flags().StringVar(&o.From, "from", "", "the unpacked archive (default: the one that this berth is in)")
	cmd.Flags().BoolVar(&uninstall, "uninstall", false, "remove what was installed, and say what stays")
	cmd.Flags().BoolVar(&o.Force, "force", false, "replace files that others wrote, install although the configuration cannot be used, or uninstall although berth or pods run")
	for _, dir := range []string{"prefix", "root", "from"} {
		_ = cmd.MarkFlagDirname(dir)
	}
	return cmd
}

func systemctl(ctx context.Context, args ...string) (string, error) {
	var problem bytes.Buffer
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("systemctl %s: %w: %s", args[0], err, bytes.TrimSpace(problem.Bytes()))
	}
	return string(out), err
}
