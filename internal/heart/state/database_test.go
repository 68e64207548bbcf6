// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// grow commits containers until the database has to be mapped anew, and returns the first error.
func grow(t *testing.T, s *Store, name string) error {
	t.Helper()
	for i := range 64 {
		c, st := someContainer(fmt.Sprint(name, i))
		c.Config.Annotations = map[string]string{"large": strings.Repeat("x", 16<<10)}
		if err := s.Commit(NewContainer(c, st)); err != nil {
			return err
		}
	}
	return nil
}

// without returns a store that writes every commit to its database.
func without(t *testing.T) *Store {
	t.Helper()
	s := open(t, t.TempDir())
	if err := s.log.close(); err != nil {
		t.Fatal(err)
	}
	return s
}

// PROPERTIES 52: the database could not be mapped once, for want of memory, and every later commit failed
// until berth was started again.
func TestAMappingThatFailsOnceCostsNoCommit(t *testing.T) {
	s := without(t)
	if err := grow(t, s, "before"); err != nil {
		t.Fatal(err)
	}
	s.db.db.MmapFlags = unix.MAP_HUGETLB // of a file that has no huge pages
	if err := grow(t, s, "after"); err != nil {
		t.Fatal(err)
	}
	if s.db.db.MmapFlags != 0 {
		t.Fatal("the database was not mapped anew: this test tests nothing")
	}
	if err := s.NotWritten(); err != nil {
		t.Error(err)
	}
	if n := len(load(t, open(t, killed(t, s))).Containers); n != 128 {
		t.Errorf("%d containers are on record", n)
	}
}

// PROPERTIES 52: commits fail as long as the database cannot be mapped, and say so; then they succeed again,
// and everything is there that was committed.
func TestCommitsSucceedOnceTheDatabaseCanBeMapped(t *testing.T) {
	s := without(t)
	if err := grow(t, s, "before"); err != nil {
		t.Fatal(err)
	}
	s.db.db.MmapFlags, s.db.mapFlags = unix.MAP_HUGETLB, unix.MAP_HUGETLB
	err := grow(t, s, "never")
	for range 3 {
		c, st := someContainer("neither")
		if again := s.Commit(NewContainer(c, st)); !errdefs.IsUnavailable(again) {
			t.Fatalf("a commit without a database: %v", again)
		}
	}
	if why := s.NotWritten(); !errors.Is(err, errdefs.ErrUnavailable) || why == nil || !strings.Contains(why.Error(), filepath.Dir(s.path)) {
		t.Errorf("%v; %v", err, why)
	}
	s.db.mapFlags = 0
	if err := grow(t, s, "after"); err != nil {
		t.Fatal(err)
	}
	if why := s.NotWritten(); why != nil {
		t.Error(why)
	}
	all := load(t, open(t, killed(t, s)))
	count := map[string]int{}
	for _, c := range all.Containers {
		count[strings.TrimRight(c.ID, "0123456789")]++
	}
	if count["before"] != 64 || count["after"] != 64 || count["neither"] != 0 {
		t.Errorf("on record are %v", count)
	}
}

// readOnlyDisk is a disk that can only be read while it is set.
type readOnlyDisk bool

func (d *readOnlyDisk) open(path string, flags int, mode os.FileMode) (*os.File, error) {
	if *d && flags&(os.O_RDWR|os.O_WRONLY|os.O_CREATE) != 0 {
		return nil, &os.PathError{Op: "open", Path: path, Err: unix.EROFS}
	}
	return os.OpenFile(path, flags, mode)
}

