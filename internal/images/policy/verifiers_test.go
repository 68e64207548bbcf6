// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/elliptic"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/base/event"
	"berth/internal/base/ops"
)

// PROPERTIES 40 and 65: a verifier that hangs, crashes or cannot be run has not answered, and lets nothing
// in; nor does a directory that is empty, or not there, or that others may write to.
func TestOnlyVerifiersThatAcceptLetAnImageIn(t *testing.T) {
	target := digest.FromString("image")
	const head = "#!/bin/sh\n"
	accept := head + "exit 0\n"
	for what, tt := range map[string]struct {
		programs map[string]string
		spoil    func(t *testing.T, dir string)
		want     string
		refused  bool
	}{
		"accepted": {programs: map[string]string{"a": head + `[ "$1 $2 $3 $4" = "-name x.example/app:1 -digest ` + target.String() + `" ] && grep -q "` + target.String() + `"`, "b": accept}},
		"refused":  {programs: map[string]string{"a": accept, "b": head + "echo not signed by anybody\nexit 3\n"}, want: "not signed by anybody", refused: true},
		"hangs":    {programs: map[string]string{"a": head + "sleep 600 & sleep 600\n"}, want: "each program has 1s"},
		"crashes":  {programs: map[string]string{"a": head + "kill -SEGV $$\n"}, want: "signal"},
		"no program": {
			programs: map[string]string{"a": accept, "b": accept},
			spoil:    func(t *testing.T, dir string) { chmod(t, filepath.Join(dir, "b"), 0o600) },
			want:     "is not a program",
		},
		"cannot be run": {programs: map[string]string{"a": "#!/no/such/interpreter\n"}, want: "no such file"},
		"absent":        {spoil: func(t *testing.T, dir string) { remove(t, dir) }, want: "no such file"},
		"empty":         {want: "no programs"},
		"open to others": {
			programs: map[string]string{"a": accept},
			spoil:    func(t *testing.T, dir string) { chmod(t, dir, 0o777) },
			want:     "whoever may write to it",
		},
		"a program open to others": {
			programs: map[string]string{"a": accept},
			spoil:    func(t *testing.T, dir string) { chmod(t, filepath.Join(dir, "a"), 0o722) },
			want:     "whoever may write to it",
		},
	} {
		t.Run(what, func(t *testing.T) {
			g := newGuarded(t)
			dir := filepath.Join(g.dir, "verifiers")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			for name, text := range tt.programs {
				write(t, filepath.Join(dir, name), text, 0o700)
			}
			if tt.spoil != nil {
				tt.spoil(t, dir)
			}
			g.signedBy("verifier_dir='"+dir+"'\n", nil)
			list, waits := &ops.List{}, ""
			list.Connect(ops.Config{Note: func(_ string, e event.Event) { waits += e.(event.TookLong).What }})
			ctx, op := list.Begin(t.Context(), ops.Work{Kind: ops.Pull})
			err := g.passed(ctx, target, nil)
			op.End()
			if waits == "" && what == "hangs" || waits != "" && waits != "an image verifier of "+dir {
				t.Errorf("PROPERTIES 65: what took long is %q", waits)
			}
			switch {
			case tt.want == "":
				if err != nil {
					t.Error(err)
				}
			case !strings.Contains(err.Error(), tt.want), !strings.Contains(err.Error(), `rule "signed"`),
				tt.refused != errdefs.IsPermissionDenied(err), tt.refused == errdefs.IsUnavailable(err),
				tt.refused != errors.Is(err, crierrors.ErrSignatureValidationFailed):
				t.Errorf("%v", err)
			}
			if err2 := g.created(t.Context(), target, nil); (err2 == nil) != (err == nil) {
				t.Errorf("a pull gets %v, and a container %v", err, err2)
			}
		})
	}
}

// PROPERTIES 40: what programs have accepted is remembered for these programs alone, and a rule with
// keys and programs wants both.
func TestOtherProgramsAreAskedAgain(t *testing.T) {
	g := newGuarded(t)
	dir := filepath.Join(g.dir, "verifiers")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "a")
	write(t, program, "#!/bin/sh\nexit 0\n", 0o700)
	key := ecdsaKey(t, elliptic.P256())
	both := g.keyFile() + "verifier_dir='" + dir + "'\n"
	g.signedBy(both, publicPEM(t, key))
	reg := newRegistry()
	target := digest.FromString("image")
	if err := g.passed(t.Context(), target, reg); !errdefs.IsPermissionDenied(err) {
		t.Errorf("accepted and unsigned: %v", err)
	}
	reg.add("x.example/app", target, payloadOf(target), sign(t, key, payloadOf(target)))
	if err := g.passed(t.Context(), target, reg); err != nil {
		t.Errorf("accepted and signed: %v", err)
	}
	if err := g.created(t.Context(), target, reg); err != nil {
		t.Error(err)
	}
	write(t, program, "#!/bin/sh\necho no longer; exit 1\n", 0o700)
	if err := g.created(t.Context(), target, reg); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "no longer") {
		t.Errorf("another program was not asked: %v", err)
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
}
