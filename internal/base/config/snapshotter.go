// SPDX-License-Identifier: Apache-2.0

package config

import "slices"

// Snapshotter is one that is a program of its own, and serves containerd's API of snapshots: a
// proxy plug-in, as containerd calls it.
type Snapshotter struct {
	Address string `toml:"address" doc:"Unix socket of the snapshotter, such as that of stargz-snapshotter, SOCI or nydus."`
	Root    string `toml:"root" doc:"Directory of its layers, whose file system CRI reports as that of the images if containerd.snapshotter is this one. Empty: that of root."`
}

// builtIn are the snapshotters that need no table.
var builtIn = []string{"overlayfs", "native"}

// check reports settings of a snapshotter that cannot work. prefix begins the names of the
// settings.
func (s Snapshotter) check(prefix, name string, c *Config, bad func(key, format string, args ...any)) {
	switch {
	case slices.Contains(builtIn, name):
		bad(prefix+"address", "%s is built in; choose another name", name)
	case c.Containerd.Address != "":
		bad(prefix+"address", "the containerd at %s has its own snapshotters; add this one to its proxy_plugins instead", c.Containerd.Address)
	case len(s.Address) > maxSocket:
		bad(prefix+"address", "%d bytes are too many for the path of a socket; the maximum is %d", len(s.Address), maxSocket)
	}
	setPath{prefix + "address", s.Address, inURL}.check(bad)
	if s.Root != "" {
		setPath{prefix + "root", s.Root, ""}.check(bad)
	}
}
