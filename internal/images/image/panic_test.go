// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// panicking is an image store in whose parsers of what an image brings along is a hole.
type panicking struct {
	*fake
	holes bool
}

func (p *panicking) hole() {
	if p.holes {
		panic("index out of range")
	}
}

func (p *panicking) Pull(ctx context.Context, ref string, creds Credentials, sn string, w Sink) (Stored, error) {
	p.hole()
	return p.fake.Pull(ctx, ref, creds, sn, w)
}

func (p *panicking) Import(ctx context.Context, path, ref string, read func(done, total int64)) ([]Stored, []string, error) {
	p.hole()
	return p.fake.Import(ctx, path, ref, read)
}

func (p *panicking) Unpack(ctx context.Context, n Name, snapshotter string) error {
	p.hole()
	return p.fake.Unpack(ctx, n, snapshotter)
}

// A panic of a library that parses, decrypts or unpacks a hostile image ended berth. It ends the
// call, with an error that names the image, and the next call works.
func TestAPanicOverAnImageEndsTheCallAlone(t *testing.T) {
	f := &panicking{fake: newFake()}
	close(f.release)
	var log bytes.Buffer
	survived := 0
	s := New(f, Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Panicked: func() { survived++ }})
	calls := map[string]func() error{
		"docker.io/library/evil:1": func() error { _, err := s.Pull(t.Context(), "evil:1", nil, Caller{}); return err },
		"/evil.tar":                func() error { _, err := s.Import(t.Context(), "/evil.tar", ""); return err },
		imageID:                    func() error { return s.Unpack(t.Context(), imageID, "overlayfs") },
	}
	f.names["evil"] = stored(imageID, imageID)
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.holes = true
	for name, call := range calls {
		if err := call(); !errdefs.IsInternal(err) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "index out of range") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := strings.Count(log.String(), "panic_test.go"); survived != len(calls) || n < len(calls) {
		t.Errorf("%d panics were counted, and the log has %d stacks:\n%s", survived, n, log.String())
	}
	f.holes = false
	for name, call := range calls {
		if err := call(); errdefs.IsInternal(err) {
			t.Errorf("%s, again: %v", name, err)
		}
	}
}
