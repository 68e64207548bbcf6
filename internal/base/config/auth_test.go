// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestCredentialsAreReadAndNeverWritten(t *testing.T) {
	c, err := Parse([]byte("[image.auth.'registry.example:5000']\nusername = 'me'\npassword = 'geheim'\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Image.Auth["registry.example:5000"]; got.Username != "me" || string(got.Password) != "geheim" {
		t.Errorf("%q %q", got.Username, string(got.Password))
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	var shown strings.Builder
	if err := c.Write(&shown); err != nil {
		t.Fatal(err)
	}
	again, err := Parse([]byte(shown.String()))
	if err != nil || again.Image.Auth["registry.example:5000"].Username != "me" {
		t.Errorf("what is shown cannot be read: %v\n%s", err, shown.String())
	}
	if err := again.Check(); err == nil {
		t.Error("what is shown passes for a password")
	}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{shown.String(), string(b), fmt.Sprint(c), fmt.Sprintf("%+v %#v %q", c, c, c.Image.Auth)} {
		if strings.Contains(s, "geheim") {
			t.Errorf("the password is in %s", s)
		}
	}
	for _, bad := range []Auth{{Username: "me"}, {Password: "x"}} {
		c.Image.Auth = map[string]Auth{"registry.example": bad}
		if err := c.Check(); err == nil || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	c.Image.Auth = map[string]Auth{"https://registry.example/": {"me", "x"}}
	if err := c.Check(); err == nil {
		t.Error("a URL passes for a host")
	}
}
