// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/spec"
)

// What was looked at was not what was read: the file was named twice. What takes the place of a
// profile neither hangs berth nor fills its memory.
func TestASeccompProfileIsAFileOfABoundedSize(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("good", `{"defaultAction": "SCMP_ACT_ALLOW"}`)
	write("large", strings.Repeat(" ", spec.MaxSeccomp+1))
	if err := os.Symlink("good", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"good", "link"} {
		if p, err := loadSeccomp(dir + "/" + name); err != nil || p.DefaultAction != "SCMP_ACT_ALLOW" {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
	for _, path := range []string{dir + "/large", dir + "/fifo", dir, dir + "/absent", "/dev/zero", "good"} {
		if _, err := loadSeccomp(path); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
	// A file of the kernel says that it is empty, and is not: its size does not bound it.
	if _, err := loadSeccomp("/proc/self/maps"); err == nil || strings.Contains(err.Error(), "regular") {
		t.Errorf("%v", err)
	}
}
