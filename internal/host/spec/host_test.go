// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"slices"
	"testing"
)

func TestTheHostIsReadWithoutPrivileges(t *testing.T) {
	h, err := ReadHost([]string{"CAP_CHOWN"})
	if err != nil {
		t.Fatal(err)
	}
	if (len(h.MaxRlimits) == 0) != (h.MinOOMScoreAdj == -1000) {
		t.Errorf("CAP_SYS_RESOURCE is there for one and not for the other: %v, %d", h.MaxRlimits, h.MinOOMScoreAdj)
	}
	for _, s := range h.HugePages {
		if !pageSizeForm.MatchString(s) {
			t.Errorf("page size %q", s)
		}
	}
	if !slices.ContainsFunc(h.Devices(), func(d Device) bool { return d.Path == "/dev/null" && d.Major == 1 && d.Minor == 3 }) {
		t.Error("/dev/null is not among the devices")
	}
}

func TestCapSysResourceIsReadFromTheStatusOfAProcess(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tx\nCapEff:\t000001ffffffffff\n": true,
		"CapEff:\t00000000a80425fb\n":           false,
		"CapEff:\tnonsense\n":                   false,
		"CapPrm:\t000001ffffffffff\n":           false,
	} {
		if got := hasSysResource(status); got != want {
			t.Errorf("%q: %v", status, got)
		}
	}
}
