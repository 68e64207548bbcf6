// SPDX-License-Identifier: Apache-2.0

package state

// Owner says whose a pod is that containerd's CRI plug-in has made. It is written before each step of
// an adoption and of its way back, which package adopt draws. berth serves no pod but its own.
type Owner string

// The owners of a pod.
const (
	// OwnerPlugIn: it is the plug-in's. There is no record of it.
	OwnerPlugIn Owner = ""
	// OwnerTaking: it is being taken over from the plug-in, and nobody serves it.
	OwnerTaking Owner = "taking"
	// OwnerBerth: it is berth's.
	OwnerBerth Owner = "berth"
	// OwnerGiving: it is being given to the plug-in, and nobody serves it.
	OwnerGiving Owner = "giving"
)

// Adopted is what containerd's CRI plug-in has made for a sandbox or a container, and berth has no
// other name for. Removing the sandbox or the container releases all of it.
type Adopted struct {
	// Dirs are directories, with all that is mounted below them. The name of each is the ID.
	Dirs []string `json:"dirs,omitempty"`
	// Files are CNI's cached results.
	Files []string `json:"files,omitempty"`
	// Lease is containerd's lease that keeps what belongs to the pod; "" for none.
	Lease string `json:"lease,omitempty"`
	// Snapshots are those that are no writable layer of a container.
	Snapshots []Snapshot `json:"snapshots,omitempty"`
	// Shared are the files that the containers of a pod share. It is zero for a container.
	Shared SharedFiles `json:"shared,omitzero"`
}

// SharedFiles are files that the containers of a pod share, by their paths on this host.
type SharedFiles struct {
	Hosts      string `json:"hosts,omitempty"`
	Hostname   string `json:"hostname,omitempty"`
	ResolvConf string `json:"resolvConf,omitempty"`
	Shm        string `json:"shm,omitempty"` // the directory that is /dev/shm
}

// Snapshot names a snapshot.
type Snapshot struct {
	Snapshotter string `json:"snapshotter"`
	Key         string `json:"key"`
}
