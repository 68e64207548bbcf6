// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"
	systemd "github.com/coreos/go-systemd/v22/journal"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth/internal/base/asynclog"
	"berth/internal/base/config"
	"berth/internal/history/journal"
)

// streamsBeside is the flag with which commands outside the network namespace of berth reach its
// streams.
const streamsBeside = "streams-beside"

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

func serveCommand(serve Serve) *cobra.Command {
	var file string
	var sets, binDirs []string
	var beside bool
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
	cmd.Flags().BoolVar(&beside, streamsBeside, false, "serve streams beside the CRI socket, unless streams.socket is set")
	_ = cmd.Flags().MarkHidden(streamsBeside) // it is for rootless
	read := func() (config.Loaded, error) {
		cfg, err := load(file)
		if err != nil {
			return cfg, err
		}
		for key, v := range flags {
			if *v != "" {
				if err := cfg.Set(key, *v); err != nil {
					return cfg, err
				}
			}
		}
		if len(binDirs) > 0 {
			quoted := make([]string, len(binDirs))
			for i, dir := range binDirs {
				quoted[i] = strconv.Quote(dir)
			}
			if err := cfg.Set("network.bin_dirs", "["+strings.Join(quoted, ",")+"]"); err != nil {
				return cfg, err
			}
		}
		for _, s := range sets {
			k, v, ok := strings.Cut(s, "=")
			if !ok {
				return cfg, fmt.Errorf("--set %q is not KEY=VALUE", s)
			}
			if err := cfg.Set(k, v); err != nil {
				return cfg, err
			}
		}
		// The path may be too long. Then there is none.
		if socket := cfg.Address + streamsSuffix; beside && cfg.Streams.Socket == "" && len(socket) < len(unix.RawSockaddrUnix{}.Path) {
			if err := cfg.Set("streams.socket", strconv.Quote(socket)); err != nil {
				return cfg, err
			}
		}
		if err := cfg.Check(); err != nil {
			return cfg, fmt.Errorf("configuration: %w", err)
		}
		return cfg, nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return runService(serve, cmd, read)
	}
	return cmd
}

// runService runs the service with output that nothing waits for. read reads the settings, from the
// files among others: at the start, and again with each SIGHUP.
func runService(serve Serve, cmd *cobra.Command, read func() (config.Loaded, error)) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	loaded, err := read()
	if err != nil {
		return err
	}
	cfg := loaded.Config
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends a service that does not stop

	// A log reader that goes away must not end the service: without a handler, Go ends a process
	// whose write to standard error fails with EPIPE. The signal is not ignored, because children
	// inherit that.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)

	var level slog.LevelVar
	_ = level.UnmarshalText([]byte(cfg.Log.Level)) // config.Check has checked it
	stderr, format := raw(cmd.ErrOrStderr()), handler(cfg.Log, &level)
	if is, err := systemd.StderrIsJournalStream(); err == nil && is {
		to := journal.New(stderr, journal.Socket)
		stderr, format = to, to.Handler(format)
	}
	log := asynclog.New(stderr, format)
	out := asynclog.New(raw(cmd.OutOrStdout()), handler(cfg.Log, &level))
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

	warnOfSettings(log.Logger, loaded)
	changes := make(chan config.Config)
	wg.Go(func() { // until writing ends, after the service
		for {
			select {
			case <-writing.Done():
				return
			case <-hangup:
			}
			next, ok := reload(log.Logger, cfg, read)
			if !ok {
				continue
			}
			cfg = next
			_ = level.UnmarshalText([]byte(cfg.Log.Level))
			select {
			case changes <- cfg:
			case <-writing.Done():
				return
			}
		}
	})
	err = serve(ctx, cfg, changes, func() {
		fmt.Fprintf(out, "berth is ready on %s\n", cfg.Address)
		_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
	}, log)
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
	return err
}

// reload reads the settings again and returns those that hold from now on. ok is false if they are
// invalid: then the old ones stay in force.
func reload(log *slog.Logger, cfg config.Config, read func() (config.Loaded, error)) (next config.Config, ok bool) {
	loaded, err := read()
	if err != nil {
		log.Error("the configuration was read again and cannot be used; all settings stay as they are", "err", err)
		return cfg, false
	}
	next, changed, restart := cfg.Reload(loaded.Config)
	if len(restart) > 0 {
		log.Warn("the configuration was read again, and some settings need a restart of berth", "settings", restart)
	}
	log.Info("the configuration was read again", "files", loaded.Files, "changed", changed)
	warnOfSettings(log, loaded)
	return next, true
}

// warnOfSettings logs which configuration files are open to others, and which settings are retired.
func warnOfSettings(log *slog.Logger, loaded config.Loaded) {
	for _, warning := range loaded.Retired() {
		log.Warn("setting without an effect", "setting", warning)
	}
	for _, err := range loaded.CheckFiles() {
		log.Warn("the configuration file is open to others", "err", err)
	}
}

// handler formats the log according to the configuration.
func handler(cfg config.Log, level slog.Leveler) func(io.Writer) slog.Handler {
	o := &slog.HandlerOptions{Level: level}
	return func(w io.Writer) slog.Handler {
		if cfg.Format == "json" {
			return slog.NewJSONHandler(w, o)
		}
		return slog.NewTextHandler(w, o)
	}
}
