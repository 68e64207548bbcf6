// SPDX-License-Identifier: Apache-2.0

package event

import "log/slog"

// PodResourcesRecorded says that the resources of a sandbox were changed, which is a note alone.
type PodResourcesRecorded struct{}

func (PodResourcesRecorded) line() Line { return info(Call, "resources of the pod recorded") }

// ResourcesRecorded says that a container is to have other resources.
type ResourcesRecorded struct {
	Version uint64 `json:"version"`
}

func (e ResourcesRecorded) line() Line {
	return info(Call, "new resources recorded", slog.Uint64("version", e.Version))
}

// ResourcesApplied says that the container has them.
type ResourcesApplied struct {
	Version uint64 `json:"version"`
}

func (e ResourcesApplied) line() Line {
	return info(Berth, "new resources in effect", slog.Uint64("version", e.Version))
}

// ResourcesRefused says that the container keeps what it has.
type ResourcesRefused struct {
	Version uint64 `json:"version"`
	Err     string `json:"err"`
}

func (e ResourcesRefused) line() Line {
	return warn(Berth, "new resources refused", e.Err, slog.Uint64("version", e.Version))
}

// ResourcesNotTakenBack says that a part of resources that were refused may be in effect.
type ResourcesNotTakenBack struct {
	Version uint64 `json:"version"`
	Err     string `json:"err"`
}

func (e ResourcesNotTakenBack) line() Line {
	return warn(Berth, "refused resources not taken back, a part of them may be in effect", e.Err, slog.Uint64("version", e.Version))
}

// OOMScoreKept says that a new oom_score_adj counts from the next start on.
type OOMScoreKept struct{}

func (OOMScoreKept) line() Line {
	return info(Berth, "oom_score_adj of processes that run stays as it is")
}
