// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// put writes raw keys into the bucket of a kind; a nil value deletes the key.
func put(t testing.TB, s *Store, kind Kind, keys map[string][]byte) {
	t.Helper()
	if err := s.db.Update(func(tx *bbolt.Tx) error {
		var errs []error
		for k, v := range keys {
			if v == nil {
				errs = append(errs, tx.Bucket(kind.bucket()).Delete([]byte(k)))
			} else {
				errs = append(errs, tx.Bucket(kind.bucket()).Put([]byte(k), v))
			}
		}
		return errors.Join(errs...)
	}); err != nil {
		t.Fatal(err)
	}
}

// A damaged record used to be reported with an error alone, so that nobody could list or remove
// what it stood for.
func TestWhatIsReadableOfADamagedRecordIsLoaded(t *testing.T) {
	whole, st := someContainer("c1")
	whole.Config.Labels = map[string]string{"k": "v"}
	intent, err := whole.encode()
	if err != nil {
		t.Fatal(err)
	}
	status, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	replace := func(b []byte, old, by string) []byte {
		if !bytes.Contains(b, []byte(old)) {
			t.Fatalf("%s does not contain %s", b, old)
		}
		return bytes.Replace(b, []byte(old), []byte(by), 1)
	}
	cut := whole
	cutConfig, _ := proto.Marshal(whole.Config)
	cut.Raw = cutConfig[:len(cutConfig)-1]
	cutIntent, err := json.Marshal(cut)
	if err != nil {
		t.Fatal(err)
	}

	kept, _, _ := bytes.Cut(intent, []byte(`"config"`))
	type readable struct{ pod, name, label, code, holds bool }
	tests := []struct {
		name           string
		intent, status []byte
		want           readable
	}{
		{
			name:   "the intent was cut off",
			intent: kept,
			status: status,
			want:   readable{pod: true, code: true, holds: true},
		},
		{
			name:   "the intent is not JSON",
			intent: []byte("\x00\x00"),
			status: status,
			want:   readable{code: true, holds: true},
		},
		{
			name:   "a field of the intent has another type",
			intent: replace(intent, `"p1"`, `["p1"]`),
			status: status,
			want:   readable{name: true, label: true, code: true, holds: true},
		},
		{
			name:   "the intent is another record's",
			intent: replace(intent, `"c1"`, `"c2"`),
			status: status,
			want:   readable{pod: true, name: true, label: true, code: true, holds: true},
		},
		{
			name:   "the end of the configuration is missing",
			intent: cutIntent,
			status: status,
			want:   readable{pod: true, name: true, code: true, holds: true},
		},
		{
			name:   "the status is absent",
			intent: intent,
			want:   readable{pod: true, name: true, label: true},
		},
		{
			name:   "the status was cut off",
			intent: intent,
			status: status[:bytes.Index(status, []byte(`"holds"`))+3],
			want:   readable{pod: true, name: true, label: true, code: true},
		},
		{
			name:   "it holds something that only a newer berth knows",
			intent: intent,
			status: replace(status, `"task"`, `"antimatter"`),
			want:   readable{pod: true, name: true, label: true, code: true},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t, t.TempDir())
			other, otherStatus := someContainer("other")
			sb, sbst := someSandbox("p1")
			if err := s.Commit(NewSandbox(sb, sbst), NewContainer(other, otherStatus)); err != nil {
				t.Fatal(err)
			}
			put(t, s, KindContainer, map[string][]byte{"c1/intent": tt.intent, "c1/status": tt.status})
			all := load(t, s)
			if len(all.Sandboxes) != 1 || len(all.Containers) != 1 || len(all.Orphans) != 0 {
				t.Errorf("the others: %+v", all)
			}
			if len(all.Damaged) != 1 {
				t.Fatalf("got %d damaged records", len(all.Damaged))
			}
			d := all.Damaged[0]
			got := readable{
				pod:   d.Container.PodID == "p1",
				name:  d.Container.Config.GetMetadata().GetName() == "c1",
				label: d.Container.Config.GetLabels()["k"] == "v",
				code:  d.Status.Exit.Code == 42 && d.Status.Phase == Exited,
				holds: d.Status.Holds == st.Holds,
			}
			if d.Kind != KindContainer || d.ID != "c1" || d.Container.ID != "c1" || d.Err == nil || got != tt.want {
				t.Errorf("readable %+v, want %+v of %+v: %v", got, tt.want, d, d.Err)
			}
			if !got.holds && d.Status.Holds != holdAll {
				t.Errorf("unreadable holds are read as %v", d.Status.Holds)
			}
			if err := s.Commit(d.Delete()); err != nil {
				t.Fatal(err)
			}
			if all := load(t, s); len(all.Damaged)+len(all.Orphans) != 0 || len(all.Containers) != 1 {
				t.Errorf("after its deletion: %+v", all)
			}
		})
	}
}

