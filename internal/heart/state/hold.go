// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Hold is a set of things that an object holds outside berth. A hold is committed before the thing
// is made and struck off after it was released, so it means that the thing may exist: releasing an
// absent thing succeeds.
type Hold uint16

const (
	// the task, its process and the shim's record of it; for a sandbox without a process, its shim
	HoldTask      Hold = 1 << iota
	HoldIO             // stdio: FIFOs, the spool and the pump
	HoldContainer      // the container object in containerd
	HoldSnapshot       // the writable snapshot
	HoldSandbox        // the sandbox object in containerd's sandbox store
	HoldNetwork        // the allocation of CNI
	HoldNetNS          // the pinned network namespace
	HoldFiles          // directories and mounts of berth's own
	// the views of images that are mounted as volumes, or that a pause process runs from
	HoldViews
	HoldPins    // the pinned IPC and UTS namespaces of a sandbox without a process
	HoldAdopted // objects of containerd's CRI plug-in that no other hold covers

	holdAll = 1<<iota - 1
)

var holdNames = []string{"task", "io", "container", "snapshot", "sandbox", "network", "netns", "files", "views", "pins", "adopted"}

// Has reports whether all of x is held.
func (h Hold) Has(x Hold) bool { return h&x == x && x != 0 }

// Names lists the holds in h.
func (h Hold) Names() []string {
	var names []string
	for i, n := range holdNames {
		if h&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return names
}

func (h Hold) String() string { return strings.Join(h.Names(), ",") }

// MarshalJSON writes the names, so that a record can be read without this source.
func (h Hold) MarshalJSON() ([]byte, error) { return json.Marshal(h.Names()) }

// UnmarshalJSON reads the names. An unknown one is an error, because the thing that it names could
// not be released: so an older berth refuses the records ([ErrNewer]). What an older one may leave
// alone is therefore not a hold but a field of the status, which it passes over.
func (h *Hold) UnmarshalJSON(b []byte) error {
	var names []string
	if err := json.Unmarshal(b, &names); err != nil {
		return err
	}
	var all Hold
	for _, n := range names {
		i := slices.Index(holdNames, n)
		if i < 0 {
			return fmt.Errorf("read holds: %q is not known to this berth", n)
		}
		all |= 1 << i
	}
	*h = all
	return nil
}
