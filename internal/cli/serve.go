// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"berth/internal/asynclog"
	"berth/internal/config"
)

// serveFlags are the flags of serve that set one setting each.
var serveFlags = map[string]string{
	"root":         "root",
	"state":        "state",
	"address":      "address",
	"libexec":      "libexec",
	"containerd":   "containerd.address",
	"log-level":    "log.level",
	"metrics":      "metrics.address",
	"cni-conf-dir": "network.conf_dir",
}

func (a *app) serveCommand() *cobra.Command {
	var file string
	var sets, binDirs []string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the service",
		Long:  "Run the service until SIGTERM or SIGINT. Pods keep running when the service ends, and the next one takes over.",
		Args:  cobra.NoArgs,
	}
	flags := map[string]*string{}
	for flag, key := range serveFlags {
		flags[key] = cmd.Flags().String(flag, "", "set "+key)
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file (default "+defaultConfig+", if it exists)")
	cmd.Flags().StringSliceVar(&binDirs, "cni-bin-dir", nil, "set network.bin_dirs; may be repeated")
	cmd.Flags().StringArrayVar(&sets, "set", nil, "set KEY=VALUE, where KEY is dotted; may be repeated")
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
		return a.runService(cmd, cfg)
	}
	return cmd
}

// runService runs the service with output that nothing waits for.
func (a *app) runService(cmd *cobra.Command, cfg config.Config) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends a service that does not stop

	// A log reader that goes away must not end the service: without a handler, Go ends a process
	// whose write to standard error fails with EPIPE. The signal is not ignored, because children
	// inherit that.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)

	log := asynclog.New(cmd.ErrOrStderr(), handler(cfg.Log))
	out := asynclog.New(cmd.OutOrStdout(), handler(cfg.Log))
	var wg sync.WaitGroup
	writing, done := context.WithCancel(context.Background())
	defer wg.Wait()
	defer done()
	wg.Go(func() { log.Run(writing) })
	wg.Go(func() { out.Run(writing) })
	restore, err := log.CaptureStderr()
	if err != nil {
		return err
	}
	defer restore()

	err = a.serve(ctx, cfg, func() {
		fmt.Fprintf(out, "berth is ready on %s\n", cfg.Address)
		_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
	}, log)
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
	return err
}

// handler formats the log as the configuration says.
func handler(cfg config.Log) func(io.Writer) slog.Handler {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.Level)) // config.Check has checked it
	o := &slog.HandlerOptions{Level: level}
	return func(w io.Writer) slog.Handler {
		if cfg.Format == "json" {
			return slog.NewJSONHandler(w, o)
		}
		return slog.NewTextHandler(w, o)
	}
}
