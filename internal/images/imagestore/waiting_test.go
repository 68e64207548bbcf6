// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"berth/internal/base/ops"
	"berth/internal/images/image"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// answer is one of a registry: a code, and when to come back.
type answer struct {
	code  int
	after string
}

// answers is a transport that gives one answer after the other.
type answers struct {
	list []answer
	at   []time.Duration
	from time.Time
}

// RoundTrip implements http.RoundTripper.
func (a *answers) RoundTrip(*http.Request) (*http.Response, error) {
	a.at = append(a.at, time.Since(a.from))
	next := a.list[min(len(a.at), len(a.list))-1]
	resp := &http.Response{StatusCode: next.code, Header: http.Header{}, Body: http.NoBody}
	if next.after != "" {
		resp.Header.Set("Retry-After", next.after)
	}
	return resp, nil
}

// A registry that says when to come back was asked five times at once, and the pull failed.
func TestARegistryIsAskedAgainWhenItSays(t *testing.T) {
	ok := answer{code: http.StatusOK}
	for name, c := range map[string]struct {
		list []answer
		code int
		at   []time.Duration
	}{
		"seconds":         {[]answer{{429, "7"}, {503, "1"}, ok}, 200, []time.Duration{0, 7 * time.Second, 8 * time.Second}},
		"a date":          {[]answer{{429, "Sat, 01 Jan 2000 00:00:30 GMT"}, ok}, 200, []time.Duration{0, 30 * time.Second}},
		"too late":        {[]answer{{429, "3600"}, ok}, 429, []time.Duration{0}},
		"nonsense":        {[]answer{{429, "-1"}, ok}, 429, []time.Duration{0}},
		"something else":  {[]answer{{401, "7"}, ok}, 401, []time.Duration{0}},
		"again and again": {[]answer{{429, "0"}}, 429, make([]time.Duration, mostWaits+1)},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := &answers{list: c.list, from: time.Now()}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://registry.example/v2/", nil)
			try(t, err)
			resp, err := waiting{a}.RoundTrip(r)
			try(t, err)
			try(t, resp.Body.Close())
			if resp.StatusCode != c.code || len(a.at) != len(c.at) {
				t.Fatalf("%s: %v, asked at %v", name, resp, a.at)
			}
			for i := range c.at {
				if a.at[i] != c.at[i] {
					t.Errorf("%s: asked at %v, want %v", name, a.at, c.at)
				}
			}
		})
	}
	// The wait is named, and ends with the pull.
	synctest.Test(t, func(t *testing.T) {
		list := &ops.List{}
		ctx, cancel := context.WithCancel(t.Context())
		ctx, op := list.Begin(ctx, ops.Work{Kind: ops.Pull, Of: ops.Object{Image: "app:v1"}})
		defer op.End()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://registry.example/v2/", nil)
		try(t, err)
		done := make(chan error)
		go func() {
			_, err := waiting{&answers{list: []answer{{429, "50"}}}}.RoundTrip(r) //nolint:bodyclose // there is no answer
			done <- err
		}()
		synctest.Wait()
		all, _ := list.Snapshot()
		said := strings.Join(ops.Sentences(all, ops.Object{}, time.Now()), " ")
		if want := "the registry registry.example, which is busy, to be asked again"; !strings.Contains(said, want) {
			t.Errorf("%s, want %s", said, want)
		}
		cancel()
		if err := <-done; err == nil {
			t.Error("it waits for a pull that has ended")
		}
	})
}

// A pull of an image for other machines said that something was not found.
func TestAPullOfAnotherPlatformSaysWhichThereAre(t *testing.T) {
	i, _ := parallelStore(t)
	img, err := testimage.Image(v1Config())
	try(t, err)
	config, err := img.ConfigFile()
	try(t, err)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "s390x"
	other, err := mutate.ConfigFile(img, config)
	try(t, err)
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "windows", Architecture: "amd64"}}})
	reg := testregistry.Start(t)
	for ref, want := range map[string]string{
		reg.Push("team/one:1", other):          "is for linux/s390x and not",
		reg.PushIndex("team/several:1", index): "is for linux/s390x, windows/amd64 and not",
	} {
		if _, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}
