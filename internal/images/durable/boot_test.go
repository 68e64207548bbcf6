// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/base/wholefile"
	"berth/test/durabletest"
)

// PROPERTIES 39: images are doubted after a boot that did not follow a clean stop, until they were
// checked, and at no other time.
func TestImagesAreDoubtedAfterAnUncleanBoot(t *testing.T) {
	dir := t.TempDir()
	open := func(id string, doubted bool) *Boot {
		t.Helper()
		b, err := openBoot(dir, id, "")
		if err != nil {
			t.Fatal(err)
		}
		if b.Doubted() != doubted {
			t.Errorf("opened in boot %s: doubted is %v", id, b.Doubted())
		}
		return b
	}
	open("a", false)      // for the first time
	b := open("a", false) // killed, in the same boot: what the kernel holds is still there
	if err := b.Stopped(); err != nil {
		t.Fatal(err)
	}
	open("b", false) // stopped, and booted
	open("c", true)  // the power was cut
	open("c", true)  // killed while it checks
	b = open("d", true)
	if err := b.Stopped(); err != nil { // stopped while it checks
		t.Fatal(err)
	}
	b = open("d", true)
	if err := b.Checked(); err != nil || b.Doubted() {
		t.Fatalf("%v, doubted is %v", err, b.Doubted())
	}
	open("d", false)
	for _, cutOff := range []string{"", "{", `{"boot":`} {
		if err := os.WriteFile(filepath.Join(dir, bootName), []byte(cutOff), 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := openBoot(dir, "d", "")
		if !errors.Is(err, wholefile.ErrDamaged) || !b.Doubted() {
			t.Errorf("%q: doubted is %v, %v", cutOff, b.Doubted(), err)
		}
		if err := b.Checked(); err != nil {
			t.Fatal(err)
		}
	}
}

// PROPERTIES 63: a bit of the file changed, and images that a power cut may have damaged were no
// longer doubted, or got the mark although a sync of theirs had failed.
func TestADamagedFileOfTheBootEndsNoDoubt(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, bootName)
	err := wholefile.WriteSealed(path, bootRecord{Boot: "a", Life: "7", Doubted: true, Unsynced: []Item{mid}})
	if err != nil {
		t.Fatal(err)
	}
	durabletest.Damage(t, path, func(where string) {
		b, err := openBoot(dir, "a", "7")
		if !b.Doubted() || !b.Unsynced(mid) || err != nil && !errors.Is(err, wholefile.ErrDamaged) {
			t.Errorf("%s: doubted is %v, unsynced %v: %v", where, b.Doubted(), b.Unsynced(mid), err)
		}
	})
}

// PROPERTIES 53 and 39: the disk of the images was shut down and mounted again within one boot, and what
// the kernel had held of it was trusted. A berth that did not note the life of the file system, or
// a kernel that does not tell it, is a reason for nothing.
func TestImagesAreDoubtedAfterTheirDiskWasMountedAgain(t *testing.T) {
	for _, c := range []struct {
		before, after string
		clean         bool
		doubted       bool
	}{
		{before: "ext4 vdb 7", after: "ext4 vdb 7"},
		{before: "ext4 vdb 7", after: "ext4 vdb 8", doubted: true},
		{before: "ext4 vdb 7", after: "ext4 vdb 8", clean: true},
		{before: "ext4 vdb 7", after: "", doubted: true},
		{before: "", after: "ext4 vdb 8"},
		{before: "", after: ""},
	} {
		dir := t.TempDir()
		b, err := openBoot(dir, "a", c.before)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.syncing(mid); err != nil {
			t.Fatal(err)
		}
		if c.clean {
			if err := errors.Join(b.synced(mid), b.Stopped()); err != nil {
				t.Fatal(err)
			}
		}
		if b, err = openBoot(dir, "a", c.after); err != nil || b.Doubted() != c.doubted {
			t.Errorf("%+v: doubted is %v, %v", c, b.Doubted(), err)
		}
		// What a sync has failed for is what the memory of this life has: nothing of it is left.
		if b.Unsynced(mid) != (!c.clean && !c.doubted) {
			t.Errorf("%+v: unsynced is %v", c, b.Unsynced(mid))
		}
		if b, err = openBoot(dir, "a", c.after); err != nil || b.Doubted() != c.doubted {
			t.Errorf("%+v: killed while it checks, doubted is %v, %v", c, b.Doubted(), err)
		}
	}
}

// A directory that is not there yet is on the file system of the one that it will be made in.
func TestALifeDoesNotChangeByMakingADirectory(t *testing.T) {
	dir := t.TempDir()
	later := filepath.Join(dir, "containerd", "images")
	before, err := Life(dir, later)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(later, 0o700); err != nil {
		t.Fatal(err)
	}
	if after, err := Life(dir, later); err != nil || after != before {
		t.Errorf("%q, then %q: %v", before, after, err)
	}
}

// What cannot be told is doubted, and berth goes on.
func TestABootThatCannotBeToldIsDoubted(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, bootName), 0o700); err != nil {
		t.Fatal(err)
	}
	b, err := OpenBoot(dir)
	if err == nil || b == nil || !b.Doubted() {
		t.Errorf("%v %v", b, err)
	}
}

// What cannot be noted at first is noted before the next image is made, and whether anything is
// doubted is known meanwhile.
func TestABootThatCannotBeNotedIsNotedLater(t *testing.T) {
	dir := t.TempDir()
	if b, err := openBoot(dir, "a", ""); err != nil || b.Stopped() != nil {
		t.Fatal(err)
	}
	inTheWay := filepath.Join(dir, bootName+wholefile.Fresh, "x")
	if err := os.MkdirAll(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	b, err := openBoot(dir, "b", "")
	if err == nil || b.Doubted() {
		t.Fatalf("%v, doubted is %v", err, b.Doubted())
	}
	k := NewKeeper(Config{Items: NewItems(b), Log: slog.New(slog.DiscardHandler)})
	k.Busy()()
	if err := os.RemoveAll(filepath.Dir(inTheWay)); err != nil {
		t.Fatal(err)
	}
	k.Busy()()
	if b, err := openBoot(dir, "c", ""); err != nil || !b.Doubted() {
		t.Errorf("%v: images of a boot that was not noted are trusted", err)
	}
}

// Where the file cannot be read, nobody knows what could not be synced in this boot.
func TestWithoutTheFileNothingGetsTheMark(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, bootName)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	b, err := openBoot(dir, "a", "")
	if err == nil || !b.Unsynced(mid) {
		t.Errorf("%v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := b.Checked(); err != nil || !b.Unsynced(mid) {
		t.Errorf("%v", err)
	}
	if b, err = openBoot(dir, "a", ""); err != nil || !b.Unsynced(mid) || !errors.Is(b.Stopped(), ErrUnsynced) {
		t.Errorf("%v", err)
	}
	if b, err = openBoot(dir, "b", ""); err != nil || b.Unsynced(mid) || !b.Doubted() {
		t.Errorf("%v", err)
	}
}
