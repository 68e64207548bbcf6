// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	mobyterm "github.com/moby/term"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"berth/api/client"
)

func execCommand(svc *service) *cobra.Command {
	var interactive, tty bool
	var container string
	cmd := &cobra.Command{
		Use:   "exec NAME|ID [--] COMMAND [ARG...]",
		Short: "Run a command in a container",
		Long: "Run a command in a container that runs, and exit with its exit code. With --interactive it gets the standard\n" +
			"input, with --tty a terminal. With both, everything that is typed goes to the command, Ctrl-C too. A command\n" +
			"that is cut off, by Ctrl-C without --tty or by the end of the connection, is killed.\n\n" +
			"NAME is a container, POD/CONTAINER, NAMESPACE/POD/CONTAINER, or a pod: of several containers that run, the first one\n" +
			"is taken, which is said.\n" +
			"What comes after the command is the command's; -- before it may be left out.\n\n" +
			"The exit code is 127 if the command is not there, 126 if it cannot be executed, and 125 if berth itself failed.",
		Example:           "  berth exec web -- ls -l /etc\n  berth exec -it web sh\n  berth exec web -it -c nginx -- sh",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: svc.complete(containers, running, one),
	}
	cmd.Flags().SetInterspersed(false) // arguments after the container are the command's
	cmd.Flags().BoolVarP(&interactive, "interactive", "i", false, "pass the standard input on")
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "give the command a terminal")
	cmd.Flags().StringVarP(&container, "container", "c", "", "the container of the pod NAME")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		command, err := commandOf(cmd, args[1:])
		if err != nil {
			return err
		}
		if help, _ := cmd.Flags().GetBool("help"); help { // it came after the name
			return cmd.Help()
		}
		if len(command) == 0 {
			return errors.New("no command is given; name the container, and then the command")
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			o, err := resolveRunning(ctx, c, args[0], container, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			s := session{out: raw(cmd.OutOrStdout()), err: raw(cmd.ErrOrStderr())}
			if tty {
				s.err = nil // a terminal has one output
			}
			if interactive {
				s.in = cmd.InOrStdin()
			}
			err = talk(ctx, svc, &s, tty, cmd.InOrStdin(), func() (string, error) {
				resp, err := c.Exec(ctx, &runtimeapi.ExecRequest{
					ContainerId: o.id,
					Cmd:         command,
					Tty:         tty,
					Stdin:       interactive,
					Stdout:      true,
					Stderr:      !tty,
				})
				return resp.GetUrl(), err
			})
			if errors.Is(err, errInterrupted) {
				return exitError{exitInterrupted, errors.New("interrupted: the command is killed; container " + o.name + " goes on")}
			}
			return err
		})
	}
	passesCodeOn(cmd, nil)
	return cmd
}

// commandOf returns the command in the arguments after the name of a container. Flags of berth's
// may come first, and then --, as kubectl has it. The program of a command does not begin with a
// dash.
func commandOf(cmd *cobra.Command, args []string) ([]string, error) {
	if len(args) > 0 && strings.HasPrefix(args[0], "-") {
		if err := cmd.ParseFlags(args); err != nil {
			return nil, err
		}
		args = cmd.Flags().Args()
	}
	return args, nil
}

// errDetached means that the person typed the keys that end a session, errInterrupted that a signal
// ended it.
var (
	errDetached    = errors.New("detached")
	errInterrupted = errors.New("interrupted")
)

// talk opens the stream at the URL that open returns and runs the session. With tty, a session that
// has an input takes the terminal over and gives it back on every way out.
func talk(ctx context.Context, svc *service, s *session, tty bool, in io.Reader, open func() (string, error)) (err error) {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGHUP, unix.SIGQUIT)
	defer stop()
	defer func() {
		if ctx.Err() != nil { // regardless of which side noticed it first
			err = errInterrupted
		}
	}()
	if tty && s.in != nil {
		t, err := rawTerminal(in)
		if err != nil {
			return err
		}
		defer t.restore()
		defer context.AfterFunc(ctx, t.restore)() // a second signal ends the process at once
		s.terminal = t
	} else if tty {
		s.terminal = &terminal{file: os.Stdout}
	}
	at, err := open()
	if err != nil {
		return err
	}
	conn, err := svc.connect(ctx, at, remotecommand.StreamProtocolV4Name)
	if err != nil {
		return err
	}
	return s.run(ctx, conn)
}

