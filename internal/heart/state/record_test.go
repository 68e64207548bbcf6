// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/exit"
	"berth/internal/host/pidfd"
)

func golden(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSpace(b)
}

// The golden files are a record as earlier versions of berth wrote it. It must load, its fields
// must keep their names and order, and a field that berth no longer has ("volumes") must not
// matter.
func TestAnEarlierBerthsRecordLoadsAndIsWrittenTheSameWay(t *testing.T) {
	s := open(t, t.TempDir())
	intent, status := golden(t, "container-intent.json"), golden(t, "container-status.json")
	if err := s.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(KindContainer.bucket())
		return errors.Join(b.Put([]byte("c1/intent"), intent), b.Put([]byte("c1/status"), status))
	}); err != nil {
		t.Fatal(err)
	}
	got, err := s.Load()
	if err != nil || len(got.Damaged) != 0 || len(got.Containers) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	c := got.Containers[0]
	if d := cmp.Diff(Container{
		ID:          "c1",
		PodID:       "p1",
		Handler:     "runc",
		ImageID:     "sha256:1",
		ImageRef:    "r@sha256:2",
		Snapshotter: "overlayfs",
		LogPath:     "/var/log/c1",
		StopSignal:  "SIGTERM",
		CreatedAt:   t0,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c", Attempt: 2},
			Labels:   map[string]string{"k": "v"},
		},
	}, c.Container, protocmp.Transform()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(Process{
		Process: pidfd.Process{Pid: 4711, StartTicks: 123456, BootID: "6e8a1c3e-0b5f-4d5e-9a53-1f4f3ad1c0de"},
		Cgroup:  "/sys/fs/cgroup/memory/kubepods/c1",
	}, c.Status.Process); d != "" {
		t.Error(d)
	}
	if c.Status.Exit.Origin != exit.Kernel || c.Status.Holds != HoldTask|HoldSnapshot {
		t.Errorf("got %+v", c.Status)
	}

	again, err := c.Container.encode()
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(string(intent), `,"volumes":["/var/lib/berth/v/0"]`, "", 1); string(again) != want {
		t.Errorf("the intent is written as\n%s\nwant\n%s", again, want)
	}
	if again, err = json.Marshal(c.Status); err != nil || !bytes.Equal(again, status) {
		t.Errorf("the status is written as\n%s\nwant\n%s (%v)", again, status, err)
	}
}

// The records are those of a berth whose status had the two fields by themselves. A start that was
// cut off is found at the same point, and an older berth reads what is written.
func TestAStartThatAnEarlierBerthRecordedIsRead(t *testing.T) {
	for status, want := range map[string]Start{
		`{"phase":"CREATED","createdAt":"2026-01-02T03:04:05.000000006Z","holds":["task","io"]}`:                                                                                          {},
		`{"phase":"CREATED","createdAt":"2026-01-02T03:04:05.000000006Z","holds":["task","io"],"restoring":"/kubepods/c1"}`:                                                               {Restoring: "/kubepods/c1"},
		`{"phase":"CREATED","createdAt":"2026-01-02T03:04:05.000000006Z","process":{"pid":4711,"startTicks":1,"bootID":"b"},"holds":["task","io"],"undoing":true}`:                        {TakingBack: true},
		`{"phase":"CREATED","createdAt":"2026-01-02T03:04:05.000000006Z","holds":["task","io"],"restoring":"system.slice:cri-containerd:c1","undoing":true}`:                              {Restoring: "system.slice:cri-containerd:c1", TakingBack: true},
		`{"phase":"EXITED","createdAt":"2026-01-02T03:04:05.000000006Z","exit":{"id":"c1","code":128,"measured":true,"origin":"start"},"holds":["task","io"],"restoring":"/kubepods/c1"}`: {Restoring: "/kubepods/c1"},
	} {
		st, err := readStatus([]byte(status))
		if err != nil || st.Start != want {
			t.Errorf("%s is read as %+v, %v; want %+v", status, st.Start, err, want)
		}
		if again, err := json.Marshal(st); err != nil || string(again) != status {
			t.Errorf("%s is written as\n%s (%v)", status, again, err)
		}
	}
}
