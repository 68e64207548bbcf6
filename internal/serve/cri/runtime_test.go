// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"log/slog"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
)

// handlers is a Health that knows which runtime handlers have user namespaces.
type handlers struct {
	Health
	userNamespaces []bool
}

func (h handlers) Runtime() error { return nil }
func (h handlers) Network() error { return nil }

func (h handlers) PulledProfiles() bool  { return true }
func (h handlers) WritableCgroups() bool { return len(h.userNamespaces) > 1 }

func (h handlers) Handlers() []*runtimeapi.RuntimeHandler {
	var out []*runtimeapi.RuntimeHandler
	for _, has := range h.userNamespaces {
		out = append(out, &runtimeapi.RuntimeHandler{Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: has}})
	}
	return out
}

// PROPERTIES 22: a user namespace on the host's network was given and not advertised, so that the
// scheduler placed no pod that asks for both on the node.
func TestUserNamespacesOnTheHostsNetworkAreAdvertisedWhereThereAreUserNamespaces(t *testing.T) {
	for _, tt := range []struct {
		handlers []bool
		want     bool
	}{
		{[]bool{true}, true},
		{[]bool{false, true}, true}, // the kubelet looks at the handler of each pod
		{[]bool{false, false}, false},
	} {
		c := dialServer(t, &Runtime{Health: handlers{userNamespaces: tt.handlers}}, slog.New(slog.DiscardHandler), &observed{})
		st, err := c.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil || st.GetFeatures().GetUserNamespacesHostNetwork() != tt.want {
			t.Errorf("handlers with user namespaces %v: advertised %v, %v", tt.handlers, st.GetFeatures(), err)
		}
		if f, err := cri138.Of[cri138.RuntimeFeatures](st.GetFeatures()); err != nil || f.GetCgroupMountMode() != (len(tt.handlers) > 1) {
			t.Errorf("the mode in which control groups are mounted is advertised as %v, %v", f, err)
		}
	}
}
