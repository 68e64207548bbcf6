// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
)

// groupsOf is an /etc/group in which app is in n groups.
func groupsOf(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "g%d:x:%d:app\n", i, i+2000)
	}
	return b.Bytes()
}

// A process has at most NGROUPS_MAX groups: the OCI runtime failed with "invalid argument", once
// everything was made.
func TestMoreGroupsThanTheKernelTakesAreRefused(t *testing.T) {
	in := input()
	in.Image.User, in.Group = "app", groupsOf(MaxGroups-1)
	if got := make1(t, in).Process.User.AdditionalGids; len(got) != MaxGroups {
		t.Errorf("%d groups", len(got))
	}
	in.Group = groupsOf(MaxGroups)
	_, _, err := ForContainer(host(), in)
	refused(t, "a group too many", err)
	in.Group = nil
	for i := range int64(MaxGroups + 1) {
		sec(&in).SupplementalGroups = append(sec(&in).SupplementalGroups, i)
	}
	_, _, err = ForContainer(host(), in)
	refused(t, "supplemental_groups", err)
}

// CVE-2025-4437: the files of an image are its author's, and as large as they are let be. Looking a
// user up took memory many times their size, at each creation of a container.
func TestLookingAUserUpTakesNoMemory(t *testing.T) {
	in := input()
	in.Image.User = "last"
	in.Passwd = append(bytes.Repeat([]byte("a:x:1:1::/:\n"), MaxEtcFile/12-10), "last:x:7:8::/last:\n"...)
	in.Group = bytes.Repeat([]byte("a:x:1:b,c,d,e,f,g,h,i,j,k\n"), MaxEtcFile/26-10)
	if len(in.Passwd) > MaxEtcFile || len(in.Group) > MaxEtcFile {
		t.Fatal("the files are too large to be looked at")
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	u, home, err := resolveUser(in)
	runtime.ReadMemStats(&after)
	if err != nil || u.UID != 7 || u.GID != 8 || home != "/last" {
		t.Fatalf("%+v %s %v", u, home, err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10 {
		t.Errorf("%d bytes were allocated for files of %d", n, len(in.Passwd)+len(in.Group))
	}
}

func BenchmarkUserInManyGroups(b *testing.B) {
	in := input()
	in.Image.User, in.Group = "app", groupsOf(MaxGroups-1)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := resolveUser(in); err != nil {
			b.Fatal(err)
		}
	}
}
