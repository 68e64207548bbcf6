// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"github.com/containerd/platforms"

	// Each import registers its part with containerd's process-wide plug-in registry. A registered
	// part is not yet loaded: see parts.
	_ "github.com/containerd/containerd/api/types/runc/options"
	_ "github.com/containerd/containerd/v2/core/runtime/v2"
	_ "github.com/containerd/containerd/v2/plugins/content/local/plugin"
	_ "github.com/containerd/containerd/v2/plugins/events"
	_ "github.com/containerd/containerd/v2/plugins/gc"
	_ "github.com/containerd/containerd/v2/plugins/leases"
	_ "github.com/containerd/containerd/v2/plugins/metadata"
	_ "github.com/containerd/containerd/v2/plugins/mount"
	_ "github.com/containerd/containerd/v2/plugins/sandbox"
	_ "github.com/containerd/containerd/v2/plugins/server/grpc"
	_ "github.com/containerd/containerd/v2/plugins/server/ttrpc"
	_ "github.com/containerd/containerd/v2/plugins/services/containers"
	_ "github.com/containerd/containerd/v2/plugins/services/content"
	_ "github.com/containerd/containerd/v2/plugins/services/diff"
	_ "github.com/containerd/containerd/v2/plugins/services/events"
	_ "github.com/containerd/containerd/v2/plugins/services/healthcheck"
	_ "github.com/containerd/containerd/v2/plugins/services/images"
	_ "github.com/containerd/containerd/v2/plugins/services/introspection"
	_ "github.com/containerd/containerd/v2/plugins/services/leases"
	_ "github.com/containerd/containerd/v2/plugins/services/mounts"
	_ "github.com/containerd/containerd/v2/plugins/services/namespaces"
	_ "github.com/containerd/containerd/v2/plugins/services/sandbox"
	_ "github.com/containerd/containerd/v2/plugins/services/snapshots"
	_ "github.com/containerd/containerd/v2/plugins/services/streaming"
	_ "github.com/containerd/containerd/v2/plugins/services/tasks"
	_ "github.com/containerd/containerd/v2/plugins/services/transfer"
	_ "github.com/containerd/containerd/v2/plugins/services/version"
	_ "github.com/containerd/containerd/v2/plugins/services/warning"
	_ "github.com/containerd/containerd/v2/plugins/snapshots/native/plugin"
	_ "github.com/containerd/containerd/v2/plugins/snapshots/overlay/plugin"
	_ "github.com/containerd/containerd/v2/plugins/streaming"
	_ "github.com/containerd/containerd/v2/plugins/transfer"
)

// parts lists the parts of the server. A registration that is not listed is not loaded, because any
// package linked into the binary may register one as a side effect; a listed part that is missing
// or fails keeps the server from starting.
//
// Left out on purpose: grpc-prometheus (it registers with the default registry and panics the
// second time), grpc-tcp (no network listener, ever), and the task monitor (the shims report OOM
// kills themselves).
var parts = []string{
	"io.containerd.content.v1.content",
	"io.containerd.differ.v1." + differID,
	"io.containerd.event.v1.exchange",
	"io.containerd.gc.v1.scheduler",
	"io.containerd.grpc.v1.containers",
	"io.containerd.grpc.v1.content",
	"io.containerd.grpc.v1.diff",
	"io.containerd.grpc.v1.events",
	"io.containerd.grpc.v1.healthcheck",
	"io.containerd.grpc.v1.images",
	"io.containerd.grpc.v1.introspection",
	"io.containerd.grpc.v1.leases",
	"io.containerd.grpc.v1.mounts",
	"io.containerd.grpc.v1.namespaces",
	"io.containerd.grpc.v1.sandbox-controllers",
	"io.containerd.grpc.v1.sandboxes",
	"io.containerd.grpc.v1.snapshots",
	"io.containerd.grpc.v1.streaming",
	"io.containerd.grpc.v1.tasks",
	"io.containerd.grpc.v1.transfer",
	"io.containerd.grpc.v1.version",
	"io.containerd.lease.v1.manager",
	"io.containerd.metadata.v1.bolt",
	"io.containerd.metrics.v1.grpc-otel",
	"io.containerd.mount-manager.v1.bolt",
	"io.containerd.runtime.v2.task",
	"io.containerd.sandbox.controller.v1.shim",
	"io.containerd.sandbox.store.v1.local",
	"io.containerd.server.v1.grpc",
	"io.containerd.server.v1.ttrpc",
	"io.containerd.service.v1.containers-service",
	"io.containerd.service.v1.content-service",
	"io.containerd.service.v1.diff-service",
	"io.containerd.service.v1.images-service",
	"io.containerd.service.v1.introspection-service",
	"io.containerd.service.v1.namespaces-service",
	"io.containerd.service.v1.snapshots-service",
	"io.containerd.service.v1.tasks-service",
	"io.containerd.shim.v1.manager",
	"io.containerd.snapshotter.v1.native",
	"io.containerd.snapshotter.v1.overlayfs",
	"io.containerd.streaming.v1.manager",
	"io.containerd.transfer.v1.local",
	"io.containerd.warning.v1.deprecations",
}

// settings returns the differences from containerd's defaults, by part. The keys are those of the
// part's section in containerd's config.toml.
func (c Config) settings() map[string]map[string]any {
	return map[string]map[string]any{
		"io.containerd.shim.v1.manager": {
			"socket_dir": c.SocketDir,
		},
		"io.containerd.server.v1.grpc": {
			"address": c.address(),
		},
		"io.containerd.server.v1.ttrpc": {
			"address": c.ttrpcAddress(),
		},
		"io.containerd.transfer.v1.local": {
			"unpack_config": []map[string]any{{
				"platform":    platforms.Format(platforms.DefaultSpec()),
				"snapshotter": c.Snapshotter,
				"differ":      differID,
			}},
		},
		"io.containerd.service.v1.diff-service": {
			"default": []string{differID},
		},
		"io.containerd.differ.v1." + differID: {
			"write_late": c.WriteLate,
		},
	}
}
