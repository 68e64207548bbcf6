// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"berth/api/client"
	"berth/internal/base/asynclog"
	"berth/internal/base/config"
	"berth/internal/base/version"
)

// Serve runs the daemon until ctx ends, and calls ready once it serves. Settings received from
// changes replace cfg. The log is run by the caller.
type Serve func(ctx context.Context, cfg config.Config, changes <-chan config.Config, ready func(), log *asynclog.Log) error

// Check reports settings with which the daemon cannot start on this host.
type Check func(cfg config.Config) error

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	err  error
}

// Error is empty if there is only an exit code.
func (e exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e exitError) Unwrap() error { return e.err }

// ExitCode returns the code that the process exits with for err: 1, unless the command chose
// another one.
func ExitCode(err error) int {
	var e exitError
	if errors.As(err, &e) {
		return e.code
	}
	return 1
}

// app is shared by the commands.
type app struct {
	serve    Serve
	adopt    Adopt
	check    Check // nil: only the settings themselves are checked
	endpoint string
	output   string
	streamCA string
	patience time.Duration // how long stop and rm wait before they print the cause
	// listener returns the user that listens at the other end; nil: see peer.
	listener func(*net.UnixConn) (uid int, err error)
}

// New returns the root command.
func New(serve Serve, adopt Adopt, check Check) *cobra.Command {
	a := &app{serve: serve, adopt: adopt, check: check, patience: defaultPatience}
	root := a.root()
	showVisibly(root, os.Stdout, os.Stderr)
	return root
}

// defaultEndpoint is where commands look for the service.
var defaultEndpoint = config.Default().Address

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "berth",
		Short:         "A container runtime service for Kubernetes nodes",
		Long:          "berth is a container runtime service for Kubernetes nodes. The truth about an exit never waits.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.String(),
		Args:          cobra.ArbitraryArgs,
		RunE:          hinted,
	}
	endpoint := cmp.Or(os.Getenv("BERTH_ENDPOINT"), usersEndpoint(), defaultEndpoint)
	root.PersistentFlags().StringVarP(&a.endpoint, "endpoint", "r", endpoint, "socket of the service: unix:///PATH or PATH (environment: BERTH_ENDPOINT)")
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "table", "table, wide, name, json or yaml; wide and name are for lists")
	root.PersistentFlags().StringVar(&a.streamCA, "stream-ca", os.Getenv("BERTH_STREAM_CA"),
		"PEM file of the authority that signed the certificate of the streaming server (environment: BERTH_STREAM_CA)")
	root.AddCommand(
		a.serveCommand(),
		demoCommand(),
		rootlessCommand(),
		insideCommand(),
		installCommand(),
		a.migrateCommand(),
		a.adoptCommand(),
		a.configCommand(),
		a.playCommand(),
		a.runCommand(),
		a.cpCommand(),
		a.psCommand(),
		a.podsCommand(),
		a.logsCommand(),
		a.execCommand(),
		a.attachCommand(),
		a.forwardCommand(),
		a.statsCommand(),
		a.topCommand(),
		a.checkpointCommand(),
		a.restoreCommand(),
		a.eventsCommand(),
		a.stopCommand(),
		a.rmCommand(),
		a.imagesCommand(),
		a.pullCommand(),
		a.pullsCommand(),
		a.dfCommand(),
		a.importCommand(),
		a.inspectCommand(),
		a.statusCommand(),
		a.versionCommand(),
		a.timelineCommand(),
		a.whyCommand(),
		a.auditCommand(),
		a.uiCommand(),
		a.reportCommand(),
		a.bundleCommand(),
		a.debugCommand(),
		a.doctorCommand(),
		manCommand(),
	)
	_ = root.RegisterFlagCompletionFunc("output", oneOf([]string{"table", "wide", "name", "json", "yaml"}))
	everyCommand(root, func(c *cobra.Command) {
		switch {
		case c.ValidArgsFunction != nil:
		case !strings.Contains(c.Use, " "): // it takes no argument, and no file either
			c.ValidArgsFunction = cobra.NoFileCompletions
		case strings.Contains(c.Use, "IMAGE"):
			c.ValidArgsFunction = a.complete(images)
		}
	})
	return root
}

// client connects to the endpoint while f runs. The context of f ends with the first SIGINT or
// SIGTERM; a second one ends the process.
func (a *app) client(cmd *cobra.Command, f func(ctx context.Context, c *client.Client) error) error {
	c, err := client.Dial(a.endpoint)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return f(ctx, c)
}

// print writes v as JSON or YAML, or calls table, as the person asked.
func (a *app) print(w io.Writer, v any, table func(w *tabwriter.Writer)) error {
	switch a.output {
	case "table", "wide":
		tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		table(tw)
		return tw.Flush()
	case "json", "yaml":
		b, err := marshal(shaped(v))
		if err != nil {
			return err
		}
		return a.document(w, json.RawMessage(b))
	default:
		return fmt.Errorf("--output %q is not table, wide, name, json or yaml, or not for this command", a.output)
	}
}

// marshal writes indented JSON.
func marshal(v any) ([]byte, error) {
	if m, ok := v.(proto.Message); ok && reflect.TypeOf(v) != reflect.TypeFor[items]() {
		v = document{m}
	}
	return json.MarshalIndent(v, "", "  ")
}

// age formats the time since an instant, given in nanoseconds since 1970.
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

// short is the beginning of an ID, for tables.
func short(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	if len(id) > 13 {
		return id[:13]
	}
	return id
}
