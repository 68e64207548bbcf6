// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestADeletedRecordIsGone(t *testing.T) {
	s := open(t, t.TempDir())
	c, st := someContainer("c1")
	for _, ch := range []Change{NewContainer(c, st), DeleteContainer("c1"), DeleteContainer("absent")} {
		if err := s.Commit(ch); err != nil {
			t.Fatal(err)
		}
	}
	if all := load(t, s); len(all.Containers)+len(all.Damaged)+len(all.Orphans) != 0 {
		t.Fatalf("%+v", all)
	}
}

// A status that lost the race against its record's deletion used to be written all the same, and
// the record was reported as damaged at every start from then on.
func TestAStatusWithoutARecordIsRefused(t *testing.T) {
	s := open(t, t.TempDir())
	c, st := someContainer("c1")
	sb, sbst := someSandbox("p1")
	tests := []struct {
		name    string
		changes []Change
		refused bool
	}{
		{"a container that never was", []Change{ContainerStatus("c1", st)}, true},
		{"a sandbox that never was", []Change{SandboxStatus("p1", sbst)}, true},
		{"before the intent", []Change{ContainerStatus("c1", st), NewContainer(c, st)}, true},
		{"with others that are not refused", []Change{NewSandbox(sb, sbst), ContainerStatus("c1", st)}, true},
		{"after the intent", []Change{NewContainer(c, st), ContainerStatus("c1", st)}, false},
		{"later", []Change{ContainerStatus("c1", st)}, false},
		{"a sandbox of the same ID", []Change{SandboxStatus("c1", sbst)}, true},
		{"after the deletion, in one commit", []Change{DeleteContainer("c1"), ContainerStatus("c1", st)}, true},
		{"of a record that is made anew", []Change{DeleteContainer("c1"), NewContainer(c, st), ContainerStatus("c1", st)}, false},
		{"deletion", []Change{DeleteContainer("c1")}, false},
		{"after the deletion", []Change{ContainerStatus("c1", st)}, true},
	}
	for _, tt := range tests {
		if err := s.Commit(tt.changes...); errdefs.IsNotFound(err) != tt.refused || (err != nil) != tt.refused {
			t.Errorf("%s: got %v", tt.name, err)
		}
	}
	if all := load(t, s); len(all.Sandboxes)+len(all.Containers)+len(all.Damaged)+len(all.Orphans) != 0 {
		t.Errorf("left: %+v", all)
	}
}

func TestCommitsInOneTransactionDoNotShareErrors(t *testing.T) {
	tooLong := strings.Repeat("x", 40_000) // for a key of bbolt's: it fails the transaction
	for _, bad := range []string{"refused", tooLong} {
		s := open(t, t.TempDir())
		c, st := someContainer("good")
		long, _ := someContainer(bad)
		changes := []Change{ContainerStatus("refused", st), NewContainer(c, st)}
		if bad == tooLong {
			changes[0] = NewContainer(long, st)
		}
		var batch []*commit
		for _, ch := range changes {
			w, err := ch.encode()
			if err != nil {
				t.Fatal(err)
			}
			batch = append(batch, &commit{writes: []write{w}, done: make(chan error, 1)})
		}
		s.write(batch)
		if err := <-batch[0].done; err == nil {
			t.Errorf("%.10s: committed", bad)
		}
		if err := <-batch[1].done; err != nil {
			t.Errorf("%.10s: the other commit: %v", bad, err)
		}
		if all := load(t, s); len(all.Containers) != 1 || len(all.Orphans) != 0 {
			t.Errorf("%.10s: %+v", bad, all)
		}
	}
}

// What cannot be encoded is refused before it can hold up anybody.
func TestARecordThatCannotBeEncodedIsRefused(t *testing.T) {
	s := open(t, t.TempDir())
	c, st := someContainer("c1")
	c.Config = &runtimeapi.ContainerConfig{LogPath: "\xff"} // not UTF-8
	if err := s.Commit(NewContainer(c, st)); err == nil || !strings.Contains(err.Error(), "c1") {
		t.Fatalf("got %v", err)
	}
}

func TestCommitsAtTheSameTimeAreAllWritten(t *testing.T) {
	s := open(t, t.TempDir())
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			c, st := someContainer(fmt.Sprint("c", i))
			if err := s.Commit(NewContainer(c, st)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(load(t, s).Containers); n != 200 {
		t.Fatalf("%d containers", n)
	}
}

// Lanes and gRPC calls recover from panics. A panic in a transaction used to be swallowed there,
// and all later commits waited for ever.
func TestAPanicInATransactionEndsTheProcess(t *testing.T) {
	if dir := os.Getenv("STATE_TEST_PANIC_DIR"); dir != "" {
		panicInATransaction(dir)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestAPanicInATransactionEndsTheProcess$")
	cmd.Env = append(os.Environ(), "STATE_TEST_PANIC_DIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	var exited *exec.ExitError
	if !errors.As(err, &exited) || exited.ExitCode() != 2 {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"panic: commit state: ", "bbolt.(*Bucket)", "state.(*Store).Commit"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("its output lacks %q: %s", want, out)
		}
	}
	if strings.Contains(string(out), "still running") {
		t.Errorf("commits went on after the panic: %s", out)
	}
}

// PROPERTIES 19: nobody reads the standard error, and the panic ends the process all the same.
func TestAPanicInATransactionEndsTheProcessThoughNobodyReadsOfIt(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	fd := int(w.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 4096))
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestAPanicInATransactionEndsTheProcess$")
	cmd.Env = append(os.Environ(), "STATE_TEST_PANIC_DIR="+t.TempDir())
	cmd.Stderr = w
	var exited *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exited) || exited.ExitCode() != 2 {
		t.Fatal(err)
	}
}

func panicInATransaction(dir string) {
	s, err := Open(dir)
	if err == nil {
		err = s.db.Update(func(tx *bbolt.Tx) error { return tx.DeleteBucket(KindContainer.bucket()) })
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	var wg sync.WaitGroup
	for range 10 { // one leads and panics, the others wait for it
		wg.Go(func() {
			defer func() { _ = recover() }()
			err := s.Commit(DeleteContainer("c1"))
			fmt.Println("still running:", err)
		})
	}
	wg.Wait()
	fmt.Println("still running")
}

func BenchmarkCommit(b *testing.B) {
	s := open(b, b.TempDir())
	c, st := someContainer("c1")
	if err := s.Commit(NewContainer(c, st)); err != nil {
		b.Fatal(err)
	}
	b.Run("alone", func(b *testing.B) {
		for b.Loop() {
			if err := s.Commit(ContainerStatus("c1", st)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("100 at once", func(b *testing.B) {
		b.SetParallelism(50)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := s.Commit(ContainerStatus("c1", st)); err != nil {
					b.Error(err)
				}
			}
		})
	})
}
