// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"berth/api/client"
	"berth/internal/base/version"
	"berth/tools/doctor"
	"berth/tools/drill"
)

type doctorFlags struct {
	config, kubeletConfig string
	verbose               bool
	drill, restart        bool
	image, step           string
	within                time.Duration
}

func doctorCommand(svc *service, pr *printer) *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what is wrong with this machine for berth, and what to do",
		Long: "Say what is wrong with this machine for berth, and what to do. It changes nothing and needs no berth that runs; with one, it examines the\n" +
			"settings that berth uses. As root it sees the most. What it could not ask it says, and takes it neither for well nor for wrong.\n\n" +
			"The exit code is 0 if nothing is wrong or there are only warnings and notes, 3 if there is an error, and 1 if there is none and\n" +
			"something could not be asked.\n\n" +
			"With --drill, it makes a pod on the running berth instead, breaks things around its containers, and shows how long berth took to\n" +
			"notice each, on this node. No other pod is touched, and nothing is left.",
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "also list what nothing is wrong with")
	cmd.Flags().StringVar(&f.config, "config", "", "configuration file (default "+defaultConfig+", if it exists)")
	cmd.Flags().StringVar(&f.kubeletConfig, "kubelet-config", "", "configuration file of the kubelet (default /var/lib/kubelet/config.yaml)")
	cmd.Flags().BoolVar(&f.drill, "drill", false, "break things around a pod that is made for it, and measure")
	cmd.Flags().BoolVar(&f.restart, "restart-berth", false, "with --drill: also let systemd restart berth")
	cmd.Flags().StringVar(&f.image, "image", "", "with --drill: an image that is on the node, instead of a small one that is imported and removed; any will do")
	cmd.Flags().StringVar(&f.step, "step", "", "with --drill: only the steps whose names contain this text")
	cmd.Flags().DurationVar(&f.within, "within", drill.Within, "with --drill: how long it may take, for a slow node")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case f.drill && f.within < drill.Least:
			return fmt.Errorf("--within %s is too short for a drill; give it %s at least", f.within, drill.Least)
		case f.drill:
			return runDrill(svc, pr, cmd, f)
		case f.restart || f.image != "" || f.step != "" || f.within != drill.Within:
			return errors.New("--restart-berth, --image, --step and --within belong to --drill")
		}
		return examine(svc, pr, cmd, f)
	}
	cmd.AddCommand(canaryCommand())
	return cmd
}

// canaryCommand is the command in the container of a drill. It needs neither a service nor files.
func canaryCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "canary DOES",
		Short:  "Be the program in the container of a drill",
		Hidden: true,
		Args:   cobra.ExactArgs(1),

		ValidArgsFunction: cobra.NoFileCompletions,

		RunE: func(_ *cobra.Command, args []string) error {
			code, err := drill.Canary(args[0])
			if code == 0 {
				return nil
			}
			return exitError{code, err}
		},
	}
}

// drill breaks things around a pod of its own, and prints the results.
func runDrill(svc *service, pr *printer, cmd *cobra.Command, f doctorFlags) error {
	return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
		told := context.AfterFunc(ctx, func() {
			fmt.Fprintln(cmd.ErrOrStderr(), "interrupted: what the drill has made is being removed; a second Ctrl-C would leave it")
		})
		defer told()
		r, err := drill.Run(ctx, c, drill.Options{
			Endpoint: svc.endpoint,
			Restart:  f.restart,
			Image:    f.image,
			Only:     f.step,
			Within:   f.within,
			Begin: func(step string) {
				if pr.format == "table" {
					fmt.Fprintf(cmd.ErrOrStderr(), "drill: %s\n", step)
				}
			},
		})
		if err == nil {
			if perr := pr.print(cmd.OutOrStdout(), r, func(w *tabwriter.Writer) { writeDrill(w, r) }); perr != nil {
				return perr
			}
		}
		return errors.Join(err, drillError(r))
	})
}

// drillError is the error that a drill ends with.
func drillError(r drill.Result) error {
	switch n := r.Failed(); {
	case len(r.Left) > 0:
		return exitError{exitNotReady, errors.New("the drill has left something behind:\n  " + strings.Join(r.Left, "\n  "))}
	case r.Interrupted:
		return exitError{exitInterrupted, errors.New("interrupted: nothing is left of the drill")}
	case n > 0:
		return exitError{exitNotReady, errors.New(plural(n, "step", "steps") + " did not go as berth promises")}
	}
	return nil
}