func TestADamagedSandboxIsLoadedAsOne(t *testing.T) {
	s := open(t, t.TempDir())
	sb, st := someSandbox("p1")
	sb.Config.Metadata = &runtimeapi.PodSandboxMetadata{Name: "web", Uid: "u"}
	if err := s.Commit(NewSandbox(sb, st)); err != nil {
		t.Fatal(err)
	}
	put(t, s, KindSandbox, map[string][]byte{"p1/status": nil})
	all := load(t, s)
	if len(all.Damaged) != 1 {
		t.Fatalf("%+v", all)
	}
	d := all.Damaged[0]
	if d.Kind != KindSandbox || d.ID != "p1" || d.Sandbox.Config.GetMetadata().GetUid() != "u" || d.Sandbox.NetNS != sb.NetNS {
		t.Errorf("%+v", d)
	}
	if err := s.Commit(d.Delete()); err != nil {
		t.Fatal(err)
	}
	if all := load(t, s); len(all.Damaged) != 0 {
		t.Errorf("%+v", all)
	}
}

// Earlier versions of berth could write a status after its record was deleted. It used to be
// reported as damaged at every start.
func TestAStatusWithoutARecordIsDeletedAtLoad(t *testing.T) {
	s := open(t, t.TempDir())
	c, st := someContainer("a")
	if err := s.Commit(NewContainer(c, st)); err != nil {
		t.Fatal(err)
	}
	put(t, s, KindContainer, map[string][]byte{"z/status": []byte("{}"), "of a newer berth": []byte("x")})
	put(t, s, KindSandbox, map[string][]byte{"y/status": []byte("{}")})
	all := load(t, s)
	if len(all.Orphans) != 2 || len(all.Damaged) != 0 || len(all.Containers) != 1 {
		t.Errorf("first: %+v", all)
	}
	all = load(t, s)
	if len(all.Orphans) != 0 || len(all.Damaged) != 0 || len(all.Containers) != 1 {
		t.Errorf("second: %+v", all)
	}
	if err := s.db.View(func(tx *bbolt.Tx) error {
		if tx.Bucket(KindContainer.bucket()).Get([]byte("of a newer berth")) == nil {
			return errors.New("a key that this berth does not know is gone")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// FuzzLoad loads a record of any bytes: it must be loaded or be reported, and can be deleted.
func FuzzLoad(f *testing.F) {
	c, st := someContainer("c1")
	intent, _ := c.encode()
	status, _ := json.Marshal(st)
	f.Add(intent, status)
	f.Add(intent[:40], []byte(nil))
	s := open(f, f.TempDir())
	s.db.db.NoSync = true
	f.Fuzz(func(t *testing.T, intent, status []byte) {
		put(t, s, KindContainer, map[string][]byte{"c1/intent": append([]byte{}, intent...), "c1/status": append([]byte{}, status...)})
		all := load(t, s)
		if len(all.Containers)+len(all.Damaged) != 1 {
			t.Fatalf("%+v", all)
		}
		for _, d := range all.Damaged {
			if d.ID != "c1" || d.Container.ID != "c1" || d.Container.Config == nil || d.Err == nil {
				t.Fatalf("%+v", d)
			}
		}
		if err := s.Commit(DeleteContainer("c1")); err != nil {
			t.Fatal(err)
		}
		s.writing.Lock()
		defer s.writing.Unlock()
		if err := s.fold(false); err != nil { // otherwise the deletion hides the next record, which put writes into the database
			t.Fatal(err)
		}
	})
}
