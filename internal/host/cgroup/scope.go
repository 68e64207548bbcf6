// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// booted is there where systemd is process 1 (sd_booted(3)).
const booted = "/run/systemd/system"

// scopeOf returns the scope that an OCI runtime makes for a container whose spec has a group in the
// form of the systemd driver, SLICE:PREFIX:ID.
func scopeOf(path string) (unit string, ok bool) {
	f := strings.Split(path, ":")
	if len(f) != 3 || f[2] == "" {
		return "", false
	}
	return f[1] + "-" + f[2] + ".scope", true
}

// allOrFail is all processes of a unit, and an error when there are none (systemctl(1),
// --kill-whom=).
const allOrFail = systemd.Who("all-fail")

// stopScope kills the processes in a scope and stops it, because only systemd may remove the group
// of one of its units. Stopping an absent scope succeeds, and there is none if systemd is not
// process 1.
//
// A stop alone would give the processes SIGTERM and up to 90 seconds. A scope without processes is
// stopped as well, and one that failed is forgotten: systemd would keep both.
func stopScope(ctx context.Context, unit string) (found bool, err error) {
	if _, err := os.Stat(booted); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	conn, err := systemd.NewWithContext(ctx)
	if err != nil {
		return false, fmt.Errorf("stop %s: connect to systemd: %w", unit, err)
	}
	defer conn.Close()
	err = conn.KillUnitWithTarget(ctx, unit, allOrFail, int32(unix.SIGKILL))
	if err != nil && !isError(err, "NoSuchUnit", "NoSuchProcess") {
		return false, fmt.Errorf("kill the processes of %s: %w", unit, err)
	}
	found = err == nil
	done := make(chan string, 1)
	switch _, err := conn.StopUnitContext(ctx, unit, "replace", done); {
	case isError(err, "NoSuchUnit"):
		return found, nil
	case err != nil:
		return found, fmt.Errorf("stop %s: %w", unit, err)
	}
	select {
	case result := <-done:
		if result != "done" {
			return found, fmt.Errorf("stop %s: systemd reports %q", unit, result)
		}
	case <-ctx.Done():
		return found, fmt.Errorf("stop %s: %w", unit, ctx.Err())
	}
	if err := conn.ResetFailedUnitContext(ctx, unit); err != nil && !isError(err, "NoSuchUnit") {
		return found, fmt.Errorf("forget the failed %s: %w", unit, err)
	}
	return found, nil
}

// isError reports whether systemd answered with an error that has one of the names.
func isError(err error, names ...string) bool {
	var e dbus.Error
	return errors.As(err, &e) && slices.Contains(names, strings.TrimPrefix(e.Name, "org.freedesktop.systemd1."))
}
