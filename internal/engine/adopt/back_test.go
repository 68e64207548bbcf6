// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/state"
)

// PROPERTIES 46: what containerd has lost of a pod is named before anything is changed, also the container
// object of its sandbox, of which a sandbox object may be left. What is to be done is what can be done: berth
// does not serve a pod that is on its way, and there is one that has nothing left.
func TestWhatContainerdHasLostOfAPodIsNamed(t *testing.T) {
	record := func(owner state.Owner) state.Loaded {
		return state.Loaded{
			Sandboxes: []state.SandboxRecord{{
				Sandbox: state.Sandbox{ID: "p1", Config: &runtimeapi.PodSandboxConfig{}, Adopted: &state.Adopted{}},
				Status:  state.Status{Owner: owner},
			}},
			Containers: []state.ContainerRecord{{Container: state.Container{ID: "c1", PodID: "p1", Config: &runtimeapi.ContainerConfig{}, Adopted: &state.Adopted{}}}},
		}
	}
	p1, c1 := Object{ID: "p1"}, Object{ID: "c1"}
	for _, tc := range []struct {
		name    string
		objects []Object
		owner   state.Owner
		want    string // "": the plug-in can have it
	}{
		{"all there", []Object{p1, c1}, state.OwnerBerth, ""},
		{"no sandbox", []Object{c1}, state.OwnerBerth, "let berth serve"},
		{"half a sandbox", []Object{{ID: "p1", Half: true}, c1}, state.OwnerBerth, "let berth serve"},
		{"no container", []Object{p1}, state.OwnerBerth, "let berth serve"},
		{"no sandbox on the way", []Object{c1}, state.OwnerTaking, "ctr -n k8s.io containers rm c1"},
		{"no sandbox on the way back", []Object{c1}, state.OwnerGiving, "ctr -n k8s.io containers rm c1"},
		{"no container on the way", []Object{p1}, state.OwnerTaking, "run `berth adopt`"},
		{"no container on the way back", []Object{p1}, state.OwnerGiving, "run `berth adopt`"},
		{"nothing on the way back", nil, state.OwnerGiving, "run `berth adopt`"},
	} {
		b := MakeBack(record(tc.owner), Found{Objects: tc.objects})
		switch {
		case tc.want == "" && len(b.Pods) != 1:
			t.Errorf("%s: %+v", tc.name, b.Kept)
		case tc.want != "" && (len(b.Kept) != 1 || !strings.Contains(b.Kept[0].Text, tc.want)):
			t.Errorf("%s: %+v is kept, and does not say %q", tc.name, b.Kept, tc.want)
		case tc.want != "" && tc.owner != state.OwnerBerth && strings.Contains(b.Kept[0].Text, "let berth serve"):
			t.Errorf("%s: berth does not serve it: %s", tc.name, b.Kept[0].Text)
		}
	}
}

// PROPERTIES 46: the plug-in of containerd 1.7 forgets the network of a pod with a user namespace whenever
// it is restarted. That is said before such a pod is given back, and of no other pod.
func TestANetworkThatThePlugInForgetsIsNamed(t *testing.T) {
	const kept = `"CNIResult":{"Interfaces":{"eth0":{"IPConfigs":null}}}`
	for what, tc := range map[string]struct {
		text  string
		holds state.Hold
		lost  bool
	}{
		"kept":               {sandboxText, state.HoldNetwork, false},
		"not kept":           {strings.Replace(sandboxText, kept, `"CNIResult":null`, 1), state.HoldNetwork, true},
		"not known":          {strings.Replace(sandboxText, kept+",", "", 1), state.HoldNetwork, true},
		"stopped":            {strings.Replace(sandboxText, kept, `"CNIResult":null`, 1), 0, false},
		"that of the host":   {strings.NewReplacer(kept, `"CNIResult":null`, "/run/netns/cni-1", "").Replace(sandboxText), state.HoldNetwork, false},
		"nothing to be read": {"", state.HoldNetwork, false},
	} {
		b := MakeBack(state.Loaded{Sandboxes: []state.SandboxRecord{{
			Sandbox: state.Sandbox{ID: "p1", Config: &runtimeapi.PodSandboxConfig{}, Adopted: &state.Adopted{}},
			Status:  state.Status{Owner: state.OwnerBerth, Holds: tc.holds},
		}}}, Found{Objects: []Object{{ID: "p1", Kind: "sandbox", Metadata: []byte(tc.text)}}})
		if len(b.Pods) != 1 || (len(b.Pods[0].Lost) > 0) != tc.lost {
			t.Errorf("%s: %+v", what, b)
		}
	}
}
