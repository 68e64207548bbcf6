// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/internal/base/config"
	"berth/internal/engine/adopt"
	"berth/tools/migrate"
)

// Adopt takes over the pods of containerd's CRI plug-in, or gives them back.
type Adopt func(ctx context.Context, cfg config.Config, r adopt.Request) error

func adoptCommand(pr *printer, run Adopt) *cobra.Command {
	var r adopt.Request
	var file string
	var sets []string
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Take over the pods of containerd's CRI plug-in while they run, and give them back",
		Long: "Take over the pods that containerd's CRI plug-in has made, while they run, under the same IDs. berth has to use the node's containerd\n" +
			"(containerd.address), and does not serve meanwhile. Of the two, the one that serves is the one that has the pods.\n\n" +
			"--dry-run prints what would become of each pod, and what it would lose. It changes nothing, and the plug-in may serve.\n\n" +
			"Without it, add the plug-in to disabled_plugins in containerd's configuration, and give the command that restarts containerd as\n" +
			"--switch, and the one that starts berth as --start. While they run, the pipes of the containers are held open, so that neither\n" +
			"output nor exit codes are lost.\n\n" +
			"While there is a pod that cannot be adopted, none is. --end names pods that may end instead: the plug-in stops them, with 30\n" +
			"seconds for each container, and removes them before the switch. A pod that can be adopted is adopted, also if --end names it.\n\n" +
			"--back gives the adopted pods to the plug-in again. Pods that berth has made itself are named before anything is changed.\n\n" +
			"What was cut off is gone on with by the next call, in either direction.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := load(file)
			if err != nil {
				return err
			}
			for _, s := range sets {
				k, v, ok := strings.Cut(s, "=")
				if !ok {
					return fmt.Errorf("--set %q is not KEY=VALUE", s)
				}
				if err := loaded.Set(k, v); err != nil {
					return err
				}
			}
			if err := loaded.Check(); err != nil {
				return fmt.Errorf("configuration: %w", err)
			}
			return runAdopt(pr, run, cmd, loaded.Config, r)
		},
	}
	cmd.Flags().BoolVar(&r.DryRun, "dry-run", false, "print what would become of each pod, and change nothing")
	cmd.Flags().BoolVar(&r.Back, "back", false, "give the adopted pods to the plug-in again")
	cmd.Flags().BoolVar(&r.Leave, "leave", false, "with --back, leave berth the pods that the plug-in cannot have")
	cmd.Flags().StringArrayVar(&r.End, "end", nil, "pod, as NAMESPACE/NAME or ID, that ends and is removed before the switch if it cannot be adopted; may be repeated")
	cmd.Flags().StringVar(&r.Switch, "switch", "", "shell command that restarts containerd, such as 'systemctl restart containerd'")
	cmd.Flags().StringVar(&r.Start, "start", "", "shell command that starts berth and returns once it serves, such as 'systemctl start berth'")
	cmd.Flags().StringVar(&file, "config", "", "configuration file of berth (default "+defaultConfig+", if it exists)")
	cmd.Flags().StringArrayVar(&sets, "set", nil, "set KEY=VALUE of berth's configuration, where KEY is dotted; may be repeated")
	cmd.Flags().StringVar(&r.ContainerdState, "containerd-state", "", "containerd's setting state (default: the directory of its socket)")
	cmd.Flags().StringVar(&r.CNICache, "cni-cache", "/var/lib/cni", "directory of CNI's cache, which the plug-in does not configure")
	cmd.MarkFlagsMutuallyExclusive("back", "start")
	cmd.MarkFlagsMutuallyExclusive("back", "end")
	_ = cmd.MarkFlagDirname("containerd-state")
	_ = cmd.MarkFlagDirname("cni-cache")
	return cmd
}

