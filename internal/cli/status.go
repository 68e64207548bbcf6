// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
	"berth/internal/lane"
	"berth/internal/version"
)

func (a *app) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether the runtime and the network are ready",
		Long:  "Show whether the runtime and the network are ready, and warnings, such as of a runc with known holes. The exit code is 0 if both are, 3 if one is not, and 1 if\nthe service does not answer.",
		Args:  cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			st, err := c.RuntimeServiceClient.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
			if err != nil {
				return err
			}
			err = a.print(cmd.OutOrStdout(), st, func(w *tabwriter.Writer) {
				for _, cond := range st.GetStatus().GetConditions() {
					fmt.Fprintf(w, "%s\t%v\t%s\n", cond.GetType(), cond.GetStatus(), oneLine(cond.GetMessage()))
				}
				var warnings []string
				_ = json.Unmarshal([]byte(st.GetInfo()["warnings"]), &warnings) // another runtime has none
				for _, text := range warnings {
					fmt.Fprintf(w, "Warning\t\t%s\n", oneLine(text))
				}
			})
			if err != nil {
				return err
			}
			return notReady(st.GetStatus().GetConditions())
		})
	}
	return cmd
}

// exitNotReady is the exit code of status where the service answers and is not ready.
const exitNotReady = 3

// notReady returns an error that names the conditions that are false.
func notReady(conditions []*runtimeapi.RuntimeCondition) error {
	var names []string
	for _, cond := range conditions {
		if !cond.GetStatus() {
			names = append(names, cond.GetType())
		}
	}
	if len(names) == 0 {
		return nil
	}
	return exitError{exitNotReady, fmt.Errorf("not ready: %s is false", strings.Join(names, " and "))}
}

// oneLine quotes what would break a line of a table.
func oneLine(s string) string {
	if strings.ContainsFunc(s, unicode.IsControl) {
		return strconv.Quote(s)
	}
	return s
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Show the versions of this command and of the service", Args: cobra.NoArgs}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			v, err := c.RuntimeServiceClient.Version(ctx, &runtimeapi.VersionRequest{})
			both := map[string]any{"client": version.String()}
			if err == nil {
				both["service"] = v
			}
			return errors.Join(a.print(cmd.OutOrStdout(), both, func(w *tabwriter.Writer) {
				fmt.Fprintf(w, "berth\t%s\n", version.String())
				if err == nil {
					fmt.Fprintf(w, "service\t%s %s, CRI %s\n", v.GetRuntimeName(), v.GetRuntimeVersion(), v.GetRuntimeApiVersion())
				}
			}), err)
		})
	}
	return cmd
}

func (a *app) debugCommand() *cobra.Command {
	lanes := &cobra.Command{Use: "lanes", Short: "List what is being settled or released, or waits to be tried again", Args: cobra.NoArgs}
	lanes.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			raw, err := c.Lanes(ctx)
			if err != nil {
				return err
			}
			var lanes []lane.Lane
			if err := json.Unmarshal(raw, &lanes); err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), lanes, func(w *tabwriter.Writer) {
				fmt.Fprintln(w, "ID\tSTEP\tSTATE\tSINCE\tTRY\tWAITING\tERROR")
				for _, l := range lanes {
					fmt.Fprintf(w, "%s\t%v\t%s\t%s\t%d\t%d\t%s\n",
						short(l.ID),
						l.Head,
						l.State,
						age(l.Since.UnixNano()),
						l.Tries,
						l.Waiting,
						oneLine(l.Err))
				}
			})
		})
	}
	cmd := &cobra.Command{Use: "debug", Short: "Show the live state of the service"}
	cmd.AddCommand(lanes)
	return cmd
}
