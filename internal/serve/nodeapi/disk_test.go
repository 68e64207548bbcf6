// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Logs are those at the paths and what they were rotated to, and berth's own files are those below
// its directories without containerd's.
func TestLogsAndOwnFilesAreMeasured(t *testing.T) {
	dir := t.TempDir()
	write := func(path string) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, 8192), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"logs/c/0.log", "logs/c/0.log.20260102-030405", "logs/c/0.logs", "logs/c/1.log", "root/berth.db", "root/pods/a/hosts", "root/containerd/blob", "root/profiles/a.json"} {
		write(path)
	}
	d := &Disks{Dirs: []string{filepath.Join(dir, "root")}, Without: []string{filepath.Join(dir, "root/containerd"), filepath.Join(dir, "root/profiles")}}
	shares := d.shares(t.Context(), []string{filepath.Join(dir, "logs/c/0.log"), filepath.Join(dir, "gone/0.log")})
	if logs := shares[0]; logs.What != "logs" || logs.Count != 2 || logs.Bytes < 2*8192 || logs.Unknown != 0 {
		t.Errorf("%+v", logs)
	}
	if own := shares[1]; own.What != "state" || own.Count != 2 || own.Bytes < 2*8192 || own.Unknown != 0 {
		t.Errorf("%+v", own)
	}
	if total, free := d.space(t.Context(), dir); total == 0 || free > total {
		t.Errorf("%d of %d bytes are free", free, total)
	}
}

// While a file system hangs, those who ask are not held up, and start no further measurement.
func TestAMeasurementThatHangsIsNotBegunAgain(t *testing.T) {
	d := &Disks{}
	d.busy.Lock()
	for _, s := range d.shares(t.Context(), nil) {
		if s.Unknown != 1 || s.Note == "" {
			t.Errorf("%+v", s)
		}
	}
	d.asking.Lock()
	if total, free := d.space(t.Context(), t.TempDir()); total != 0 || free != 0 {
		t.Errorf("%d of %d bytes are free, says a file system that does not answer", free, total)
	}
}
