// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

// cdiPrefix begins the annotations by which device plug-ins asked for CDI devices before CRI had a
// field for them. The value is a list of names, separated by commas.
const cdiPrefix = "cdi.k8s.io/"

// CDIDevices returns the qualified names of the CDI devices that a container requests, each once:
// first those of the field CDI_devices, then those of annotations in the order of their keys. The
// error is ErrInvalidArgument and names the field or annotation.
func CDIDevices(cfg *runtimeapi.ContainerConfig) ([]string, error) {
	var names []string
	add := func(field, name string) error {
		if _, _, _, err := parser.ParseQualifiedName(name); err != nil {
			return fmt.Errorf("%s: %q is not the name of a CDI device, such as vendor.com/class=name: %w: %w",
				field, name, err, errdefs.ErrInvalidArgument)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		if len(names) > MaxCDIDevices {
			return tooMuch(field, len(names), MaxCDIDevices, "entries")
		}
		return nil
	}
	for _, d := range cfg.GetCDIDevices() {
		if err := add("CDI_devices", d.GetName()); err != nil {
			return nil, err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(cfg.GetAnnotations())) {
		if !strings.HasPrefix(key, cdiPrefix) {
			continue
		}
		for name := range strings.SplitSeq(cfg.GetAnnotations()[key], ",") {
			if err := add("annotation "+key, name); err != nil {
				return nil, err
			}
		}
	}
	return names, nil
}
