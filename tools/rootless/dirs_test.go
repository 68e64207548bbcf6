// SPDX-License-Identifier: Apache-2.0

package rootless

import "testing"

func TestTheDirectoriesOfAUserAreThoseOfXDG(t *testing.T) {
	for _, v := range []string{"XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"} {
		t.Setenv(v, "")
	}
	t.Setenv("HOME", "/home/me")
	for got, want := range map[string]string{
		Data():     "/home/me/.local/share/berth",
		Settings(): "/home/me/.config/berth",
		Address():  "/home/me/.local/share/berth/berth.sock",
	} {
		if got != want {
			t.Errorf("%s, and not %s", got, want)
		}
	}
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/1000")
	if got := Address(); got != "/run/user/1000/berth.sock" {
		t.Errorf("the socket is %s", got)
	}
}
