// SPDX-License-Identifier: Apache-2.0

package cri

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/base/ops"
)

// kinds are the kinds of the methods that change something. Every other method only reads.
var kinds = map[string]ops.Kind{
	"RunPodSandbox":             ops.Run,
	"CreateContainer":           ops.Create,
	"StartContainer":            ops.Start,
	"StopContainer":             ops.Stop,
	"StopPodSandbox":            ops.Stop,
	"RemoveContainer":           ops.Remove,
	"RemovePodSandbox":          ops.Remove,
	"UpdateContainerResources":  ops.Update,
	"UpdatePodSandboxResources": ops.Update,
	"ExecSync":                  ops.Exec,
	"CheckpointContainer":       ops.Checkpoint,
	"CheckpointPod":             ops.Checkpoint,
	"PullImage":                 ops.Pull,
	"ImportImages":              ops.Import,
	"RemoveImage":               ops.RemoveImage,
	"PullSecurityProfile":       ops.Pull,
	"RemoveSecurityProfile":     ops.RemoveImage,
	"PruneImages":               ops.Call,
	"RepairImage":               ops.Call,
	"ReopenContainerLog":        ops.Call,
}

// workOf describes a call for the list of what is under way, and for the log. Requests of CRI and
// of berth.v1 name their object in fields of the same names.
func workOf(method string, req any) ops.Work {
	w := ops.Work{Kind: kinds[method], What: method, Then: "its call ends"}
	if w.Kind == "" {
		w.Kind = ops.Read
	}
	if r, ok := req.(interface{ GetPodSandboxId() string }); ok {
		w.Of.ID = r.GetPodSandboxId()
	}
	if r, ok := req.(interface{ GetContainerId() string }); ok {
		w.Of.ID = r.GetContainerId()
	}
	if r, ok := req.(interface {
		GetSandboxConfig() *runtimeapi.PodSandboxConfig
	}); ok {
		w.Of.Names = namesOf(r.GetSandboxConfig())
	}
	if r, ok := req.(interface{ GetImage() string }); ok {
		w.Of.Image = r.GetImage()
	}
	if r, ok := req.(interface{ GetImage() *runtimeapi.ImageSpec }); ok {
		w.Of.Image = r.GetImage().GetImage()
	}
	switch r := req.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		w.Of.Names = namesOf(r.GetConfig())
	case *runtimeapi.CreateContainerRequest:
		// The container has no ID yet, and the sandbox may be gone.
		w.Of.ID = ""
		w.Of.Names.Sandbox, w.Of.Names.Container = r.GetPodSandboxId(), r.GetConfig().GetMetadata().GetName()
		w.Of.Names.Attempt = r.GetConfig().GetMetadata().GetAttempt()
	case *runtimeapi.ExecSyncRequest:
		w.What = ops.Program(r.GetCmd())
	case interface{ GetPath() string }: // of an archive
		w.Of.Image = r.GetPath()
	}
	return w
}

func namesOf(config *runtimeapi.PodSandboxConfig) event.Names {
	m := config.GetMetadata()
	return event.Names{
		Namespace: m.GetNamespace(),
		Pod:       m.GetName(),
		UID:       m.GetUid(),
		Attempt:   m.GetAttempt(),
	}
}
