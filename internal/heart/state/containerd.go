// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/containerd/errdefs"

	"berth/internal/base/wholefile"
)

// Containerd identifies the containerd that has the recorded objects. It is in a file of its own,
// so that an operator can remove it.
type Containerd struct {
	UUID string `json:"uuid"`
	Boot string `json:"boot"` // during which berth has worked with it last
	// StateDir is where a shim has shown that its state directory is; "" if it is beside its socket.
	StateDir string `json:"stateDir,omitempty"`
}

// ContainerdFile returns the path of the file in the directory of the records.
func ContainerdFile(root string) string { return filepath.Join(root, "containerd.json") }

// ReadContainerd returns the recorded containerd; zero if there is none. errdefs.ErrDataLoss means
// that the file was read, and is damaged. After any other error its content is unknown.
func ReadContainerd(root string) (c Containerd, err error) {
	switch err = wholefile.ReadSealed(ContainerdFile(root), &c); {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return c, nil
	case errors.Is(err, wholefile.ErrDamaged):
		err = fmt.Errorf("%w: %w", err, errdefs.ErrDataLoss)
	}
	return Containerd{}, fmt.Errorf("read which containerd has the pods: %w", err)
}

// Meets returns an error with a remedy if pods and containers are on record that c has, and is is
// another containerd, which does not know them. After a reboot nothing of them runs, and any
// containerd is met. So is one that is not known, as c or as is.
func (c Containerd) Meets(is Containerd, root string, units int) error {
	if c.UUID == "" || is.UUID == "" || c.UUID == is.UUID || c.Boot != is.Boot || units == 0 {
		return nil
	}
	return fmt.Errorf("%d pods and containers are on record that another containerd has, with the UUID %s, and this one has %s: "+
		"set containerd.address back, or mount the directory of that containerd, and remove them before you change either; if that containerd is gone for good, remove %s",
		units, c.UUID, is.UUID, ContainerdFile(root))
}

// Note puts it on record.
func (c Containerd) Note(root string) error {
	if err := wholefile.WriteSealed(ContainerdFile(root), c); err != nil {
		return fmt.Errorf("note which containerd has the pods: %w", err)
	}
	return nil
}
