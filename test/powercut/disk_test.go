// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/wholefile"
	"berth/test/command"
	"berth/test/node"
)

// disk is a file system in a file, mounted at dir.
type disk struct {
	t    *testing.T
	file string
	dir  string
	kind string
}

// newDisk makes a disk and mounts it. The test's end unmounts it, after the node that was started
// later has stopped.
func newDisk(t *testing.T, kind string) *disk {
	t.Helper()
	needLoop(t)
	base := node.TempDir(t)
	d := &disk{t: t, file: base + "/disk", dir: base + "/mnt", kind: kind}
	t.Cleanup(d.unmount)
	const size = 640 << 20 // mkfs.xfs refuses less than 300 MiB
	if err := errors.Join(os.WriteFile(d.file, nil, 0o600), os.Truncate(d.file, size), os.Mkdir(d.dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs."+kind, "-q", d.file)
	d.mount()
	return d
}

// needLoop skips a test where the kernel has no loop devices, as in some containers in which tests
// are run: no disk can be made there.
func needLoop(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("there are no loop devices, so there is no disk whose power could be cut: %v", err)
	}
	f.Close()
}

// unmount ends the use of the disk. A process that was killed may take a moment to end.
func (d *disk) unmount() {
	for range 200 {
		if err := unix.Unmount(d.dir, 0); err == nil || errors.Is(err, unix.EINVAL) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	_ = unix.Unmount(d.dir, unix.MNT_DETACH)
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := command.New(t, name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func (d *disk) mount() {
	d.t.Helper()
	run(d.t, "mount", "-o", "loop", d.file, d.dir)
}

// EXT4_IOC_SHUTDOWN and its flags, which are XFS_IOC_GOINGDOWN and its as well.
const (
	shutdown = 0x8004587d
	logFlush = 1 // the journal is written first: names and sizes are on the disk, data may not be
	noFlush  = 2 // the journal is cut off as well
)

// cut is the power cut: nothing more of the file system is written to the disk, but the journal as
// the flag says.
func (d *disk) cut(flag int) {
	d.t.Helper()
	fd, err := unix.Open(d.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetPointerInt(fd, shutdown, flag); err != nil {
		d.t.Fatalf("shut down %s: %v", d.dir, err)
	}
}

// boot mounts the disk again, as the next boot does. The kernel of the test is the same one, so
// what berth has noted of its boot is changed to be of another one.
func (d *disk) boot() {
	d.t.Helper()
	d.mountAgain()
	path := filepath.Join(d.dir, "lib/boot")
	var r map[string]any
	if err := wholefile.ReadSealed(path, &r); err != nil {
		d.t.Fatalf("berth has not noted its boot: %v", err)
	}
	r["boot"] = "an earlier one"
	if err := wholefile.WriteSealed(path, r); err != nil {
		d.t.Fatal(err)
	}
}

func cuts(t *testing.T) []int {
	t.Helper()
	s := os.Getenv("BERTH_CUTS")
	if s == "" {
		rooms := []string{"internal/images/durable", "internal/images/imagestore", "internal/images/unpack", "internal/base/wholefile", "test/powercut", "go.mod"}
		return node.Share(t, "cuts", 2, rooms, 0, 1, 2, 3)
	}
	n := 0
	if _, err := fmt.Sscan(s, &n); err != nil {
		t.Fatalf("BERTH_CUTS=%s: %v", s, err)
	}
	var rounds []int
	for round := range n {
		rounds = append(rounds, round)
	}
	return rounds
}

// thinDisk makes an ext4 whose file lies in a tmpfs, and returns what bounds that: from then on
// there is room for so many more bytes, as in a thin volume that is full. What does not fit is an
// error of the disk, not of the file system.
func thinDisk(t *testing.T) (d *disk, bound func(more uint64)) {
	t.Helper()
	needLoop(t)
	base := node.TempDir(t)
	thin := base + "/thin"
	d = &disk{t: t, file: thin + "/disk", dir: base + "/mnt", kind: "ext4"}
	t.Cleanup(func() {
		d.unmount()
		_ = unix.Unmount(thin, unix.MNT_DETACH)
	})
	const size = 300 << 20
	if err := errors.Join(os.Mkdir(thin, 0o700), os.Mkdir(d.dir, 0o755), unix.Mount("tmpfs", thin, "tmpfs", 0, "size=400m")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(d.file, nil, 0o600), os.Truncate(d.file, size)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("UNIX_IO_NOZEROOUT", "1") // the journal and the tables have room from the beginning
	run(t, "mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", d.file)
	d.mount()
	return d, func(more uint64) {
		t.Helper()
		var st unix.Statfs_t
		err := unix.Statfs(thin, &st)
		if err == nil {
			used := (st.Blocks - st.Bfree) * uint64(st.Bsize)
			err = unix.Mount("", thin, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", used+more))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
