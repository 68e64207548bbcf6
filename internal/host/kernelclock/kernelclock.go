// SPDX-License-Identifier: Apache-2.0

package kernelclock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Source is the kernel's clocks. It implements clock.Source.
type Source struct {
	boot  string
	timer *os.File // is cancelled when the clock is set; nil if the kernel has none
	err   error    // why it is nil
}

// Open opens them. It never fails: without a timer, Set returns why.
func Open() *Source {
	s := &Source{}
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	s.boot = strings.TrimSpace(string(b))
	fd, terr := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if terr == nil {
		never := unix.ItimerSpec{Value: unix.Timespec{Sec: math.MaxInt32 << 8}}
		terr = unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &never, nil)
		s.timer = os.NewFile(uintptr(fd), "timerfd")
	}
	s.err = errors.Join(err, terr)
	return s
}

// Boot implements clock.Source.
func (s *Source) Boot() string { return s.boot }

// SinceBoot implements clock.Source.
func (s *Source) SinceBoot() time.Duration { return read(unix.CLOCK_BOOTTIME) }

// readings is how often both clocks are read, of which the narrowest reading counts: the thread may
// be interrupted between two.
const readings = 5

// Read implements clock.Source.
func (s *Source) Read() (sinceBoot time.Duration, wall time.Time) {
	narrowest := time.Duration(math.MaxInt64)
	for range readings {
		before := read(unix.CLOCK_BOOTTIME)
		now := read(unix.CLOCK_REALTIME)
		after := read(unix.CLOCK_BOOTTIME)
		if took := after - before; took < narrowest {
			narrowest, sinceBoot, wall = took, before+took/2, time.Unix(0, int64(now))
		}
	}
	return sinceBoot, wall
}

// read reads a clock, which cannot fail.
func read(id int32) time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(id, &ts)
	return time.Duration(ts.Nano())
}

// Set implements clock.Source.
func (s *Source) Set(ctx context.Context) error {
	if s.err != nil {
		return fmt.Errorf("be told when the clock is set: %w", s.err)
	}
	defer context.AfterFunc(ctx, func() { _ = s.timer.SetReadDeadline(time.Unix(1, 0)) })()
	var ticks [8]byte
	_, err := s.timer.Read(ticks[:])
	if err == nil || errors.Is(err, unix.ECANCELED) || ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("be told when the clock is set: %w", err)
}
