// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"berth/internal/base/retry"
)

const (
	// shutdownBound is how long the containers have at most if the machine is being shut down. It is
	// the time that systemd gives a unit by default.
	shutdownBound = 90 * time.Second
	// extension is how much more time systemd is asked for, each third of it.
	extension = 30 * time.Second
	// systemdPatience is how long systemd may take to tell whether it is stopping.
	systemdPatience = 3 * time.Second
)

// endContainers ends every container if berth is told to end because the machine is being shut
// down. systemd would end the processes after berth, so that their exit codes would be lost, and
// would wait for those that ignore SIGTERM regardless of their grace periods. If berth alone is
// stopped or restarted, its containers go on.
func (d *daemon) endContainers(ctx context.Context) {
	if !systemdStops(ctx) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, shutdownBound)
	defer cancel()
	go extendStop(ctx)
	if err := d.heart.core.Pods.ShutDown(ctx); err != nil {
		d.log.Warn("containers had not ended when the machine was shut down", "err", err)
	}
}

// systemdStops reports whether systemd is shutting the machine down. If it cannot be asked, it does
// not: ending containers by mistake is worse than losing exit codes.
func systemdStops(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, systemdPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "systemctl", "is-system-running")
	cmd.WaitDelay = time.Second
	out, _ := cmd.Output() // its exit code is 0 for a machine that runs
	return strings.TrimSpace(string(out)) == "stopping"
}

// extendStop asks systemd for more time than the unit has for its stop, until ctx ends.
func extendStop(ctx context.Context) {
	for {
		_, _ = systemd.SdNotify(false, fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d", systemd.SdNotifyStopping, extension.Microseconds()))
		if !retry.Sleep(ctx.Done(), extension/3) {
			return
		}
	}
}
