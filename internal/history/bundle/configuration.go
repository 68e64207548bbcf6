// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"berth/internal/base/config"
)

// Configuration is what is written of the settings. It has no text that a person has chosen: a
// setting that is one is there as whether it is set.
type Configuration struct {
	LogLevel         string           `json:"logLevel"`
	LogFormat        string           `json:"logFormat"`
	Containerd       string           `json:"containerd"` // inside berth, or beside it
	Snapshotter      string           `json:"snapshotter"`
	SyncLayers       bool             `json:"syncLayers"`
	DefaultNetwork   bool             `json:"defaultNetwork"`
	PullTimeout      config.Duration  `json:"pullTimeout"`
	Downloads        int              `json:"downloads"`
	Unpacks          int              `json:"unpacks"`
	DiscardBlobs     bool             `json:"discardBlobs"`
	RegistryAuth     int              `json:"registryAuth"` // how many registries there are credentials for
	Policy           bool             `json:"policy"`
	PolicyFailure    string           `json:"policyFailure"`
	Peers            bool             `json:"peers"`
	DefaultRuntime   string           `json:"defaultRuntime"`
	Pause            string           `json:"pause"`
	RequireHugetlb   bool             `json:"requireHugetlb"`
	AttemptTimeout   config.Duration  `json:"attemptTimeout"`
	BackoffMin       config.Duration  `json:"backoffMin"`
	BackoffMax       config.Duration  `json:"backoffMax"`
	MaxLine          int              `json:"maxLine"`
	StreamsTLS       bool             `json:"streamsTLS"`
	NRI              bool             `json:"nri"`
	NRIPlugins       bool             `json:"nriPlugins"`
	NRITimeout       config.Duration  `json:"nriTimeout"`
	TimelineMiB      int              `json:"timelineMiB"`
	TimelineAge      config.Duration  `json:"timelineAge"`
	Audit            bool             `json:"audit"`
	AuditOnError     string           `json:"auditOnError"`
	AuditSessions    bool             `json:"auditSessions"`
	Metrics          bool             `json:"metrics"`
	CheckpointMaxMiB int              `json:"checkpointMaxMiB"`
	Tracing          bool             `json:"tracing"`
	TracingSampling  float64          `json:"tracingSampling"`
	CleanupScript    bool             `json:"cleanupScript"`
	SetAside         bool             `json:"setAside"`
	EncodeOnce       bool             `json:"encodeOnce"`
	KeepOutput       bool             `json:"keepOutput"`
	WriteEarly       bool             `json:"writeEarly"`
	SpareThreads     bool             `json:"spareThreads"`
	Runtimes         []RuntimeHandler `json:"runtimes"`
}

// RuntimeHandler is what is written of a runtime handler.
type RuntimeHandler struct {
	Name         string `json:"name"` // a word, or "other"
	Type         string `json:"type"` // the same
	Systemd      bool   `json:"systemdCgroup"`
	Sandboxer    bool   `json:"sandboxer"`
	Host         bool   `json:"hostProcess"`
	Binary       bool   `json:"binary"`
	Body         bool   `json:"configBody"`
	BaseSpec     bool   `json:"baseSpec"`
	SandboxImage bool   `json:"sandboxImage"`
}

// Settings returns what is written of c.
func Settings(c config.Config) Configuration {
	s := Configuration{
		LogLevel:         c.Log.Level,
		LogFormat:        c.Log.Format,
		Containerd:       "inside",
		Snapshotter:      c.Containerd.Snapshotter,
		SyncLayers:       c.Containerd.SyncLayers,
		DefaultNetwork:   c.Network.UseDefault,
		PullTimeout:      c.Image.PullTimeout,
		Downloads:        c.Image.MaxConcurrentDownloads,
		Unpacks:          c.Image.MaxConcurrentUnpacks,
		DiscardBlobs:     c.Image.DiscardBlobs,
		RegistryAuth:     len(c.Image.Auth),
		Policy:           c.Image.PolicyFile != "",
		PolicyFailure:    c.Image.PolicyFailure,
		Peers:            c.Image.Peer.On(),
		DefaultRuntime:   c.DefaultRuntime,
		Pause:            c.Pod.Pause,
		RequireHugetlb:   c.Pod.RequireHugetlb,
		AttemptTimeout:   c.Lanes.AttemptTimeout,
		BackoffMin:       c.Lanes.BackoffMin,
		BackoffMax:       c.Lanes.BackoffMax,
		MaxLine:          c.Logs.MaxLine,
		StreamsTLS:       c.Streams.CertFile != "",
		NRI:              c.NRI.Enable,
		NRIPlugins:       c.NRI.PluginDir != "",
		NRITimeout:       c.NRI.RequestTimeout,
		TimelineMiB:      c.Timeline.MaxMiB,
		TimelineAge:      c.Timeline.MaxAge,
		Audit:            c.Audit.File != "",
		AuditOnError:     c.Audit.OnError,
		AuditSessions:    c.Audit.Sessions != "",
		Metrics:          c.Metrics.Address != "",
		CheckpointMaxMiB: c.Checkpoint.MaxMiB,
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
		s.Runtimes = append(s.Runtimes, RuntimeHandler{
			Name:         name,
			Type:         r.Type,
			Systemd:      r.SystemdCgroup,
			Sandboxer:    r.Sandboxer != "",
			Host:         r.HostProcess,
			Binary:       r.Binary != "",
			Body:         r.ConfigBody != "",
			BaseSpec:     r.BaseSpec != "",
			SandboxImage: r.SandboxImage != "",
		})
	}
	return s.allowed()
}

// allowed returns the settings, with each text as one of the words that are written.
func (c Configuration) allowed() Configuration {
	for _, s := range []*string{
		&c.LogLevel, &c.LogFormat, &c.Containerd, &c.Snapshotter, &c.PolicyFailure,
		&c.DefaultRuntime, &c.Pause, &c.AuditOnError,
	} {
		*s = term(*s)
	}
	runtimes := make([]RuntimeHandler, len(c.Runtimes))
	copy(runtimes, c.Runtimes)
	for i := range runtimes {
		runtimes[i].Name, runtimes[i].Type = term(runtimes[i].Name), term(runtimes[i].Type)
	}
	c.Runtimes = runtimes
	return c
}