// PROPERTIES 52: berth did not start with a disk that can only be read. It has the records now, says that it
// cannot write them, and goes on once the disk can be written; whether berth was killed before or had
// ended.
func TestRecordsThatCanOnlyBeReadAreThere(t *testing.T) {
	for _, how := range []string{"killed", "closed"} {
		t.Run(how, func(t *testing.T) {
			s := open(t, t.TempDir())
			for i := range 5 {
				c, st := someContainer(fmt.Sprint("before", i))
				if err := s.Commit(NewContainer(c, st)); err != nil {
					t.Fatal(err)
				}
			}
			dir := killed(t, s)
			if how == "closed" {
				if err := open(t, dir).Close(); err != nil {
					t.Fatal(err)
				}
			}
			disk := readOnlyDisk(true)
			before := read(t, filepath.Join(dir, "berth.db"))
			s, err := openThrough(dir, disk.open)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			if n := len(load(t, s).Containers); n != 5 {
				t.Errorf("%d containers are on record", n)
			}
			if why := s.NotWritten(); !errors.Is(why, unix.EROFS) || !strings.Contains(why.Error(), dir) {
				t.Errorf("it is said to be written: %v", why)
			}
			c, st := someContainer("new")
			if err := s.Commit(NewContainer(c, st)); !errors.Is(err, unix.EROFS) || !errdefs.IsUnavailable(err) {
				t.Errorf("a commit to a disk that can only be read: %v", err)
			}
			if _, err := Open(dir); !errors.Is(err, ErrInUse) {
				t.Errorf("another berth beside it: %v", err)
			}
			if !bytes.Equal(read(t, filepath.Join(dir, "berth.db")), before) {
				t.Error("the database was written")
			}

			disk = false
			for i := range 5 {
				c, st := someContainer(fmt.Sprint("after", i))
				if err := s.Commit(NewContainer(c, st)); err != nil {
					t.Fatal(err)
				}
			}
			if why := s.NotWritten(); why != nil {
				t.Error(why)
			}
			if len(s.log.pending) != 8 { // the first went into the database
				t.Errorf("%d keys are in the journal alone: it is not written again", len(s.log.pending))
			}
			if _, err := Open(dir); !errors.Is(err, ErrInUse) {
				t.Errorf("another berth beside one that writes: %v", err)
			}
			if n := len(load(t, open(t, killed(t, s))).Containers); n != 10 {
				t.Errorf("%d containers are on record", n)
			}
		})
	}
}

// PROPERTIES 52: whether the records can be written again is found out by a try every second, also where
// nobody commits anything; that they cannot be any more, within half a minute.
func TestADiskThatFailsIsNoticedAndThatItWorksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		c, st := someContainer("c")
		if err := s.Commit(NewContainer(c, st)); err != nil {
			t.Fatal(err)
		}
		said := make(chan error)
		go s.Watch(t.Context(), func(err error) { said <- err })
		synctest.Wait()
		s.writing.Lock()
		device := s.log.journal.device
		s.log.journal.device = failing{device}
		s.db.mu.Lock()
		s.db.readOnly = unix.EROFS
		open := s.db.openFile
		disk := readOnlyDisk(true)
		s.db.openFile = disk.open
		s.db.mu.Unlock()
		s.writing.Unlock()
		if err := <-said; err == nil {
			t.Error("it is written, on a disk that fails")
		}
		s.writing.Lock()
		s.log.journal.device = device
		s.db.mu.Lock()
		s.db.openFile = open
		s.db.mu.Unlock()
		s.writing.Unlock()
		if err := <-said; err != nil {
			t.Error(err)
		}
	})
}

// failing is a device of a disk that fails.
type failing struct{ device }

func (failing) WriteAt([]byte, int64) (int, error) { return 0, unix.EIO }

// PROPERTIES 52: a disk that does not answer is not one that takes what is written.
func TestACommitThatHangsIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		c, st := someContainer("c")
		if err := s.Commit(NewContainer(c, st)); err != nil {
			t.Fatal(err)
		}
		hangs := &hanging{device: s.log.journal.device, held: make(chan struct{})}
		s.log.journal.device = hangs
		done := make(chan error)
		go func() { done <- s.Commit(ContainerStatus("c", st)) }()
		said := make(chan error)
		go s.Watch(t.Context(), func(err error) { said <- err })
		if err := <-said; err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("it is written, on a disk that hangs: %v", err)
		}
		close(hangs.held)
		if err := errors.Join(<-done, <-said); err != nil {
			t.Error(err)
		}
	})
}

// hanging is a device of a disk that does not answer.
type hanging struct {
	device
	held chan struct{}
}

func (h *hanging) WriteAt(b []byte, at int64) (int, error) {
	<-h.held
	return h.device.WriteAt(b, at)
}

// PROPERTIES 52: while the file was not open, another berth has written to it. What this one has in memory is
// not true any more, and nothing of it is written.
func TestRecordsThatAnotherHasWrittenAreNotTouched(t *testing.T) {
	s := without(t)
	if err := grow(t, s, "before"); err != nil {
		t.Fatal(err)
	}
	s.db.db.MmapFlags, s.db.mapFlags = unix.MAP_HUGETLB, unix.MAP_HUGETLB
	_ = grow(t, s, "never")
	dir := filepath.Dir(s.path)
	other, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(grow(t, other, "other"), other.Close()); err != nil {
		t.Fatal(err)
	}
	s.db.mapFlags = 0
	before := read(t, s.path)
	for range 2 {
		c, st := someContainer("late")
		if err := s.Commit(NewContainer(c, st)); err == nil {
			t.Error("a commit to what belongs to another")
		}
	}
	if !bytes.Equal(read(t, s.path), before) {
		t.Error("the database of another was written")
	}
}
