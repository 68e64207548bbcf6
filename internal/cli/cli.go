// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"berth/internal/config"
	"berth/internal/cri"
	"berth/internal/version"
)

// Serve runs the daemon until ctx ends, and calls ready once it serves.
type Serve func(ctx context.Context, cfg config.Config, ready func(), log *slog.Logger) error

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

func (a *app) serveCommand() *cobra.Command {
	var file string
	var sets, binDirs []string
	flags := map[string]*string{}
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the service", Args: cobra.NoArgs,
		Long: "Run the service until SIGTERM or SIGINT. Pods go on when it ends; the next one takes them up.",
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file; /etc/berth/config.toml if that exists")
	cmd.Flags().StringSliceVar(&binDirs, "cni-bin-dir", nil, "sets network.bin_dirs; may be repeated")
	cmd.Flags().StringArrayVar(&sets, "set", nil, "a setting, as KEY=VALUE with a dotted key; may be repeated")
	for flag, key := range map[string]string{
		"root": "root", "state": "state", "address": "address", "libexec": "libexec", "containerd": "containerd.address",
		"log-level": "log.level", "metrics": "metrics.address", "cni-conf-dir": "network.conf_dir",
	} {
		flags[key] = cmd.Flags().String(flag, "", "sets "+key)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := load(file)
		if err != nil {
			return err
		}
		for key, v := range flags {
			if *v != "" {
				if err := cfg.Set(key, *v); err != nil {
					return err
				}
			}
		}
		if len(binDirs) > 0 {
			cfg.Network.BinDirs = binDirs
		}
		for _, s := range sets {
			k, v, ok := strings.Cut(s, "=")
			if !ok {
				return fmt.Errorf("--set %q is not KEY=VALUE", s)
			}
			if err := cfg.Set(k, v); err != nil {
				return err
			}
		}
		if err := cfg.Check(); err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop) // a second signal ends a berth that does not stop
		out := cmd.OutOrStdout()
		err = a.serve(ctx, cfg, func() {
			fmt.Fprintf(out, "berth is ready on %s\n", cfg.Address)
			_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
		}, logger(cfg, cmd.ErrOrStderr()))
		_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
		return err
	}
	return cmd
}

const defaultConfig = "/etc/berth/config.toml"

func load(file string) (config.Config, error) {
	if file == "" {
		if _, err := os.Stat(defaultConfig); err != nil {
			return config.Default(), nil //nolint:nilerr // there need not be one
		}
		file = defaultConfig
	}
	return config.Load(file)
}

func logger(cfg config.Config, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.Log.Level)) // checked before
	o := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

func configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "The configuration: defaults, check, show"}
	cmd.AddCommand(
		&cobra.Command{Use: "default", Short: "Write the documented defaults", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return config.WriteDefault(cmd.OutOrStdout())
		}},
		&cobra.Command{Use: "show [FILE]", Short: "Write a configuration file with the defaults of what it leaves out", Args: cobra.MaximumNArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
			c, err := load(strings.Join(args, ""))
			if err != nil {
				return err
			}
			return c.Write(cmd.OutOrStdout())
		}},
		&cobra.Command{Use: "check [FILE]", Short: "Check a configuration file", Args: cobra.MaximumNArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
			file := ""
			if len(args) == 1 {
				file = args[0]
			}
			c, err := load(file)
			if err == nil {
				err = c.Check()
			}
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "the configuration is good")
			return nil
		}})
	return cmd
}
