// SPDX-License-Identifier: Apache-2.0

package state

// Owner tells which program owns a pod that containerd's CRI plug-in made. It is written before
// each step of an adoption and of its way back, which package adopt draws. berth serves no pod but
// its own.
type Owner string

// The owners of a pod.
const (
	// OwnerPlugIn: the plug-in owns it. There is no record of it.
	OwnerPlugIn Owner = ""
	// OwnerTaking: it is being taken over from the plug-in, and is not served.
	OwnerTaking Owner = "taking"
	// OwnerBerth: it is berth's.
	OwnerBerth Owner = "berth"
	// OwnerGiving: it is being given to the plug-in, and is not served.
	OwnerGiving Owner = "giving"
)

// Adopted lists the objects that containerd's CRI plug-in made for a sandbox or a container and
// that no other hold covers. Removing the sandbox or the container releases all of it.
type Adopted struct {
	// Dirs are directories, with all that is mounted below them. The name of each is the ID.
	Dirs []string `json:"dirs,omitempty"`
	// Files are CNI's cached results.
	Files []string `json:"files,omitempty"`
	// Lease is containerd's lease on the pod's objects; "" for none.
	Lease string `json:"lease,omitempty"`
	// Snapshots are those that are not the writable layer of a container.
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
