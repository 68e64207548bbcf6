// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"path/filepath"

	"berth/internal/stream"
)

// openStreams makes what runs commands in containers.
func (d *daemon) openStreams() (err error) {
	d.streams, err = stream.New(stream.Config{
		Dir:       filepath.Join(d.cfg.State, "exec"),
		Target:    d.core.Pods.Target,
		Processes: d.ctrd,
		Logger:    d.log.Logger,
	})
	return err
}
