// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"berth/internal/asynclog"
	"berth/internal/config"
	"berth/internal/cri"
	"berth/internal/version"
)

// Serve runs the daemon until ctx ends, and calls ready once it serves. The log is run by the caller.
type Serve func(ctx context.Context, cfg config.Config, ready func(), log *asynclog.Log) error

// exitError carries an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string { return e.err.Error() }
func (e exitError) Unwrap() error { return e.err }

// ExitCode is what the process ends with for err: 1, or what the command says.
func ExitCode(err error) int {
	var e exitError
	if errors.As(err, &e) {
		return e.code
	}
	return 1
}

// app is what commands share.
type app struct {
	serve    Serve
	endpoint string
	output   string
}

// New is the root command.
func New(serve Serve) *cobra.Command {
	a := &app{serve: serve}
	root := &cobra.Command{
		Use: "berth", Short: "berth runs pods: a container runtime service for Kubernetes nodes",
		Long:         "berth runs pods: a container runtime service for Kubernetes nodes.\nThe truth about an exit never waits.",
		SilenceUsage: true, SilenceErrors: true, Version: version.String(),
	}
	endpoint := os.Getenv("BERTH_ENDPOINT")
	if endpoint == "" {
		endpoint = config.Default().Address
	}
	root.PersistentFlags().StringVarP(&a.endpoint, "endpoint", "r", endpoint, "socket of the berth to speak to (environment: BERTH_ENDPOINT)")
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "table", "table, json or yaml")
	root.AddCommand(a.serveCommand(), configCommand(),
		a.playCommand(), a.psCommand(), a.podsCommand(), a.logsCommand(), a.eventsCommand(), a.stopCommand(), a.rmCommand(),
		a.imagesCommand(), a.pullCommand(), a.importCommand(), a.inspectCommand(), a.statusCommand(), a.versionCommand(),
		a.timelineCommand(), a.debugCommand())
	return root
}

// client connects to the endpoint for the time of f. ctx ends with SIGINT and SIGTERM.
func (a *app) client(cmd *cobra.Command, f func(ctx context.Context, c *cri.Client) error) error {
	c, err := cri.Dial(a.endpoint)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return f(ctx, c)
}

// print writes messages as JSON or YAML, or calls table.
func (a *app) print(w io.Writer, v any, table func(w *tabwriter.Writer)) error {
	switch a.output {
	case "table":
		tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		table(tw)
		return tw.Flush()
	case "json", "yaml":
		b, err := marshal(v)
		if err != nil {
			return err
		}
		if a.output == "yaml" {
			if b, err = yaml.JSONToYAML(b); err != nil {
				return err
			}
		}
		_, err = fmt.Fprintln(w, strings.TrimRight(string(b), "\n"))
		return err
	default:
		return fmt.Errorf("output %q is not table, json or yaml", a.output)
	}
}

func marshal(v any) ([]byte, error) {
	if m, ok := v.(proto.Message); ok {
		return reindent(protojson.MarshalOptions{EmitUnpopulated: false}.Marshal(m))
	}
	return json.MarshalIndent(v, "", "  ")
}

// reindent: protojson varies its white space on purpose.
func reindent(b []byte, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, err
	}
	return json.MarshalIndent(v, "", "  ")
}

// age is how long ago an instant in nanoseconds was.
func age(ns int64) string {
	if ns <= 0 {
		return "-"
	}
	d := time.Since(time.Unix(0, ns))
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd ago", int(d.Hours()/24))
	}
}

func short(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	if len(id) > 13 {
		return id[:13]
	}
	return id
}