func runAdopt(pr *printer, run Adopt, cmd *cobra.Command, cfg config.Config, r adopt.Request) error {
	if r.Leave && !r.Back {
		return errors.New("--leave is for --back")
	}
	if slices.Contains(r.End, "") {
		return errors.New("--end names no pod: give it NAMESPACE/NAME or an ID")
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second one ends the process, and the next call goes on
	out := cmd.OutOrStdout()
	var printed error
	r.Output = cmd.ErrOrStderr()
	r.Said = func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
	r.Remove = func(ctx context.Context, address, id string) error {
		return nodeHost{}.Remove(ctx, address, migrate.Pod{ID: id})
	}
	r.Planned = func(p adopt.Plan) {
		printed = pr.print(out, p, func(w *tabwriter.Writer) { writePlan(w, p) })
	}
	r.PlannedBack = func(b adopt.Back) {
		printed = pr.print(out, b, func(w *tabwriter.Writer) { writeBack(w, b) })
	}
	return errors.Join(run(ctx, cfg, r), printed)
}

// writePlan prints the plan for each pod.
func writePlan(w io.Writer, p adopt.Plan) {
	fmt.Fprintln(w, "POD\tCONTAINER\tSTATE\tID")
	for _, pod := range p.Pods {
		fmt.Fprintf(w, "%s/%s\t\t%s\t%s\n", pod.Namespace, pod.Name, pod.State, short(pod.ID))
		for _, ct := range pod.Containers {
			fmt.Fprintf(w, "\t%s\t%s\t%s\n", ct.Name, ct.State, short(ct.ID))
		}
	}
	if len(p.Pods) > 0 {
		fmt.Fprintln(w, "\nThe sessions of exec, attach and port-forward that go through containerd now end with it.")
	}
	var l losses
	for _, pod := range p.Pods {
		l.add(pod.Namespace+"/"+pod.Name, pod.Lost)
		for _, ct := range pod.Containers {
			l.add(pod.Namespace+"/"+pod.Name+"/"+ct.Name, ct.Lost)
		}
	}
	l.write(w)
	writeRemarks(w, "Not the plug-in's, and left as it is", p.Left)
	writeRemarks(w, "Ends and is removed, since it cannot be adopted", p.Ended)
	if len(p.NotEnded) > 0 {
		fmt.Fprintln(w, "\nNo pod that cannot be adopted is called so, and none of it ends:")
		for _, name := range p.NotEnded {
			fmt.Fprintf(w, "  %s\n", name)
		}
	}
	writeRemarks(w, "Cannot be adopted", p.Refused)
}

// losses are the losses of pods and containers, each with those that have it.
type losses struct {
	who   map[string][]string
	order []string
}

func (l *losses) add(who string, what []string) {
	if l.who == nil {
		l.who = map[string][]string{}
	}
	for _, w := range what {
		if l.who[w] == nil {
			l.order = append(l.order, w)
		}
		l.who[w] = append(l.who[w], who)
	}
}

func (l *losses) write(w io.Writer) {
	for _, what := range l.order {
		fmt.Fprintf(w, "\n%s:\n", upper(what))
		for _, who := range l.who[what] {
			fmt.Fprintf(w, "  %s\n", who)
		}
	}
}

// writeBack prints which pods the plug-in gets.
func writeBack(w io.Writer, b adopt.Back) {
	fmt.Fprintln(w, "POD\tSTATE\tID")
	for _, pod := range b.Pods {
		fmt.Fprintf(w, "%s/%s\t%s\t%s\n", pod.Namespace, pod.Name, pod.State, short(pod.ID))
	}
	var l losses
	for _, pod := range b.Pods {
		l.add(pod.Namespace+"/"+pod.Name, pod.Lost)
	}
	l.write(w)
	writeRemarks(w, "Cannot be the plug-in's", b.Kept)
}

func writeRemarks(w io.Writer, title string, remarks []adopt.Remark) {
	if len(remarks) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", title)
	for _, r := range remarks {
		fmt.Fprintf(w, "  %s: %s\n", short(r.ID), r.Text)
	}
}

// upper returns a clause as the beginning of a sentence.
func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
