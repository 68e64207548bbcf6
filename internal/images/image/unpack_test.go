// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
)

// An image that ctr fetched, or whose snapshots were lost, could not be run: "parent snapshot does
// not exist". It is unpacked when it is needed, once for all who wait.
func TestAnImageThatIsNotUnpackedIsUnpackedOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := service(t, f)
		st := stored(oneTag, imageID)
		f.names[oneTag] = st
		f.packed[st.ChainID] = true
		if err := s.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if p, _, err := s.Files(t.Context(), Root{ChainID: st.ChainID}); err != nil || string(p) != "p" {
					t.Errorf("%q %v", p, err)
				}
			})
			wg.Go(func() {
				if err := s.Unpack(t.Context(), imageID, s.Snapshotter()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(f.release)
		wg.Wait()
		if f.unpacks != 1 {
			t.Errorf("%d unpackings", f.unpacks)
		}
	})
}

func TestAnUnpackingEndsWithItsTimeoutOrItsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := service(t, f)
		f.names[oneTag] = stored(oneTag, imageID)
		if err := s.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err := s.Unpack(t.Context(), imageID, s.Snapshotter())
		if d := time.Since(began); d != 10*time.Minute || err == nil || !strings.Contains(err.Error(), "more than 10m") {
			t.Errorf("after %v: %v", d, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error)
		go func() { errs <- s.Unpack(ctx, imageID, s.Snapshotter()) }()
		synctest.Wait()
		cancel()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		if s.unpacks.inFlight() != 0 {
			t.Error("it goes on for nobody")
		}
		if err := s.Unpack(t.Context(), "absent", s.Snapshotter()); !errdefs.IsNotFound(err) {
			t.Error(err)
		}
	})
}

func TestNothingIsBegunOnceTheServiceEnded(t *testing.T) {
	f := newFake()
	s := New(f, Config{Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pull(t.Context(), "x", nil, Caller{}); !errdefs.IsUnavailable(err) {
		t.Error(err)
	}
}

// A registry sends those who pull on to storage, with URLs that are signed: whoever reads the error
// could read the blob.
func TestErrorsNameNoCredentials(t *testing.T) {
	cause := fmt.Errorf("Get \"https://me:secret@s3.example/bucket/x?X-Amz-Signature=abc&k=v#f\": %w", errdefs.ErrUnavailable)
	for text, want := range map[string]string{
		cause.Error(): `Get "https://s3.example/bucket/x": unavailable`,
		"unexpected status from GET request to https://r.example/v2/x?token=abc: 403": "unexpected status from GET request to https://r.example/v2/x 403",
		"see https://r.example/v2/x: plain":                                           "see https://r.example/v2/x: plain",
		"http://me@h/x and HTTPS://h/?a=b":                                            "http://h/x and https://h/",
		"https://%zz?secret=1":                                                        "(a URL)",
	} {
		if got := redact(errors.New(text)).Error(); got != want {
			t.Errorf("%q:\n%q, want\n%q", text, got, want)
		}
	}
	if !errdefs.IsUnavailable(redact(cause)) {
		t.Error("its kind is lost")
	}
	f := &failing{fake: newFake(), err: cause}
	s := New(f, Config{Logger: slog.New(slog.DiscardHandler)})
	_, err := s.Pull(t.Context(), "x", nil, Caller{})
	if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "abc") || !strings.Contains(err.Error(), "s3.example/bucket/x") {
		t.Error(err)
	}
	if got := fmt.Sprint(Credentials{Password: "secret"}, Credentials{RegistryToken: "secret"}); strings.Contains(got, "secret") {
		t.Error(got)
	}
}

type failing struct {
	*fake
	err error
}

func (f *failing) Pull(context.Context, string, Credentials, string, Sink) (Stored, error) {
	return Stored{}, f.err
}
