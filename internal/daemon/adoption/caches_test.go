// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/base/wholefile"
	"berth/internal/engine/adopt"
	"berth/internal/heart/state"
)

// PROPERTIES 46: an adoption that is killed while it copies CNI's result of a pod leaves no file behind once
// the plug-in has the pod again, or the pod is gone.
func TestACopyOfACachedResultThatWasCutOffIsRemoved(t *testing.T) {
	for what, end := range map[string]func(f *fake, h *host){
		"given back": func(f *fake, h *host) {
			h.expect(f, adopt.Request{Back: true})
		},
		"gone": func(f *fake, h *host) {
			recs, err := openRecords(h.cfg.Root, adopt.Request{})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(recs.Note(t.Context(), "p1", state.OwnerTaking), recs.close()); err != nil {
				t.Fatal(err)
			}
			f.remove("p1")
			f.remove("c1")
			h.expect(f, adopt.Request{})
		},
	} {
		f, h := startFake(t, "here"), newHost(t)
		f.pod("p1", "c1")
		metadata := f.containers["p1"].GetExtensions()["io.cri-containerd.sandbox.metadata"]
		metadata.Value = bytes.Replace(metadata.GetValue(), []byte(`"ID":`), []byte(`"NetNSPath":"/run/netns/p1","IP":"10.0.0.2","ID":`), 1)
		of, to := filepath.Join(h.cfg.State, "cni", "results"), filepath.Join(h.cfg.Root, "cni", "results")
		if err := os.MkdirAll(of, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(of, "net-p1-eth0"), []byte(`{"ifName":"eth0","networkName":"net"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		f.set(false)
		h.expect(f, adopt.Request{})
		copied := filepath.Join(to, "net-p1-eth0")
		if _, err := os.Stat(copied); err != nil {
			t.Fatalf("%s: it was not copied: %v\n%s", what, err, h.said)
		}
		if err := os.WriteFile(copied+wholefile.Fresh, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		end(f, h)
		if left, err := os.ReadDir(to); err != nil || len(left) > 0 {
			t.Errorf("%s: left are %v, %v", what, left, err)
		}
	}
}
