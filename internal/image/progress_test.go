// SPDX-License-Identifier: Apache-2.0

package image

import (
	"testing"
	"testing/synctest"

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
			_, err := s.Pull(t.Context(), "app", nil)
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
