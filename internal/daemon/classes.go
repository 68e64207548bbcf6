// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"

	"github.com/intel/goresctrl/pkg/blockio"
	"github.com/intel/goresctrl/pkg/rdt"

	"berth/internal/base/config"
	"berth/internal/host/spec"
)

// openClasses makes the classes of RDT and block I/O that files describe, and returns what finds
// those of a container; nil without a file.
func openClasses(cfg config.Pod) (func(name string, own, pod map[string]string) (spec.Classes, error), error) {
	if cfg.RDTFile == "" && cfg.BlockIOFile == "" {
		return nil, nil
	}
	if cfg.RDTFile != "" {
		if err := rdt.Initialize(""); err != nil {
			return nil, fmt.Errorf("pod.rdt_file: this host has no RDT, or resctrl is not mounted: %w", err)
		}
		if err := rdt.SetConfigFromFile(cfg.RDTFile, true); err != nil {
			return nil, fmt.Errorf("pod.rdt_file: %w", err)
		}
	}
	if cfg.BlockIOFile != "" {
		if err := blockio.SetConfigFromFile(cfg.BlockIOFile, true); err != nil {
			return nil, fmt.Errorf("pod.blockio_file: %w", err)
		}
	}
	return func(name string, own, pod map[string]string) (c spec.Classes, err error) {
		if cfg.RDTFile != "" {
			if c.RDT, err = rdt.ContainerClassFromAnnotations(name, own, pod); err != nil {
				return c, err
			}
		}
		if cfg.BlockIOFile != "" {
			class, err := blockio.ContainerClassFromAnnotations(name, own, pod)
			if err == nil && class != "" {
				c.BlockIO, err = blockio.OciLinuxBlockIO(class)
			}
			if err != nil {
				return c, fmt.Errorf("class of block I/O %q: %w", class, err)
			}
		}
		return c, nil
	}, nil
}
