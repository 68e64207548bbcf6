// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth/tools/manifest"
	"berth/tools/rootless"
)

// insideName is the hidden command that berth rootless starts in the namespaces.
const insideName = "inside-user-namespace"

func rootlessCommand() *cobra.Command {
	var program bool
	cmd := &cobra.Command{
		Use:   "rootless COMMAND [ARG...]",
		Short: "Run a command of berth, such as serve or demo, as a user without root",
		Long: "Run a command of berth, such as serve or demo, in namespaces in which the user who calls it is root. " +
			"serve keeps its state below ~/.local/share/berth and reads ~/.config/berth/config.toml; the other commands of berth " +
			"find its socket. It needs a cgroup of the user's own, IDs in /etc/subuid and /etc/subgid, and the programs newuidmap and " +
			"newgidmap; with the program slirp4netns, pods and pulls reach the networks of the host. Pods end with the command.",
		Example:           "  systemd-run --user --scope -p Delegate=yes berth rootless serve",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: oneOf([]string{"serve", "demo"}),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := rootless.Options{Inside: []string{insideName, "--"}, Err: cmd.ErrOrStderr()}
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			switch {
			case program:
				if o.Program, err = exec.LookPath(args[0]); err != nil {
					return err
				}
				o.Args = args
			case args[0] == "serve":
				o.Program, o.Restart = exe, true
				if o.Args, err = usersService(args[1:]); err != nil {
					return err
				}
			default:
				o.Program, o.Args = exe, append([]string{"berth"}, args...)
			}
			return exited(rootless.Run(o))
		},
	}
	cmd.Flags().SetInterspersed(false) // arguments after COMMAND are the command's
	cmd.Flags().BoolVar(&program, "program", false, "COMMAND is another program than berth, such as a shell")
	return cmd
}

// insideCommand is for rootless alone.
func insideCommand() *cobra.Command {
	return &cobra.Command{
		Use:               insideName,
		Short:             "Do the part of rootless that is done in the namespaces",
		Hidden:            true,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			return exited(rootless.Inside(args))
		},
	}
}

// exited returns an exit code as an error without a text.
func exited(code int, err error) error {
	if err == nil && code != 0 {
		return exitError{code: code}
	}
	return err
}

// usersService returns the command line of the service of a user. The user's arguments come last,
// and take precedence.
func usersService(args []string) ([]string, error) {
	root, settings, address := filepath.Join(rootless.Data(), "lib"), filepath.Join(rootless.Settings(), "config.toml"), rootless.Address()
	for _, dir := range []string{root, filepath.Dir(settings), filepath.Dir(address)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(settings, os.O_RDONLY|os.O_CREATE, 0o600) // the user's own settings, and not the host's
	if err != nil {
		return nil, fmt.Errorf("open the settings of the user's berth: %w", err)
	}
	_ = f.Close()
	command := []string{
		"berth", "serve",
		"--config", settings,
		"--root", root,
		"--address", address,
		"--cni-conf-dir", filepath.Join(rootless.Settings(), "net.d"),
	}
	// The loopback of the namespaces is out of reach.
	command = append(command, "--"+streamsBeside)
	return append(command, args...), nil
}

// usersEndpoint returns the socket of the berth of a user who is not root, if there is one.
func usersEndpoint() string {
	if os.Getuid() == 0 {
		return ""
	}
	address := rootless.Address()
	if _, err := os.Stat(address); err != nil {
		return ""
	}
	return address
}

// usersSettings returns the settings of the berth of a user who is not root, if there are some.
func usersSettings() string {
	if os.Getuid() == 0 {
		return ""
	}
	file := filepath.Join(rootless.Settings(), "config.toml")
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	return file
}

// usersDir returns a directory of the user's berth if the user is not root, and otherwise that of
// the host.
func usersDir(name, host string) string {
	if os.Getuid() == 0 {
		return host
	}
	return filepath.Join(rootless.Data(), name)
}

// volumeDirFlag adds the flag that names the directory of emptyDir volumes: the commands that make
// volumes and those that remove them have the same default, which for a user without root is the
// user's own.
func volumeDirFlag(cmd *cobra.Command, dir *string) {
	*dir = usersDir("volumes", manifest.DefaultVolumeDir)
	cmd.Flags().Var((*absolutePath)(dir), "volume-dir", "directory for emptyDir volumes")
}

// absolutePath is a flag with a path, which may be relative to the directory of the command. The
// service has another one.
type absolutePath string

// String implements pflag.Value.
func (p *absolutePath) String() string { return string(*p) }

// Type implements pflag.Value.
func (p *absolutePath) Type() string { return "string" }

// Set implements pflag.Value.
func (p *absolutePath) Set(s string) error {
	abs, err := absolute(s)
	*p = absolutePath(abs)
	return err
}

// absolute returns a path that is relative to the directory of the command as the service has it.
// An empty one, such as a variable that is not set, does not stand for that directory.
func absolute(path string) (string, error) {
	if path == "" {
		return "", errors.New("a path is empty")
	}
	return filepath.Abs(path)
}

// removeVolumes removes the emptyDir volumes of a pod. Files that the containers of a user without
// root made in them belong to IDs that exist only in a user namespace.
func removeVolumes(dir, uid string) error {
	err := manifest.RemoveVolumes(dir, uid)
	if !errors.Is(err, fs.ErrPermission) || os.Getuid() == 0 {
		return err
	}
	return rootless.RemoveAll(filepath.Join(dir, uid))
}
