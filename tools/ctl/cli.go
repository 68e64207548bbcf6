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

// app is one berth command line.
type app struct {
	daemon   Daemon
	patience time.Duration // how long stop and rm wait before they print the cause
}

// Daemon is the part of the runtime that three commands run in this process.
type Daemon struct {
	Serve Serve
	Adopt Adopt
	Check Check // nil: only the settings themselves are checked
}

// service is the running berth that the commands speak to.
type service struct {
	endpoint string
	streamCA string
	// listener returns the user that listens at the other end; nil: see peer.
	listener func(*net.UnixConn) (uid int, err error)
}

// printer writes answers in the format of --output.
type printer struct {
	format string
}

// New returns the root command.
func New(d Daemon) *cobra.Command {
	root := app{daemon: d, patience: defaultPatience}.root()
	showVisibly(root, os.Stdout, os.Stderr)
	return root
}

// defaultEndpoint is where commands look for the service.
var defaultEndpoint = config.Default().Address

// group is a group of commands in the help of berth.
type group struct {
	title    string
	commands []*cobra.Command
}

// groups returns the commands by what people do with them.
func (a app) groups(svc *service, pr *printer) []group {
	return []group{
		{"Look", []*cobra.Command{
			psCommand(svc, pr),
			podsCommand(svc, pr),
			statsCommand(svc, pr),
			topCommand(svc),
			inspectCommand(svc, pr),
			logsCommand(svc),
			eventsCommand(svc, pr),
			uiCommand(svc),
		}},
		{"Explain", []*cobra.Command{
			whyCommand(svc, pr),
			timelineCommand(svc, pr),
			reportCommand(svc, pr),
			bundleCommand(svc),
			auditCommand(pr),
			debugCommand(svc, pr),
		}},
		{"Images", []*cobra.Command{
			imagesCommand(svc, pr),
			pullCommand(svc),
			pullsCommand(svc, pr),
			importCommand(svc),
			dfCommand(svc, pr),
		}},
		{"Pods", []*cobra.Command{
			playCommand(svc),
			runCommand(svc),
			execCommand(svc),
			attachCommand(svc),
			cpCommand(svc),
			forwardCommand(svc),
			checkpointCommand(svc),
			restoreCommand(svc),
			stopCommand(svc, a.patience),
			rmCommand(svc, a.patience),
		}},
		{"Node", []*cobra.Command{
			serveCommand(a.daemon.Serve),
			configCommand(a.daemon.Check),
			statusCommand(svc, pr),
			doctorCommand(svc, pr),
			installCommand(),
			migrateCommand(pr),
			adoptCommand(pr, a.daemon.Adopt),
			demoCommand(),
			rootlessCommand(),
			insideCommand(),
			versionCommand(svc, pr),
			manCommand(),
		}},
	}
}

func (a app) root() *cobra.Command {
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
	svc, pr := &service{}, &printer{}
	endpoint := cmp.Or(os.Getenv("BERTH_ENDPOINT"), usersEndpoint(), defaultEndpoint)
	root.PersistentFlags().StringVarP(&svc.endpoint, "endpoint", "r", endpoint, "socket of the service: unix:///PATH or PATH (environment: BERTH_ENDPOINT)")
	root.PersistentFlags().StringVarP(&pr.format, "output", "o", "table", "table, wide, name, json or yaml; wide and name are for lists")
	root.PersistentFlags().StringVar(&svc.streamCA, "stream-ca", os.Getenv("BERTH_STREAM_CA"),
		"PEM file of the authority that signed the certificate of the streaming server (environment: BERTH_STREAM_CA)")
	for _, g := range a.groups(svc, pr) {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, c := range g.commands {
			c.GroupID = g.title
		}
		root.AddCommand(g.commands...)
	}
	root.SetHelpCommandGroupID("Node")
	root.SetCompletionCommandGroupID("Node")
	_ = root.RegisterFlagCompletionFunc("output", oneOf([]string{"table", "wide", "name", "json", "yaml"}))
	everyCommand(root, func(c *cobra.Command) {
		if c.HasSubCommands() && !c.Runnable() { // a wrong name below it is an error, and not help
			c.Args, c.RunE = cobra.ArbitraryArgs, hinted
		}
		switch {
		case c.ValidArgsFunction != nil:
		case !strings.Contains(c.Use, " "): // it takes no argument, and no file either
			c.ValidArgsFunction = cobra.NoFileCompletions
		case strings.Contains(c.Use, "IMAGE"):
			c.ValidArgsFunction = svc.complete(images)
		}
	})
	return root
}

// client connects to the endpoint while f runs. The context of f ends with the first SIGINT or
// SIGTERM; a second one ends the process.
func (svc *service) client(cmd *cobra.Command, f func(ctx context.Context, c *client.Client) error) error {
	c, err := client.Dial(svc.endpoint)
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
func (pr *printer) print(w io.Writer, v any, table func(w *tabwriter.Writer)) error {
	switch pr.format {
	case "table", "wide":
		tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		table(tw)
		return tw.Flush()
	case "json", "yaml":
		b, err := marshal(shaped(v))
		if err != nil {
			return err
		}
		return pr.document(w, json.RawMessage(b))
	default:
		return fmt.Errorf("--output %q is not table, wide, name, json or yaml, or not for this command", pr.format)
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
