// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/plugins/diff/walking"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	"berth/internal/images/unpack"
)

// differID names the part that compares layers, as containerd's own does, and unpacks them, each in
// a process of its own.
const differID = "apart"

// differConfig is the configuration of the part.
type differConfig struct {
	WriteLate bool `toml:"write_late"` // see Config
}

func init() {
	registry.Register(&plugin.Registration{
		Type:     plugins.DiffPlugin,
		ID:       differID,
		Requires: []plugin.Type{plugins.MetadataPlugin},
		Config:   &differConfig{},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			db, err := ic.GetSingle(plugins.MetadataPlugin)
			if err != nil {
				return nil, err
			}
			ic.Meta.Platforms = append(ic.Meta.Platforms, platforms.DefaultSpec())
			store := db.(*metadata.DB).ContentStore()
			return differ{walking.NewWalkingDiff(store), unpack.Applier{Layers: store, Late: ic.Config.(*differConfig).WriteLate}}, nil
		},
	})
}

type differ struct {
	diff.Comparer
	diff.Applier
}
