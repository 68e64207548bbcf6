// SPDX-License-Identifier: Apache-2.0

package version

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

func set(t *testing.T, v, commit string) {
	oldVersion, oldCommit := Version, Commit
	t.Cleanup(func() { Version, Commit = oldVersion, oldCommit })
	Version, Commit = v, commit
}

// The kubelet asks for a semantic version, and shows the node's runtime as Unknown if it does not
// get one. The version was "573f270".
func TestTheVersionIsSemantic(t *testing.T) {
	for described, want := range map[string]string{
		"dev":                            "0.1.0+dev",
		"":                               "0.1.0+unknown",
		"573f270":                        "0.1.0+573f270",
		"573f270-dirty":                  "0.1.0+573f270.dirty",
		"1234567":                        "0.1.0+1234567", // a hash that looks like a number
		"v0.1.0":                         "0.1.0",
		"0.3.0":                          "0.3.0",
		"v0.3.0-dirty":                   "0.3.0+dirty",
		"v0.1.0-12-gabc1234":             "0.1.0+12.gabc1234",
		"v0.1.0-12-gabc1234-dirty":       "0.1.0+12.gabc1234.dirty",
		"v1.0.0-rc.1":                    "1.0.0-rc.1",
		"v1.0.0-rc.1-3-gabc1234":         "1.0.0-rc.1+3.gabc1234",
		"v1.0.0-rc.01":                   "1.0.0-rc.1",
		"v1.2":                           "1.2.0",
		"v1":                             "1.0.0",
		"v01.002.0":                      "1.2.0",
		"1.2.3~deb13u1":                  "1.2.3+deb13u1",
		"1.2.3.4":                        "1.2.3+4",
		"99999999999.1":                  "999999999.0.0+99.1",
		"release/2026":                   "0.1.0+release.2026",
		"v1.0.0-12-gabc1234-extra words": "1.0.0-12-gabc1234-extra+words",
	} {
		set(t, described, "")
		got := Semantic()
		if got != want {
			t.Errorf("%q became %q, want %q", described, got, want)
		}
		if _, err := version.ParseSemantic(got); err != nil {
			t.Errorf("the kubelet refuses %q: %v", got, err)
		}
	}
}

func FuzzTheVersionIsSemantic(f *testing.F) {
	f.Add("v0.1.0-12-gabc1234-dirty")
	f.Add("1.2.3-a..b-")
	f.Fuzz(func(t *testing.T, described string) {
		set(t, described, "")
		got := Semantic()
		if _, err := version.ParseSemantic(got); err != nil {
			t.Errorf("%q became %q: %v", described, got, err)
		}
	})
}

func TestString(t *testing.T) {
	for _, tc := range []struct{ version, commit, want string }{
		{"dev", "", "0.1.0+dev"},
		{"v0.3.0", "1a2b3c4d5e6f7a8b", "0.3.0 (1a2b3c4d5e6f)"},
		{"1a2b3c4-dirty", "1a2b3c4d5e6f7a8b", "0.1.0+1a2b3c4.dirty"},
		{"dev", "1a2b", "0.1.0+dev (1a2b)"},
	} {
		set(t, tc.version, tc.commit)
		if got := String(); got != tc.want {
			t.Errorf("String() of %q, %q = %q, want %q", tc.version, tc.commit, got, tc.want)
		}
	}
}
