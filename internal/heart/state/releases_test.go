// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/encoding/protojson"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
	berth "berth/internal/base/version"
)

// testdata/releases has, for each version of berth, what it leaves on disk: a database that it
// closed, one that it had open when it was killed with the journal of that, and what both say.
// -write makes those of this version. Those of a version that was released are never written again.
var writeRelease = flag.Bool("write", false, "write testdata/releases of this version")

const releases = "testdata/releases"

// thisRelease is the version without what says from which commit it is.
func thisRelease() string {
	v, _, _ := strings.Cut(berth.Semantic(), "+")
	return v
}

// fill sets every field of v to something that is not zero.
func fill(t *testing.T, v reflect.Value, name string) {
	t.Helper()
	switch v.Interface().(type) {
	case clock.Instant:
		v.Set(reflect.ValueOf(t0))
		return
	case []byte: // Raw, which is made of the Config
		return
	case Hold:
		v.Set(reflect.ValueOf(Hold(holdAll)))
		return
	case exit.Origin:
		v.Set(reflect.ValueOf(exit.Kernel))
		return
	case json.RawMessage:
		v.Set(reflect.ValueOf(json.RawMessage(`{"name":"` + name + `"}`)))
		return
	case Applied:
		v.Set(reflect.ValueOf(Applied{User: &runtimeapi.LinuxContainerUser{Uid: 7, Gid: 8, SupplementalGroups: []int64{9}}, Resources: &runtimeapi.LinuxContainerResources{CpuShares: 2}}))
		return
	case Limits:
		v.Set(reflect.ValueOf(Limits{Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 20}}))
		return
	case *runtimeapi.ContainerConfig:
		v.Set(reflect.ValueOf(&runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "c", Attempt: 2}, Labels: map[string]string{"k": "v"}, Stdin: true}))
		return
	case *runtimeapi.PodSandboxConfig:
		v.Set(reflect.ValueOf(&runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Uid: "u", Namespace: "n", Attempt: 2}, Hostname: "h"}))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.Tag.Get("json") != "-" || strings.HasSuffix(f.Name, "Config") {
				fill(t, v.Field(i), strings.ToLower(f.Name))
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), name)
	case reflect.String:
		v.SetString(name)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(3)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(42)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i), fmt.Sprint(name, i))
		}
	default:
		t.Fatalf("the test cannot fill a field %s, which is a %s", name, v.Kind())
	}
}

// everyRecord returns changes that leave records of both kinds in each phase, with every field set.
func everyRecord(t *testing.T) (changes []Change) {
	t.Helper()
	for i, phase := range []Phase{Creating, Created, Running, Exited} {
		var c Container
		var st Status
		fill(t, reflect.ValueOf(&c).Elem(), "")
		fill(t, reflect.ValueOf(&st).Elem(), "")
		c.ID, c.Raw, st.Phase = fmt.Sprint("c", i), nil, phase
		changes = append(changes, NewContainer(c, st))
	}
	for i, phase := range []Phase{Creating, Ready, NotReady} {
		var sb Sandbox
		var st Status
		fill(t, reflect.ValueOf(&sb).Elem(), "")
		fill(t, reflect.ValueOf(&st).Elem(), "")
		sb.ID, sb.Raw, st.Phase = fmt.Sprint("p", i), nil, phase
		changes = append(changes, NewSandbox(sb, st))
	}
	return changes
}

// said is everything that was loaded, as JSON.
func said(t *testing.T, all Loaded) []byte {
	t.Helper()
	type said struct {
		Intent json.RawMessage `json:"intent"`
		Config json.RawMessage `json:"config"`
		Status Status          `json:"status"`
	}
	var out []said
	add := func(intent, config []byte, st Status, err error) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, said{intent, config, st})
	}
	for _, c := range all.Containers {
		config, err := protojson.Marshal(c.Config)
		c.Raw = nil
		intent, jerr := json.Marshal(c.Container)
		add(intent, config, c.Status, errorsOf(err, jerr))
	}
	for _, sb := range all.Sandboxes {
		config, err := protojson.Marshal(sb.Config)
		sb.Raw = nil
		intent, jerr := json.Marshal(sb.Sandbox)
		add(intent, config, sb.Status, errorsOf(err, jerr))
	}
	b, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// pack writes a file of a store into testdata, compressed.
