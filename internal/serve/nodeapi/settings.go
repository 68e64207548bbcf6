// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"cmp"
	"math"
	"slices"
	"time"

	berthv1 "berth/api/berth/v1"
	"berth/internal/base/config"
)

// Settings returns the settings that State answers with.
func Settings(c *config.Config) *berthv1.Settings {
	s := &berthv1.Settings{
		LogLevel:         c.Log.Level,
		LogFormat:        c.Log.Format,
		Containerd:       "inside",
		Snapshotter:      c.Containerd.Snapshotter,
		SyncLayers:       c.Containerd.SyncLayers,
		DefaultNetwork:   c.Network.UseDefault,
		PullTimeout:      time.Duration(c.Image.PullTimeout).String(),
		Downloads:        count(c.Image.MaxConcurrentDownloads),
		Unpacks:          count(c.Image.MaxConcurrentUnpacks),
		DiscardBlobs:     c.Image.DiscardBlobs,
		RegistryAuth:     count(len(c.Image.Auth)),
		Policy:           c.Image.PolicyFile != "",
		PolicyFailure:    c.Image.PolicyFailure,
		Peers:            c.Image.Peer.On(),
		DefaultRuntime:   c.DefaultRuntime,
		Pause:            c.Pod.Pause,
		RequireHugetlb:   c.Pod.RequireHugetlb,
		AttemptTimeout:   c.Lanes.AttemptTimeout().String(),
		BackoffMin:       c.Lanes.BackoffMin().String(),
		BackoffMax:       time.Duration(c.Lanes.BackoffMax).String(),
		MaxLine:          count(c.Logs.MaxLine),
		StreamsTls:       c.Streams.CertFile != "",
		Nri:              c.NRI.Enable,
		NriPlugins:       c.NRI.PluginDir != "",
		NriTimeout:       time.Duration(c.NRI.RequestTimeout).String(),
		TimelineMib:      count(c.Timeline.MaxMiB),
		TimelineAge:      config.TimelineAge.String(),
		Audit:            c.Audit.File != "",
		AuditOnError:     c.Audit.OnError,
		AuditSessions:    c.Audit.Sessions != "",
		Metrics:          c.Metrics.Address != "",
		CheckpointMaxMib: 16 << 10, // no setting any more
		Tracing:          c.Tracing.Endpoint != "",
		TracingSampling:  c.Tracing.Sampling,
		CleanupScript:    c.Tricks.CleanupScript,
		SetAside:         c.Tricks.SetAside,
		EncodeOnce:       c.Tricks.EncodeOnce,
		KeepOutput:       c.Tricks.KeepOutput,
		WriteEarly:       c.Tricks.WriteEarly,
		SpareThreads:     c.Tricks.SpareThreads,
	}
	if c.Containerd.Address != "" {
		s.Containerd = "beside"
	}
	for name, r := range c.Runtimes {
		s.Runtimes = append(s.Runtimes, &berthv1.RuntimeHandler{
			Name:          name,
			Type:          r.Type,
			SystemdCgroup: r.SystemdCgroup,
			Sandboxer:     r.Sandboxer != "",
			HostProcess:   r.HostProcess,
			Binary:        r.Binary != "",
			ConfigBody:    r.ConfigBody != "",
			BaseSpec:      r.BaseSpec != "",
			SandboxImage:  r.SandboxImage != "",
		})
	}
	slices.SortFunc(s.Runtimes, func(x, y *berthv1.RuntimeHandler) int { return cmp.Compare(x.GetName(), y.GetName()) })
	return s
}

// count returns a number that a message has room for.
func count(n int) int32 { return int32(min(max(n, math.MinInt32), math.MaxInt32)) }
