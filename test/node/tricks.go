// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"reflect"

	"berth/internal/base/config"
)

// WithoutTricks returns the arguments of a berth that uses none of the tricks of docs/tricks.md.
// The place of containerd is not an argument: see [Options].
func WithoutTricks() []string {
	off := []string{
		"--set", "pod.pause=always",
		"--set", "containerd.sync_layers=true",
		"--set", "image.max_concurrent_unpacks=1",
		"--set", "runtimes.runc.start=oci",
	}
	for f := range reflect.TypeFor[config.Tricks]().Fields() {
		off = append(off, "--set", "tricks."+f.Tag.Get("toml")+"=false")
	}
	return off
}

// usual returns the arguments that each node has besides its own: BERTH_TRICKS=off takes the tricks
// from all of them, but for those that a test asks for.
func usual() []string {
	if os.Getenv("BERTH_TRICKS") == "off" {
		return WithoutTricks()
	}
	return nil
}