// writeDrill writes a line for each step, with remarks.
func writeDrill(w *tabwriter.Writer, r drill.Result) {
	const blank = "-"
	span := func(d time.Duration) string {
		if d <= 0 {
			return blank
		}
		return d.Round(10 * time.Microsecond).String()
	}
	fmt.Fprintln(w, "WHAT HAPPENS TO A CANARY\tSTATE\tCODE\tREASON\tKNOWN AFTER THE FAULT\tAFTER ITS END\tPOD REMOVED IN\tAS PROMISED")
	for _, s := range r.Steps {
		verdict, code := "yes", strconv.Itoa(int(s.Code))
		switch {
		case s.NotTried != "":
			verdict = "not tried"
		case s.Wrong != "":
			verdict = "NO"
		}
		if s.State == "" {
			code = blank
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, cmp.Or(s.State, blank), code, cmp.Or(s.Reason, blank),
			span(s.AfterFault), span(s.AfterEnd), span(s.Removed), verdict)
	}
	_ = w.Flush() // the lines below are not part of the table
	fmt.Fprintln(w)
	for _, s := range r.Steps {
		for _, text := range []string{s.NotTried, s.Wrong, s.Note} {
			if text != "" {
				fmt.Fprintf(w, "%s: %s\n", s.Name, oneLine(text))
			}
		}
	}
	if len(r.Left) == 0 {
		fmt.Fprintf(w, "The drill took %s, and nothing is left of it.\n", r.Took.Round(100*time.Millisecond))
	}
}

// examine asks everything of this machine, and shows the answers.
func examine(svc *service, pr *printer, cmd *cobra.Command, f doctorFlags) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	h := doctor.Machine(svc.endpoint)
	h.Version = version.String()
	for _, named := range []struct {
		path string
		of   *string
	}{{f.config, &h.ConfigFile}, {f.kubeletConfig, &h.KubeletConfig}} {
		if named.path == "" {
			continue
		}
		path, err := filepath.Abs(named.path)
		if err != nil {
			return err
		}
		*named.of = path
	}
	h.Named = f.config != ""
	r := doctor.Examine(ctx, h)
	if err := pr.print(cmd.OutOrStdout(), r, func(w *tabwriter.Writer) { writeReport(w, r, f.verbose) }); err != nil {
		return err
	}
	return reportError(r)
}

// reportError is the error that a report ends with.
func reportError(r doctor.Report) error {
	switch n := r.Count(doctor.Error); {
	case n > 0:
		return exitError{exitNotReady, fmt.Errorf("%s", plural(n, "error was", "errors were")+" found")}
	case r.NotAsked() > 0:
		text := plural(r.NotAsked(), "check", "checks") + " could not ask"
		if os.Geteuid() != 0 {
			text += "; run it as root"
		}
		return errors.New(text)
	}
	return nil
}

func plural(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// writeReport writes the findings, the worst first, then the checks without an answer, and the
// number of good ones.
func writeReport(w *tabwriter.Writer, r doctor.Report, verbose bool) {
	fmt.Fprintln(w, oneLine(r.Service))
	fmt.Fprintln(w)
	for _, s := range []doctor.Severity{doctor.Error, doctor.Warning, doctor.Note} {
		for _, answer := range r.Answers {
			for _, f := range answer.Findings {
				if f.Severity == s {
					fmt.Fprintf(w, "%s\t%s\t%s\n", strings.ToUpper(string(s)), answer.Check, oneLine(f.What))
					fmt.Fprintf(w, "\t\tDo: %s\n", oneLine(f.Do))
				}
			}
		}
	}
	for _, answer := range r.Answers {
		if answer.NotAsked != "" {
			fmt.Fprintf(w, "NOT ASKED\t%s\t%s\n", answer.Check, oneLine(strings.ReplaceAll(answer.NotAsked, "\n", "; ")))
		}
	}
	well, moot := r.Well(), 0
	for _, answer := range r.Answers {
		text := answer.Question
		if answer.Nothing != "" {
			moot++
			text = answer.Nothing
		}
		if verbose && len(answer.Findings) == 0 && answer.NotAsked == "" {
			fmt.Fprintf(w, "%s\t%s\t%s\n", map[bool]string{true: "-", false: "ok"}[answer.Nothing != ""], answer.Check, text)
		}
	}
	if well+moot < len(r.Answers) || verbose {
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%d of %d checks found nothing wrong, %d had nothing to look at; %s, %s, %s, %d not asked\n", well, len(r.Answers), moot,
		plural(r.Count(doctor.Error), "error", "errors"),
		plural(r.Count(doctor.Warning), "warning", "warnings"),
		plural(r.Count(doctor.Note), "note", "notes"), r.NotAsked())
}
