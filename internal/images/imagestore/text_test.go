// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// A variable of an image that is not UTF-8 arrived as other bytes.
func TestAConfigurationThatIsNotUTF8IsRefusedByItsName(t *testing.T) {
	for config, field := range map[string]string{
		`{"Env":["A=1","SECRET=a` + "\xff" + `b"]}`:                `the variable "SECRET" of Env`,
		`{"Env":["HALF=\ud800"]}`:                                  `the variable "HALF" of Env`,
		`{"Entrypoint":["` + "\xc3\x28" + `"]}`:                    "Entrypoint",
		`{"Cmd":["a","\udc00\ud800"]}`:                             "Cmd",
		`{"User":"` + "\xff" + `"}`:                                "User",
		`{"WorkingDir":"/` + "\xed\xa0\x80" + `"}`:                 "WorkingDir",
		`{"StopSignal":"` + "\xff" + `"}`:                          "StopSignal",
		`{"Volumes":{"/` + "\xff" + `":{}}}`:                       "Volumes",
		`{"Env":["A=\\ufffd\ud800"]}`:                              `the variable "A" of Env`,
		`{"Env":["A=é𝄞","B=\ud834\udd1e","C=�","D=\uFFFD\ufffd"]}`: "",
		`{"Env":["A=\\ud800","B=\\\\ufffd"],"Volumes":{"/�":{}}}`:  "",
		`{"Env":null,"Cmd":null,"Volumes":null,"User":""}`:         "",
		`{"Labels":{"nothing runs by it":"` + "\xff" + `"}}`:       "",
	} {
		_, _, err := parseConfig([]byte(`{"config":` + config + `}`))
		switch {
		case field == "" && err != nil:
			t.Errorf("%q: %v", config, err)
		case field != "" && (!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), field+" is not UTF-8")):
			t.Errorf("%q: want %s to be named: %v", config, field, err)
		case err != nil && strings.Contains(err.Error(), "a\\xffb"):
			t.Errorf("%q: the value is in the error: %v", config, err)
		}
	}
}