func attachCommand(svc *service) *cobra.Command {
	var noInput bool
	var keys, container string
	cmd := &cobra.Command{
		Use:   "attach NAME|ID",
		Short: "Connect with the process of a container",
		Long: "Show what a container writes from now on, and pass on what is typed if the container has an input. A container\n" +
			"with a terminal gets everything, Ctrl-C too; Ctrl-P Ctrl-Q detaches. From others, Ctrl-C detaches. The container\n" +
			"goes on. If it ends, the exit code is the container's; 125 says that berth itself failed.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: svc.complete(containers, running, one),
	}
	cmd.Flags().BoolVar(&noInput, "no-stdin", false, "do not pass the standard input on")
	cmd.Flags().StringVar(&keys, "detach-keys", "ctrl-p,ctrl-q", "keys that detach from a terminal")
	cmd.Flags().StringVarP(&container, "container", "c", "", "the container of the pod NAME")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		escape, err := mobyterm.ToBytes(keys)
		if err != nil {
			return fmt.Errorf("--detach-keys: %w", err)
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			o, err := resolveIn(ctx, c, args[0], container)
			if err != nil {
				return err
			}
			asked, err := askedFor(ctx, c, o.id)
			if err != nil {
				return err
			}
			s := session{out: raw(cmd.OutOrStdout()), err: raw(cmd.ErrOrStderr())}
			if asked.Tty {
				s.err = nil
			}
			if asked.Stdin && !noInput {
				s.in = cmd.InOrStdin()
				if asked.Tty {
					s.in = mobyterm.NewEscapeProxy(s.in, escape)
				}
			}
			err = talk(ctx, svc, &s, asked.Tty, cmd.InOrStdin(), func() (string, error) {
				resp, err := c.Attach(ctx, &runtimeapi.AttachRequest{
					ContainerId: o.id,
					Stdin:       s.in != nil,
					Tty:         asked.Tty,
					Stdout:      true,
					Stderr:      !asked.Tty,
				})
				return resp.GetUrl(), err
			})
			if errors.Is(err, errDetached) || errors.Is(err, errInterrupted) {
				fmt.Fprintf(cmd.ErrOrStderr(), "\ndetached; container %s goes on\n", o.name)
				return nil
			}
			if err != nil {
				return err
			}
			return codeOf(ctx, c, o.id)
		})
	}
	passesCodeOn(cmd, nil)
	return cmd
}

// streamsOf are the streams that a container was created with.
type streamsOf struct{ Tty, Stdin bool }

// askedFor reads from the verbose status whether a container has a terminal and an input.
func askedFor(ctx context.Context, c *client.Client, id string) (streamsOf, error) {
	st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return streamsOf{}, err
	}
	var info struct{ Config streamsOf }
	if err := json.Unmarshal([]byte(st.GetInfo()["info"]), &info); err != nil {
		return streamsOf{}, fmt.Errorf("read the verbose status of container %s: %w", id, err)
	}
	return info.Config, nil
}

// codeOf returns an error with the exit code of a container that has ended with one.
func codeOf(ctx context.Context, c *client.Client, id string) error {
	st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return err
	}
	if s := st.GetStatus(); s.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED && s.GetExitCode() != 0 {
		return exitError{int(s.GetExitCode()), fmt.Errorf("container %s ended with %d, %s", s.GetMetadata().GetName(), s.GetExitCode(), s.GetReason())}
	}
	return nil
}
