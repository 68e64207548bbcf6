// SPDX-License-Identifier: Apache-2.0

package event

import "log/slog"

// PodResourcesRecorded reports that the recorded resources of a sandbox were changed; nothing else
// was.
type PodResourcesRecorded struct{}

func (PodResourcesRecorded) line() Line { return info(Call, "resources of the pod recorded") }

// ResourcesRecorded reports that a container is to have other resources.
type ResourcesRecorded struct {
	Version uint64 `json:"version"`
}

func (e ResourcesRecorded) line() Line {
	return info(Call, "new resources recorded", slog.Uint64("version", e.Version))
}

// ResourcesApplied reports that the container has them.
type ResourcesApplied struct {
	Version uint64 `json:"version"`
}

func (e ResourcesApplied) line() Line {
	return info(Berth, "new resources in effect", slog.Uint64("version", e.Version))
}

// ResourcesRefused reports that the container keeps its current resources.
type ResourcesRefused struct {
	Version uint64 `json:"version"`
	Err     string `json:"err"`
}

func (e ResourcesRefused) line() Line {
	return warn(Berth, "new resources refused", e.Err, slog.Uint64("version", e.Version))
}

// ResourcesNotTakenBack reports that a part of resources that were refused may be in effect.
type ResourcesNotTakenBack struct {
	Version uint64 `json:"version"`
	Err     string `json:"err"`
}

func (e ResourcesNotTakenBack) line() Line {
	return warn(Berth, "refused resources not taken back, a part of them may be in effect", e.Err, slog.Uint64("version", e.Version))
}

// OOMScoreKept reports that a new oom_score_adj counts from the next start on.
type OOMScoreKept struct{}

func (OOMScoreKept) line() Line {
	return info(Berth, "oom_score_adj of processes that run stays as it is")
}

// HostPortsRestored reports that another program had removed rules of the pod's host ports, and
// that they are there again.
type HostPortsRestored struct{}

func (HostPortsRestored) line() Line {
	return warn(Berth, "rules of the pod's host ports were removed by another program, and are restored", "")
}

// HostPortsLost reports that the pod's host ports lead nowhere, because another program has removed
// rules that berth cannot add again.
type HostPortsLost struct {
	Err string `json:"err"`
}

func (e HostPortsLost) line() Line {
	return warn(Berth, "host ports do not lead to the pod any more, because another program has removed its rules; recreate the pod", e.Err)
}