func pack(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, err = w.Write(b)
	if err := errorsOf(err, w.Close(), os.WriteFile(to+".gz", z.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// unpack makes a file of a store of what pack wrote.
func unpack(t *testing.T, from, to string) {
	t.Helper()
	f, err := os.Open(from + ".gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err := errorsOf(err, os.WriteFile(to, b, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestWriteRelease makes the testdata of this version, with -write.
func TestWriteRelease(t *testing.T) {
	if !*writeRelease {
		if _, err := os.Stat(filepath.Join(releases, thisRelease())); err != nil {
			t.Fatalf("%v: go test ./internal/heart/state -run WriteRelease -write", err)
		}
		return
	}
	to, dir := filepath.Join(releases, thisRelease()), t.TempDir()
	if err := os.MkdirAll(to, 0o755); err != nil { // as every directory of the source
		t.Fatal(err)
	}
	s := open(t, dir)
	changes := everyRecord(t)
	// What a kill leaves is partly in the database and partly in the journal.
	if err := s.Commit(changes[:3]...); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if err := s.Commit(changes[3:]...); err != nil {
		t.Fatal(err)
	}
	s.folding.Wait()
	pack(t, filepath.Join(dir, "berth.db"), filepath.Join(to, "killed.db"))
	pack(t, filepath.Join(dir, "berth.journal"), filepath.Join(to, "killed.journal"))
	all := load(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	pack(t, filepath.Join(dir, "berth.db"), filepath.Join(to, "closed.db"))
	if err := os.WriteFile(filepath.Join(to, "records.json"), said(t, all), 0o644); err != nil {
		t.Fatal(err)
	}
}

// What each version has left on disk is read as it was meant, whether that berth was stopped or
// killed; and what is committed then is there for the next one.
func TestWhatEachReleaseLeftOnDiskIsRead(t *testing.T) {
	dirs, err := os.ReadDir(releases)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(dirs, func(d os.DirEntry) bool { return d.Name() == thisRelease() }) {
		t.Errorf("there is none of %s", thisRelease())
	}
	for _, d := range dirs {
		for _, how := range []string{"closed", "killed"} {
			t.Run(d.Name()+" "+how, func(t *testing.T) {
				from, dir := filepath.Join(releases, d.Name()), t.TempDir()
				unpack(t, filepath.Join(from, how+".db"), filepath.Join(dir, "berth.db"))
				if how == "killed" {
					unpack(t, filepath.Join(from, "killed.journal"), filepath.Join(dir, "berth.journal"))
				}
				b, err := os.ReadFile(filepath.Join(from, "records.json"))
				if err != nil {
					t.Fatal(err)
				}
				var want []any
				if err := json.Unmarshal(b, &want); err != nil || len(want) == 0 {
					t.Fatal(len(want), err)
				}
				for range 2 { // and again, by the berth after this one
					s := open(t, dir)
					all := load(t, s)
					if len(all.Damaged)+len(all.Orphans) > 0 {
						t.Fatalf("damaged: %+v, orphans: %q", all.Damaged, all.Orphans)
					}
					var got []any
					if err := json.Unmarshal(said(t, all), &got); err != nil {
						t.Fatal(err)
					}
					if !reflect.DeepEqual(got, want) {
						t.Fatalf("it is read as\n%s", said(t, all))
					}
					if err := errorsOf(s.Commit(ContainerStatus("c1", all.Containers[1].Status)), s.Close()); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// A record that has a field more, or a field that was filled in no version, would not be noticed
// otherwise: the testdata of this version has every field that there is.
func TestTheReleaseHasEveryField(t *testing.T) {
	s := open(t, t.TempDir())
	if err := s.Commit(everyRecord(t)...); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(releases, thisRelease(), "records.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := errorsOf(json.Unmarshal(b, &got), json.Unmarshal(said(t, load(t, s)), &want)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("records have other fields than those in %s: if %s was released, choose the next version; if not, go test ./internal/heart/state -run WriteRelease -write", releases, thisRelease())
	}
}

// A berth that is replaced by the one before: what that one does not know of a status is dropped
// when the status is written the next time, and what it does not know of an intent stays on disk,
// since an intent is never written again.
func TestADowngradeKeepsWhatItDoesNotKnowOfAnIntent(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, KindContainer, map[string][]byte{
		"c1/intent": []byte(`{"id":"c1","podID":"p","createdAt":"2026-01-02T03:04:05.000000006Z","config":"","mood":"of a newer berth"}`),
		"c1/status": []byte(`{"phase":"CREATED","holds":["task"],"mood":"of a newer berth"}`),
	})
	all := load(t, s)
	if len(all.Containers) != 1 || all.Containers[0].Status.Holds != HoldTask {
		t.Fatalf("got %+v", all)
	}
	if err := errorsOf(s.Commit(ContainerStatus("c1", all.Containers[0].Status)), s.Close()); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(s.path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(KindContainer.bucket())
		for key, keeps := range map[string]string{"c1/intent": "mood", "c1/status": `"holds":["task"]`} {
			if v := string(b.Get([]byte(key))); !strings.Contains(v, keeps) {
				t.Errorf("%s is %s", key, v)
			}
		}
		if v := string(b.Get([]byte("c1/status"))); strings.Contains(v, "mood") {
			t.Errorf("the status is %s", v)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A hold, a phase or a form that an older berth does not know made the record a damaged one there:
// its pod was NOTREADY, and the kubelet replaced it. The older berth does not start now.
func TestARecordThatOnlyANewerBerthCanReadIsRefused(t *testing.T) {
	const intent, status = `{"id":"c1","podID":"p","config":""}`, `{"phase":"CREATED","holds":["task"]}`
	for old, by := range map[string]string{
		`["task"]`:    `["task","wings"]`,
		`"CREATED"`:   `"MOLTEN"`,
		`"podID":"p"`: `"podID":["p"]`,
		`"config":""`: `"config":"/w=="`,
	} {
		s, keys := open(t, t.TempDir()), map[string][]byte{}
		for k, v := range map[string]string{"c1/intent": intent, "c1/status": status} {
			keys[k] = seal(KindContainer, k, []byte(strings.Replace(v, old, by, 1)))
		}
		put(t, s, KindContainer, keys)
		if _, err := s.Load(); !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), "container c1") {
			t.Errorf("with %s: %v", by, err)
		}
	}
}
