// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// The image of a process that CRIU did not write, or that is of another architecture, is refused.
func FuzzCore(f *testing.F) {
	core := binary.LittleEndian.AppendUint32(nil, imageMagic)
	core = binary.LittleEndian.AppendUint32(core, coreMagic)
	f.Add(append(core, 2, 0, 0, 0, 8, 1))
	f.Add(append(core, 2, 0, 0, 0, 8, 0xff))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := checkCore(io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b))))
		if err == nil && !bytes.HasPrefix(b, core) {
			t.Errorf("%x is taken for the image of a process", b)
		}
	})
}

// The description of a pod that lacks a configuration, or is of another version, is refused.
func FuzzPod(f *testing.F) {
	f.Add([]byte(`{"version":1,"config":{},"containers":[]}`))
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, podFile), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if d, err := readPod(dir); err == nil && (d.Version != podVersion || !d.Config.isThere()) {
			t.Errorf("%q is taken for the checkpoint of a pod", b)
		}
		_, _ = ReadPod(dir)
	})
}
