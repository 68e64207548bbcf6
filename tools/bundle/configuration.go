// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"time"

	berthv1 "berth/api/berth/v1"
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

// settingsOf returns the settings that are written, with each text as one of the words that are.
func settingsOf(s *berthv1.Settings) Configuration {
	c := Configuration{
		LogLevel:         term(s.GetLogLevel()),
		LogFormat:        term(s.GetLogFormat()),
		Containerd:       term(s.GetContainerd()),
		Snapshotter:      term(s.GetSnapshotter()),
		SyncLayers:       s.GetSyncLayers(),
		DefaultNetwork:   s.GetDefaultNetwork(),
		PullTimeout:      duration(s.GetPullTimeout()),
		Downloads:        int(s.GetDownloads()),
		Unpacks:          int(s.GetUnpacks()),
		DiscardBlobs:     s.GetDiscardBlobs(),
		RegistryAuth:     int(s.GetRegistryAuth()),
		Policy:           s.GetPolicy(),
		PolicyFailure:    term(s.GetPolicyFailure()),
		Peers:            s.GetPeers(),
		DefaultRuntime:   term(s.GetDefaultRuntime()),
		Pause:            term(s.GetPause()),
		RequireHugetlb:   s.GetRequireHugetlb(),
		AttemptTimeout:   duration(s.GetAttemptTimeout()),
		BackoffMin:       duration(s.GetBackoffMin()),
		BackoffMax:       duration(s.GetBackoffMax()),
		MaxLine:          int(s.GetMaxLine()),
		StreamsTLS:       s.GetStreamsTls(),
		NRI:              s.GetNri(),
		NRIPlugins:       s.GetNriPlugins(),
		NRITimeout:       duration(s.GetNriTimeout()),
		TimelineMiB:      int(s.GetTimelineMib()),
		TimelineAge:      duration(s.GetTimelineAge()),
		Audit:            s.GetAudit(),
		AuditOnError:     term(s.GetAuditOnError()),
		AuditSessions:    s.GetAuditSessions(),
		Metrics:          s.GetMetrics(),
		CheckpointMaxMiB: int(s.GetCheckpointMaxMib()),
		Tracing:          s.GetTracing(),
		TracingSampling:  s.GetTracingSampling(),
		CleanupScript:    s.GetCleanupScript(),
		SetAside:         s.GetSetAside(),
		EncodeOnce:       s.GetEncodeOnce(),
		KeepOutput:       s.GetKeepOutput(),
		WriteEarly:       s.GetWriteEarly(),
		SpareThreads:     s.GetSpareThreads(),
	}
	for _, r := range s.GetRuntimes() {
		c.Runtimes = append(c.Runtimes, RuntimeHandler{
			Name:         term(r.GetName()),
			Type:         term(r.GetType()),
			Systemd:      r.GetSystemdCgroup(),
			Sandboxer:    r.GetSandboxer(),
			Host:         r.GetHostProcess(),
			Binary:       r.GetBinary(),
			Body:         r.GetConfigBody(),
			BaseSpec:     r.GetBaseSpec(),
			SandboxImage: r.GetSandboxImage(),
		})
	}
	return c
}

// duration reads a duration. One that cannot be read is 0.
func duration(s string) config.Duration {
	d, _ := time.ParseDuration(s)
	return config.Duration(d)
}
