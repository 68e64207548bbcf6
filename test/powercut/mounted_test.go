// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/images/durable"
	"berth/test/command"
)

// mountAgain unmounts a disk, once no process that was killed uses it any more, and mounts it once the
// kernel has shut its file system down. A process of another test that was given a mount namespace
// meanwhile, with a copy of the mount, keeps the file system until it ends.
func (d *disk) mountAgain() {
	d.t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(d.dir, &st); err != nil {
		d.t.Fatal(err)
	}
	device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		d.t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < 2*time.Minute; time.Sleep(50 * time.Millisecond) {
		if err = unix.Unmount(d.dir, 0); err == nil || errors.Is(err, unix.EINVAL) { // EINVAL: it was unmounted before
			if _, err = os.Stat("/sys/fs/" + d.kind + "/" + filepath.Base(device)); err != nil {
				d.mount()
				return
			}
			err = errors.New("another mount namespace has a copy of it")
		}
	}
	d.t.Fatalf("unmount %s: %v", d.dir, err)
}

// PROPERTIES 53 and 39: the disk of the images was shut down and mounted again within one boot. berth asked
// for the boot alone, and trusted empty files.
func TestImagesAreWholeAfterTheirDiskWasMountedAgain(t *testing.T) {
	d := newDisk(t, fileSystem())
	im, _ := makeImage(t, t.TempDir(), "localhost/cut:1", 1)
	n := start(t, d, false)
	if _, err := n.Import(t.Context(), im.archive, ""); err != nil {
		t.Fatal(err)
	}
	d.cut(logFlush)
	n.Berth.Kill(syscall.SIGKILL)
	d.mountAgain()
	n.StartBerth()
	files, err := wrong(t, n, im)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) > 0 {
		t.Errorf("%d of %d files are wrong: %s", len(files), len(im.files), files[0])
	}
	verified(n, d)
}

// lifeOf asks for the life of a directory in a mount namespace of its own, as systemd may make one for each
// start of berth.
func lifeOf(t *testing.T, dir string) string {
	t.Helper()
	cmd := command.New(t, "unshare", "--mount", os.Args[0], "-test.run=^TestTheLifeOfADisk$")
	cmd.Env = append(os.Environ(), "BERTH_LIFE_OF="+dir)
	out, err := cmd.CombinedOutput()
	text, _, ok := strings.Cut(string(out), "\n")
	if err != nil || !ok {
		t.Fatalf("%v: %s", err, out)
	}
	return text
}

// PROPERTIES 53: the life of a file system is the same by each mount that leads to it and in each mount
// namespace, so that a restart of berth doubts nothing, and another one once it was mounted again.
func TestTheLifeOfADisk(t *testing.T) {
	if dir := os.Getenv("BERTH_LIFE_OF"); dir != "" {
		text, err := durable.Life(dir)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = os.Stdout.WriteString(text + "\n")
		return
	}
	d := newDisk(t, fileSystem())
	bound := t.TempDir()
	if err := errors.Join(os.Mkdir(d.dir+"/lib", 0o700), unix.Mount(d.dir+"/lib", bound, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(bound, unix.MNT_DETACH) }()
	first := lifeOf(t, d.dir)
	if first == "" {
		t.Fatal("it is not known: this kernel, or this file system, does not tell")
	}
	for _, dir := range []string{d.dir, d.dir + "/lib", d.dir + "/lib/not/there/yet", bound} {
		if is := lifeOf(t, dir); is != first {
			t.Errorf("%s: %q, and %q before", dir, is, first)
		}
	}
	if err := unix.Unmount(bound, 0); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		d.mountAgain()
		is := lifeOf(t, d.dir)
		if is == first {
			t.Errorf("mounted again: %q", is)
		}
		first = is
	}
}
