// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"crypto/rand"
	"encoding/hex"
	"time"

	"berth/internal/base/clock"
	"berth/internal/host/spec"
)

// Config holds the controller's settings. Zero durations take the defaults.
type Config struct {
	// Clock makes the instants that are kept; nil: that of this process, which is never set.
	Clock *clock.Clock
	// Handlers are the runtime handlers by name; DefaultHandler is the one that a request without a
	// handler gets.
	Handlers       map[string]Handler
	DefaultHandler string
	Host           spec.Host
	// AlwaysPause makes a pause process hold the namespaces of each sandbox, even if none is needed.
	AlwaysPause bool
	// PauseRootfs is a directory that holds the built-in pause program and nothing else.
	PauseRootfs string
	// MaxLogLine is the length, in bytes, at which a line of a container's output is split.
	MaxLogLine int
	// ResolvConf is the host's resolv.conf, which pods without a DNS configuration get.
	ResolvConf string
	// NewID makes the ID of a new sandbox or container. nil: 64 random hexadecimal digits.
	NewID func() string
	// Rand is the source of jitter, in [0,1). nil: a random one.
	Rand func() float64

	// AttemptTimeout bounds the first attempt of a lane; 10 s. Further attempts get more, up to
	// BackoffMax.
	AttemptTimeout time.Duration
	BackoffMin     time.Duration // 1 s
	BackoffMax     time.Duration // 5 min
	// CreateTimeout bounds RunPodSandbox, CreateContainer and StartContainer, even if the caller
	// has gone; 4 min.
	CreateTimeout time.Duration
	// UndoTimeout bounds the wait of a failed creation for its undoing, which goes on by itself; 10 s.
	UndoTimeout time.Duration
	// StartGrace is how long a stop lets a start in flight come to its end before it interrupts the
	// start; 2 s.
	StartGrace time.Duration
	// NetworkWait bounds the wait of StopPodSandbox for the release of the network; 5 s.
	NetworkWait time.Duration
	// AuditInterval is the time between two audits of the processes; 2 s.
	AuditInterval time.Duration
	// RelistInterval is the time between two comparisons with everything that containerd has; 5 min.
	RelistInterval time.Duration
	// UnreachableInterval is the longest such time while a shim does not answer; 15 s.
	UnreachableInterval time.Duration
}

func (cfg *Config) defaults() {
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{
		{&cfg.AttemptTimeout, 10 * time.Second},
		{&cfg.BackoffMin, time.Second},
		{&cfg.BackoffMax, 5 * time.Minute},
		{&cfg.CreateTimeout, 4 * time.Minute},
		{&cfg.UndoTimeout, 10 * time.Second},
		{&cfg.StartGrace, 2 * time.Second},
		{&cfg.NetworkWait, 5 * time.Second},
		{&cfg.AuditInterval, 2 * time.Second},
		{&cfg.RelistInterval, 5 * time.Minute},
		{&cfg.UnreachableInterval, 15 * time.Second},
	} {
		if *d.v <= 0 {
			*d.v = d.d
		}
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.New(nil)
	}
	if cfg.NewID == nil {
		cfg.NewID = randomID
	}
}

func randomID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
