// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/internal/doctor"
	"berth/internal/version"
)

// doctorFlags are what a person may say to doctor.
type doctorFlags struct {
	config, kubeletConfig string
	verbose               bool
	drill                 bool
	restart               string
}

func (a *app) doctorCommand() *cobra.Command {
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
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.examine(cmd, f)
	}
	return cmd
}

// examine asks everything of this machine, and shows the answers.
func (a *app) examine(cmd *cobra.Command, f doctorFlags) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	h := doctor.Machine(a.endpoint)
	h.Version = version.String()
	if f.config != "" {
		h.ConfigFile, h.Named = f.config, true
	}
	if f.kubeletConfig != "" {
		h.KubeletConfig = f.kubeletConfig
	}
	r := doctor.Examine(ctx, h)
	if err := a.print(cmd.OutOrStdout(), r, func(w *tabwriter.Writer) { writeReport(w, r, f.verbose) }); err != nil {
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
		return errors.New(plural(r.NotAsked(), "check", "checks") + " could not ask")
	}
	return nil
}

func plural(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// writeReport writes what is wrong, the worst first, then what could not be asked, and how much is
// well.
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
	well := 0
	for _, answer := range r.Answers {
		if len(answer.Findings) == 0 && answer.NotAsked == "" {
			if well++; verbose {
				fmt.Fprintf(w, "ok\t%s\t%s\n", answer.Check, answer.Question)
			}
		}
	}
	if well < len(r.Answers) || verbose {
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%d of %d checks found nothing wrong; %s, %s, %s, %d not asked\n", well, len(r.Answers),
		plural(r.Count(doctor.Error), "error", "errors"),
		plural(r.Count(doctor.Warning), "warning", "warnings"),
		plural(r.Count(doctor.Note), "note", "notes"), r.NotAsked())
}
