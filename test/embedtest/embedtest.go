// SPDX-License-Identifier: Apache-2.0

// Package embedtest starts the embedded containerd for tests that need a real
// one: on directories of the test, with the shim and runc that `make tools` built.
// It promises that the directories are short enough for sockets, and that a
// missing binary fails the test with the command that makes it.
package embedtest

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/engine/embed"
)

// Libexec returns the directory with containerd-shim-runc-v2 and runc: BERTH_LIBEXEC, or
// build/libexec of the module that the test belongs to.
func Libexec(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("BERTH_LIBEXEC")
	if dir == "" {
		root, err := moduleRoot()
		if err != nil {
			t.Fatalf("find libexec: %v: set BERTH_LIBEXEC", err)
		}
		dir = filepath.Join(root, "build", "libexec")
	}
	for _, name := range []string{"containerd-shim-runc-v2", "runc"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Fatalf("find libexec: %v: run make tools, or set BERTH_LIBEXEC", err)
		}
	}
	return dir
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no go.mod above the working directory: %w", os.ErrNotExist)
		}
		dir = parent
	}
}

// SocketDir returns a directory for shim sockets, removed after the test.
// t.TempDir does not serve for that: its path is often too long for a unix socket.
func SocketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "berth-s")
	if err != nil {
		t.Fatalf("make socket directory: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Config returns a configuration on fresh directories of the test.
func Config(t testing.TB) embed.Config {
	t.Helper()
	short := SocketDir(t)
	return embed.Config{
		Root:      filepath.Join(t.TempDir(), "root"),
		State:     filepath.Join(short, "state"),
		SocketDir: filepath.Join(short, "s"),
		Libexec:   Libexec(t),
		Logger:    slog.New(slog.DiscardHandler),
	}
}

// Start starts a server that is stopped after the test. The test must delete its containers by
// then, because shims outlive the server.
func Start(t testing.TB, cfg embed.Config) *embed.Server {
	t.Helper()
	s, err := embed.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}
