// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Whatever is in a log, reading it ends, and prints no more than it has.
func FuzzLog(f *testing.F) {
	f.Add([]byte("2026-01-02T15:04:05.000000000Z stdout F hello\n"), 1, false)
	f.Add([]byte("2026-01-02T15:04:05.000000000Z stderr P half \n2026-01-02T15:04:05.000000000Z stderr F line\n"), 1, true)
	f.Add(make([]byte, 100), -1, false)
	f.Fuzz(func(t *testing.T, b []byte, tail int, since bool) {
		path := filepath.Join(t.TempDir(), "0.log")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		r := &logReader{path: path, out: &out, err: &out}
		if since {
			r.since = time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
		}
		_ = r.read(context.Background(), tail%1000, false, func() (bool, error) { return false, nil })
		if out.Len() > len(b) {
			t.Errorf("%d bytes are printed of %d", out.Len(), len(b))
		}
	})
}
