// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/heart/pod"
)

// PROPERTIES 32: an archive that comes from an image is read as one of root's is, has no name, and is
// gone once it is given back.
func TestAnArchiveIsReceived(t *testing.T) {
	a := Archives{Dir: t.TempDir()}
	files := sound()
	files[1] = file("checkpoint/core-1.img", creds{}.core())
	archive, done, err := a.Receive(t.Context(), bytes.NewReader(tarOf(t, files...)))
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(a.Dir); err != nil || len(left) != 0 {
		t.Errorf("%v %v", left, err)
	}
	got, err := a.Read(t.Context(), archive)
	if want := (pod.Checkpoint{Image: "app:1", ImageRef: "app@sha256:1"}); err != nil || got != want {
		t.Errorf("%+v %v", got, err)
	}
	to := t.TempDir()
	if err := a.Unpack(t.Context(), archive, to, &specs.Spec{Process: &specs.Process{}}); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(pod.UnpackedIn(to).Images + "/pages-1.img"); err != nil || string(b) != "memory" {
		t.Errorf("%q %v", b, err)
	}
	done()
	if _, err := a.Read(t.Context(), archive); err == nil {
		t.Error("it can be read after it was given back")
	}
}

// PROPERTIES 32: what is received and is no archive is refused, without the path of a file that nobody
// can look at, and what breaks off leaves nothing.
func TestWhatIsReceivedIsChecked(t *testing.T) {
	a := Archives{Dir: t.TempDir()}
	for what, b := range map[string][]byte{
		"nothing":              nil,
		"garbage":              []byte("garbage"),
		"an image of a rootfs": tarOf(t, file("etc/passwd", "root")),
		"a way out":            tarOf(t, append(sound(), file("../x", ""))...),
	} {
		archive, done, err := a.Receive(t.Context(), bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Read(t.Context(), archive); !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), archive) {
			t.Errorf("%s: %v", what, err)
		}
		done()
	}
	torn := errors.New("torn")
	if _, _, err := a.Receive(t.Context(), io.MultiReader(strings.NewReader("x"), iotest.ErrReader(torn))); !errors.Is(err, torn) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := a.Receive(ctx, strings.NewReader("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, _, err := (Archives{Dir: a.Dir + "/absent"}).Receive(t.Context(), strings.NewReader("x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(a.Dir); err != nil || len(left) != 0 {
		t.Errorf("%v %v", left, err)
	}
}
