// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestThaw(t *testing.T) {
	dir := group(t)
	file, freeze, look, frozen := filepath.Join(dir, "cgroup.freeze"), "1", filepath.Join(dir, "cgroup.events"), "frozen 1"
	if !V2() {
		other := filepath.Join(mount, "freezer", filepath.Base(dir))
		if err := os.Mkdir(other, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(other); err != nil {
				t.Error(err)
			}
		})
		file, freeze, frozen = filepath.Join(other, "freezer.state"), "FROZEN", "FROZEN"
		look = file
	}
	is := func(want bool) {
		t.Helper()
		deadline := time.After(10 * time.Second)
		for {
			b, err := os.ReadFile(look)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(b), frozen) == want {
				return
			}
			select {
			case <-deadline:
				t.Fatalf("%s is %q", look, b)
			default:
			}
		}
	}
	if err := os.WriteFile(file, []byte(freeze), 0); err != nil {
		t.Fatal(err)
	}
	is(true)
	for range 2 { // one that is not frozen is a success
		if err := Thaw(dir); err != nil {
			t.Fatal(err)
		}
		is(false)
	}
	if err := Thaw(dir + "-absent"); err != nil {
		t.Errorf("absent: %v", err)
	}
}
