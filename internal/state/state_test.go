// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/exit"
	"berth/internal/pidfd"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func someContainer(id string) (Container, Status) {
	return Container{
			ID: id, PodID: "p1", Handler: "runc", ImageID: "sha256:1", CreatedAt: t0,
			Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: id}, Args: []string{"a"}},
		}, Status{
			Phase: Exited, CreatedAt: t0, StartedAt: t0.Add(1), Process: Process{Process: pidfd.Process{Pid: 7, StartTicks: 8, BootID: "b"}},
			Exit:  exit.Fact{ID: id, Code: 42, Measured: true, Origin: exit.Kernel, At: t0.Add(2)},
			Holds: HoldTask | HoldSnapshot,
		}
}

func TestWhatWasCommittedIsLoadedAgain(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	c, st := someContainer("c1")
	sb := Sandbox{ID: "p1", NetNS: "/run/netns/x", CreatedAt: t0, Config: &runtimeapi.PodSandboxConfig{Hostname: "h"}}
	sbst := Status{Phase: Ready, Holds: HoldNetNS | HoldNetwork, Network: &Network{IPs: []string{"10.0.0.2"}}}
	if err := s.Commit(NewSandbox(sb, sbst), NewContainer(c, Status{Phase: Creating}), ContainerStatus("c1", st)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, dir).Load()
	if err != nil {
		t.Fatal(err)
	}
	want := Loaded{Sandboxes: []SandboxRecord{{sb, sbst}}, Containers: []ContainerRecord{{c, st}}}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Fatal(d)
	}
}

func TestDeletedIsGone(t *testing.T) {
	s := open(t, t.TempDir())
	c, st := someContainer("c1")
	if err := errors.Join(s.Commit(NewContainer(c, st)), s.Commit(DeleteContainer("c1")), s.Commit(DeleteContainer("never"))); err != nil {
		t.Fatal(err)
	}
	got, err := s.Load()
	if err != nil || len(got.Containers) != 0 || len(got.Damaged) != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestStateOfANewerBerthIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyVersion, []byte("99")) }); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	if _, err := Open(dir); !errors.Is(err, ErrNewer) {
		t.Fatalf("got %v", err)
	}
}

func TestStateInUseIsRefused(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	if _, err := Open(dir); !errors.Is(err, ErrInUse) {
		t.Fatalf("got %v", err)
	}
}

func TestADamagedRecordHurtsNoOther(t *testing.T) {
	s := open(t, t.TempDir())
	a, st := someContainer("a")
	b, _ := someContainer("b")
	if err := s.Commit(NewContainer(a, st), NewContainer(b, st)); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Update(func(tx *bbolt.Tx) error {
		bk := tx.Bucket(bucketContainers)
		return errors.Join(bk.Put([]byte("a/intent"), []byte("{")), bk.Put([]byte("z/status"), []byte("{}")))
	}); err != nil {
		t.Fatal(err)
	}
	got, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Containers) != 1 || got.Containers[0].ID != "b" || len(got.Damaged) != 2 {
		t.Fatalf("%+v", got)
	}
}

func TestAnUnknownHoldIsAnError(t *testing.T) {
	var h Hold
	if err := h.UnmarshalJSON([]byte(`["task","antimatter"]`)); err == nil {
		t.Fatal("what this berth cannot give back must not be forgotten")
	}
}

func TestCommitsAtTheSameTimeAllLand(t *testing.T) {
	s := open(t, t.TempDir())
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			c, st := someContainer(fmt.Sprintf("c%d", i))
			if err := s.Commit(NewContainer(c, st)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got, err := s.Load()
	if err != nil || len(got.Containers) != 200 {
		t.Fatalf("%d, %v", len(got.Containers), err)
	}
}

// A commit that returned is there after kill -9, whatever the others were doing.
func TestACommitThatReturnedSurvivesKill9(t *testing.T) {
	if dir := os.Getenv("STATE_TEST_DIR"); dir != "" {
		commitForEver(dir)
		return
	}
	for round := range 5 {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=TestACommitThatReturnedSurvivesKill9")
		cmd.Env = append(os.Environ(), "STATE_TEST_DIR="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := map[string]bool{}
		for range 50 * (round + 1) {
			var id string
			if _, err := fmt.Fscanln(out, &id); err != nil {
				t.Fatal(err)
			}
			said[id] = true
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		got, err := open(t, dir).Load()
		if err != nil || len(got.Damaged) != 0 {
			t.Fatalf("%v, %v", got.Damaged, err)
		}
		for _, c := range got.Containers {
			if c.Status.Exit.Code != 42 {
				t.Errorf("%s: half a record", c.ID)
			}
			delete(said, c.ID)
		}
		if len(said) != 0 {
			t.Fatalf("round %d: committed but gone: %v", round, said)
		}
	}
}

func commitForEver(dir string) {
	s, err := Open(dir)
	if err != nil {
		panic(err)
	}
	for w := range 4 {
		go func() {
			for i := 0; ; i++ {
				c, st := someContainer(fmt.Sprintf("w%d-%d", w, i))
				if err := s.Commit(NewContainer(c, st)); err != nil {
					panic(err)
				}
				fmt.Println(c.ID)
			}
		}()
	}
	select {}
}

// A store cut off at any byte count of its file's growth still opens with whole records:
// a copy of the file taken between commits is a crash at that write.
func TestEveryCopyBetweenCommitsIsWhole(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for i := range 30 {
		c, st := someContainer(fmt.Sprintf("c%02d", i))
		if err := s.Commit(NewContainer(c, st)); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(dir, "berth.db"))
		if err != nil {
			t.Fatal(err)
		}
		cut := t.TempDir()
		if err := os.WriteFile(filepath.Join(cut, "berth.db"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		o := open(t, cut)
		got, err := o.Load()
		if err != nil || len(got.Containers) != i+1 {
			t.Fatalf("after %d commits: %d, %v", i+1, len(got.Containers), err)
		}
		_ = o.Close()
	}
}

func BenchmarkCommit(b *testing.B) {
	s, err := Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	c, st := someContainer("c1")
	b.Run("alone", func(b *testing.B) {
		for b.Loop() {
			if err := s.Commit(NewContainer(c, st)); err != nil {
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
