// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
	"berth/internal/host/pidfd"
)

var t0 = clock.Stamped(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC))

func open(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func load(t testing.TB, s *Store) Loaded {
	t.Helper()
	all, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func someContainer(id string) (Container, Status) {
	c := Container{
		ID:        id,
		PodID:     "p1",
		Handler:   "runc",
		ImageID:   "sha256:1",
		CreatedAt: t0,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: id},
			Args:     []string{"a"},
		},
	}
	st := Status{
		Phase:     Exited,
		CreatedAt: t0,
		StartedAt: t0.Add(1),
		Process:   Process{Process: pidfd.Process{Pid: 7, StartTicks: 8, BootID: "b"}},
		Exit:      exit.Fact{ID: id, Code: 42, Measured: true, Origin: exit.Kernel, At: t0.Add(2)},
		Holds:     HoldTask | HoldSnapshot,
	}
	return c, st
}

func someSandbox(id string) (Sandbox, Status) {
	sb := Sandbox{
		ID:        id,
		NetNS:     "/run/netns/x",
		CreatedAt: t0,
		Config:    &runtimeapi.PodSandboxConfig{Hostname: "h", Metadata: &runtimeapi.PodSandboxMetadata{Name: id}},
	}
	return sb, Status{
		Phase:   Ready,
		Holds:   HoldNetNS | HoldNetwork,
		Network: &Network{IPs: []string{"10.0.0.2"}},
	}
}

func TestWhatWasCommittedIsLoadedAgain(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	c, st := someContainer("c1")
	sb, sbst := someSandbox("p1")
	if err := s.Commit(NewSandbox(sb, sbst), NewContainer(c, Status{Phase: Creating}), ContainerStatus("c1", st)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	want := Loaded{
		Sandboxes:  []SandboxRecord{{sb, sbst}},
		Containers: []ContainerRecord{{c, st}},
	}
	if d := cmp.Diff(want, load(t, open(t, dir)), protocmp.Transform()); d != "" {
		t.Fatal(d)
	}
}

func TestStateOfANewerBerthIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketMeta).Put(keyVersion, []byte("99"))
	}); err != nil {
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

// PROPERTIES 17: berth must start on a full disk.
func TestOpeningCompleteStateWritesNothing(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	owner, before := s.Owner(), read(t, s.path)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if s.Owner() != owner || owner == "" {
		t.Errorf("the owner was %q, is %q", owner, s.Owner())
	}
	load(t, s)
	if !bytes.Equal(before, read(t, s.path)) {
		t.Error("the file was written")
	}
}
