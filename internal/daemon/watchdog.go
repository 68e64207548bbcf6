// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

// feedWatchdog tells systemd that berth works, if the unit has a WatchdogSec. If berth is stuck,
// systemd kills it with SIGABRT, which writes the stacks of all goroutines to the log, and starts
// it again. Containers are not affected.
func (d *daemon) feedWatchdog(ctx context.Context) error {
	within, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		d.log.Warn("the watchdog of the unit is not fed", "err", err)
		return nil
	}
	if within > 0 {
		feedWhile(ctx, within, d.answers, func() { _, _ = systemd.SdNotify(false, systemd.SdNotifyWatchdog) })
	}
	return nil
}

// answers returns once the locks were free that every call of CRI and every exit need. It asks no
// disk, no shim and no containerd: a berth that waits for one of them is not stuck, and a restart
// would not help.
func (d *daemon) answers() {
	d.heart.core.Pods.ListContainers(nil)
	d.heart.core.Pods.ListPodSandbox(nil)
	d.heart.core.Pods.Lanes()
}

// feedWhile calls fed four times within each period, until ctx ends, as long as ask returns. There
// is one call of ask at a time, so that a lock that is held for ever does not collect goroutines.
func feedWhile(ctx context.Context, period time.Duration, ask, fed func()) {
	t := time.NewTicker(period / 4)
	defer t.Stop()
	for {
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			ask()
		}()
		select {
		case <-ctx.Done():
			return
		case <-answered:
			fed()
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
