// SPDX-License-Identifier: Apache-2.0

package network

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// A power cut may leave a lease empty, and a pod may be gone whose lease is not. A lease whose ID
// is damaged was taken for one of no pod, and the address of a pod that runs was given away.
//
// PROPERTIES 67
func TestALeaseWithoutAPodIsReleased(t *testing.T) {
	dir := t.TempDir()
	leases := filepath.Join(dir, ownNetwork)
	n := &Network{cfg: Config{Default: &Bridge{DataDir: dir}, Logger: slog.New(slog.DiscardHandler)}}
	if err := n.ReleaseLeases(t.Context(), nil); err != nil {
		t.Errorf("without leases: %v", err)
	}
	if err := os.MkdirAll(leases, 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"10.0.0.2":           "",
		"10.0.0.3":           "known\r\neth0",
		"10.0.0.4":           "gone\r\neth0",
		"10.0.0.5":           "\x00\x00\x00",
		"10.0.0.6":           "known",
		"fd00::7":            "gone\r\neth0",
		"10.0.0.8":           "knowo\r\neth0",
		"last_reserved_ip.0": "10.0.0.6",
		"lock":               "",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(leases, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.ReleaseLeases(t.Context(), func(id, address string) bool { return id == "known" || address == "10.0.0.8" }); err != nil {
		t.Fatal(err)
	}
	for name := range files {
		_, err := os.Stat(filepath.Join(leases, name))
		stays := name == "10.0.0.3" || name == "10.0.0.6" || name == "10.0.0.8" || name == "lock" || name == "last_reserved_ip.0"
		if stays != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
