// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/host/namespace"
)

// look runs a command in the pinned namespaces of p1.
func look(t *testing.T, p *Pins, command ...string) string {
	t.Helper()
	args := []string{"--ipc=" + p.IPC("p1"), "--uts=" + p.UTS("p1"), "--"}
	out, err := exec.CommandContext(t.Context(), "nsenter", append(args, command...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", command, err, out)
	}
	return strings.TrimSpace(string(out))
}

func newPins(t *testing.T) *Pins {
	t.Helper()
	p := New(filepath.Join(t.TempDir(), "pins"))
	t.Cleanup(func() {
		if err := p.Remove("p1"); err != nil {
			t.Error(err)
		}
	})
	return p
}

func sysctl(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestANamespaceIsMadeWithHostnameAndSysctlsAndTheHostKeepsItsOwn(t *testing.T) {
	p := newPins(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	const shm = "kernel.shm_rmid_forced"
	forced := sysctl(t, shm)
	if err := p.Make(Request{
		ID:       "p1",
		IPC:      true,
		UTS:      true,
		Hostname: "of-the-pod",
		Sysctls:  map[string]string{shm: "1", "fs.mqueue.msg_max": "11"},
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.Check("p1"); err != nil {
		t.Error(err)
	}
	for command, want := range map[string]string{
		"hostname":                             "of-the-pod",
		"cat /proc/sys/kernel/shm_rmid_forced": "1",
		"cat /proc/sys/fs/mqueue/msg_max":      "11",
	} {
		if got := look(t, p, strings.Fields(command)...); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	if now, _ := os.Hostname(); now != host || sysctl(t, shm) != forced {
		t.Errorf("the host has changed: %s, %s", now, sysctl(t, shm))
	}
	if ids, err := p.IDs(); err != nil || !slices.Equal(ids, []string{"p1"}) {
		t.Errorf("IDs: %q, %v", ids, err)
	}
}

// No thread that was in another namespace goes on to do anything else.
func TestNoThreadStaysInANamespace(t *testing.T) {
	p := newPins(t)
	for range 20 {
		if err := p.Make(Request{ID: "p1", IPC: true, UTS: true, Hostname: "other"}); err != nil {
			t.Fatal(err)
		}
		if h, err := os.Hostname(); err != nil || h == "other" {
			t.Fatalf("the hostname is %q: %v", h, err)
		}
	}
}

func TestWhatWasCutOffIsMadeAgain(t *testing.T) {
	p := newPins(t)
	if err := p.Make(Request{ID: "p1", IPC: true, UTS: true, Hostname: "first"}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(p.path("p1", noteName)); err != nil {
		t.Fatal(err)
	}
	if err := p.Check("p1"); !errdefs.IsNotFound(err) {
		t.Errorf("what was cut off is there: %v", err)
	}
	if err := p.Make(Request{ID: "p1", IPC: true, UTS: true, Hostname: "second"}); err != nil {
		t.Fatal(err)
	}
	if got := look(t, p, "hostname"); got != "second" {
		t.Errorf("hostname %q", got)
	}
}

func TestAnErrorLeavesNothingThatCheckTakesForWhole(t *testing.T) {
	p := newPins(t)
	for name, r := range map[string]Request{
		"sysctl":   {ID: "p1", IPC: true, Sysctls: map[string]string{"kernel.no_such_setting": "1"}},
		"hostname": {ID: "p1", UTS: true, Hostname: strings.Repeat("x", 65)},
		"no ID":    {ID: "../p1"},
	} {
		if err := p.Make(r); err == nil {
			t.Errorf("%s: no error", name)
		}
		if err := p.Check("p1"); !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := errors.Join(p.Remove("p1"), p.Remove("p1")); err != nil {
		t.Error(err)
	}
	if ids, err := p.IDs(); err != nil || len(ids) != 0 {
		t.Errorf("left: %q, %v", ids, err)
	}
}

// After a reboot the directory is empty, or it is that of an earlier boot where it is not a tmpfs.
func TestARebootLosesThePins(t *testing.T) {
	p := newPins(t)
	if err := p.Make(Request{ID: "p1"}); err != nil {
		t.Fatal(err)
	}
	if err := p.Check("p1"); err != nil {
		t.Errorf("a pod with the host's namespaces: %v", err)
	}
	p = &Pins{dir: p.dir, bootFile: filepath.Join(t.TempDir(), "boot_id")} // that of the next berth
	if err := os.WriteFile(p.bootFile, []byte("another\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Check("p1"); !errdefs.IsNotFound(err) {
		t.Errorf("after a reboot: %v", err)
	}
	if err := p.Make(Request{ID: "p1", IPC: true}); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the last ones ask whether a mount has changed, and no more
		if err := p.Check("p1"); err != nil {
			t.Errorf("a pod with a namespace of its own: %v", err)
		}
	}
	if err := namespace.Unpin(p.IPC("p1")); err != nil {
		t.Fatal(err)
	}
	if err := p.Check("p1"); !errdefs.IsNotFound(err) {
		t.Errorf("a pin was taken away: %v", err)
	}
}
