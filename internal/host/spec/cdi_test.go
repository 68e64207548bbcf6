// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestCDIDevicesAreThoseOfTheFieldAndOfAnnotationsOnce(t *testing.T) {
	got, err := CDIDevices(&runtimeapi.ContainerConfig{
		CDIDevices:  []*runtimeapi.CDIDevice{{Name: "b.com/x=1"}, {Name: "a.com/x=1"}},
		Annotations: map[string]string{"cdi.k8s.io/two": "c.com/x=2,b.com/x=1", "cdi.k8s.io/one": "c.com/x=1", "other": "d.com/x=1"},
	})
	if want := []string{"b.com/x=1", "a.com/x=1", "c.com/x=1", "c.com/x=2"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q %v, want %q", got, err, want)
	}
}

// PROPERTIES 22: a name that is not one is refused before anything is made.
func TestANameThatIsNotOneOfACDIDeviceIsRefused(t *testing.T) {
	for _, tt := range []struct {
		name  string
		cfg   *runtimeapi.ContainerConfig
		field string
	}{
		{"field", &runtimeapi.ContainerConfig{CDIDevices: []*runtimeapi.CDIDevice{{Name: "gpu0"}}}, "CDI_devices"},
		{"empty", &runtimeapi.ContainerConfig{CDIDevices: []*runtimeapi.CDIDevice{{}}}, "CDI_devices"},
		{"annotation", &runtimeapi.ContainerConfig{Annotations: map[string]string{"cdi.k8s.io/x": "a.com/x=1,,"}}, "annotation cdi.k8s.io/x"},
	} {
		if err := CheckContainer(tt.cfg); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.field) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	many := &runtimeapi.ContainerConfig{}
	for i := range MaxCDIDevices + 1 {
		many.CDIDevices = append(many.CDIDevices, &runtimeapi.CDIDevice{Name: fmt.Sprintf("a.com/x=%d", i)})
	}
	if err := CheckContainer(many); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
}
