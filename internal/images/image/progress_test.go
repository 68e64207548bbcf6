// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
)

func TestAPullSaysHowFarItHasCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.blobs = []Blob{{"sha256:a", 10}, {"sha256:b", 20}, {"sha256:a", 10}, {"sha256:c", 30}} // a layer can come twice
		f.fetched = map[string]int64{"sha256:a": 10, "sha256:b": 5}
		s := service(t, f)
		expect := func(when string, want *Progress) {
			t.Helper()
			got, err := s.Progress(t.Context(), "app")
			if err != nil || (got == nil) != (want == nil) || got != nil && *got != *want {
				t.Errorf("%s: %+v %v, want %+v", when, got, err, want)
			}
		}
		expect("before", nil)
		done := make(chan error)
		go func() {
			_, err := s.Pull(t.Context(), "app", nil, Caller{})
			done <- err
		}()
		synctest.Wait()
		expect("in the middle", &Progress{Total: 60, Fetched: 15, Blobs: 3, Complete: 1})
		if p, err := s.Progress(t.Context(), "other"); p != nil || err != nil {
			t.Errorf("another image: %+v %v", p, err)
		}
		if _, err := s.Progress(t.Context(), "Not An Image"); !errdefs.IsInvalidArgument(err) {
			t.Error(err)
		}
		close(f.release)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		expect("afterwards", nil)
	})
}

func TestAnImportSaysHowFarItHasCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := service(t, f)
		if p := s.ImportProgress("/a.tar"); p != nil {
			t.Errorf("before: %+v", p)
		}
		done := make(chan error)
		go func() {
			_, err := s.Import(t.Context(), "/a.tar", "")
			done <- err
		}()
		synctest.Wait()
		if p := s.ImportProgress("/a.tar"); p == nil || *p != (Progress{Total: 3, Fetched: 2}) {
			t.Errorf("in the middle: %+v", p)
		}
		if p := s.ImportProgress("/b.tar"); p != nil {
			t.Errorf("another archive: %+v", p)
		}
		close(f.release)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if p := s.ImportProgress("/a.tar"); p != nil {
			t.Errorf("afterwards: %+v", p)
		}
	})
}

// The list of transfers names the pods that wait, and what each transfer does.
func TestTransfersSayWhoWaitsForWhat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.blobs = []Blob{{"sha256:a", 10}, {"sha256:b", 20}}
		var ended []Pulled
		s := service(t, f)
		s.cfg.Pulled = func(p Pulled) { ended = append(ended, p) }
		one := func(states ...string) Transfer {
			t.Helper()
			list := s.Transfers(t.Context())
			if len(list) != 1 || !slices.Contains(states, list[0].State) {
				t.Fatalf("%+v, want one that is %q", list, states)
			}
			return list[0]
		}
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan error, 2)
		go func() { _, err := s.Pull(ctx, "app", nil, Caller{Name: "team/a"}); done <- err }()
		go func() { _, err := s.Pull(t.Context(), "app", nil, Caller{Name: "team/b"}); done <- err }()
		synctest.Wait()
		time.Sleep(time.Second)
		got := one(StateFetching)
		slices.Sort(got.Waiters)
		if got.Image != "docker.io/library/app:latest" || got.Kind != KindPull || got.Total != 30 || time.Since(got.Since) < time.Second || !slices.Equal(got.Waiters, []string{"team/a", "team/b"}) {
			t.Errorf("%+v", got)
		}
		leave()
		<-done
		f.sink.Received(7)
		f.sink.Layer(LayerBegins)
		f.fetched = map[string]int64{"sha256:a": 10, "sha256:b": 20}
		if got := one(StateUnpacking); got.Came != 7 || got.Unpacking != 1 || got.Queued != 0 || !slices.Equal(got.Waiters, []string{"team/b"}) {
			t.Errorf("%+v", got)
		}
		f.sink.Layer(LayerWaits)
		if got := one(StateUnpacking); got.Unpacking != 0 || got.Queued != 1 {
			t.Errorf("%+v", got)
		}
		if n := s.InFlight(); n[KindPull] != 1 || n[KindImport] != 0 {
			t.Errorf("%v", n)
		}
		f.sink.Layer(LayerGoesOn)
		f.sink.Layer(LayerEnds)
		close(f.release)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if list := s.Transfers(t.Context()); len(list) != 0 {
			t.Errorf("%+v", list)
		}
		if len(ended) != 1 || ended[0].Bytes != 7 || ended[0].Took != time.Second || ended[0].Err != nil {
			t.Errorf("%+v", ended)
		}
	})
}
