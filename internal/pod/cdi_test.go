// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/state"
	"berth/test/world"
)

// fakeDevices has one CDI device.
type fakeDevices struct{}

func (fakeDevices) Inject(s *specs.Spec, names []string) error {
	for _, n := range names {
		if n != "vendor.com/gpu=0" {
			return fmt.Errorf("CDI device %s: %w", n, errdefs.ErrNotFound)
		}
		s.Process.Env = append(s.Process.Env, "GPU=0")
	}
	return nil
}

func withDevice(name, device string) *runtimeapi.ContainerConfig {
	c := ctr(name)
	c.CDIDevices = []*runtimeapi.CDIDevice{{Name: device}}
	return c
}

// PROPERTIES 22: a container that asks for a device gets it, or is not made and leaves nothing.
func TestAContainerIsNotMadeWithoutTheDeviceThatItAskedFor(t *testing.T) {
	for _, tt := range []struct {
		name    string
		devices pod.Devices
		device  string
		refused func(error) bool
	}{
		{"known", fakeDevices{}, "vendor.com/gpu=0", nil},
		{"unknown", fakeDevices{}, "vendor.com/gpu=1", errdefs.IsNotFound},
		{"no devices at all", nil, "vendor.com/gpu=0", errdefs.IsNotImplemented},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) { p.Devices = tt.devices })
				sb := b.pod("p1", "")
				before := b.Left()
				id, err := b.CreateContainer(t.Context(), sb, withDevice("c1", tt.device))
				if tt.refused != nil {
					if err == nil || !tt.refused(err) {
						t.Fatalf("got %v", err)
					}
					b.expectLeft(before)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if env := b.Spec(id).Process.Env; len(env) == 0 || env[len(env)-1] != "GPU=0" {
					t.Errorf("env %q", env)
				}
			})
		})
	}
}
