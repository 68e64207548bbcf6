// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"fmt"
	"slices"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// The library looks into each entry of a specification before it checks that there is one, so that
// a null in a file would end berth. Its hook for checks is called before that.
func init() { cdi.SetSpecValidator(complete{}) }

// complete refuses specifications with entries that are null.
type complete struct{}

// Validate returns an error that names the list with the null.
func (complete) Validate(s *specs.Spec) error {
	if err := checkEdits(s.ContainerEdits); err != nil {
		return err
	}
	for _, d := range s.Devices {
		if err := checkEdits(d.ContainerEdits); err != nil {
			return fmt.Errorf("device %q: %w", d.Name, err)
		}
	}
	return nil
}

func checkEdits(e specs.ContainerEdits) error {
	for name, null := range map[string]bool{
		"deviceNodes": slices.Contains(e.DeviceNodes, nil),
		"netDevices":  slices.Contains(e.NetDevices, nil),
		"hooks":       slices.Contains(e.Hooks, nil),
		"mounts":      slices.Contains(e.Mounts, nil),
	} {
		if null {
			return fmt.Errorf("an entry of containerEdits.%s is null", name)
		}
	}
	return nil
}
