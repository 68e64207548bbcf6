// SPDX-License-Identifier: Apache-2.0

package client

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// Archive returns the contents of a tar by name. A file that is not regular is empty.
func Archive(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string]string{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimPrefix(h.Name, "/")] = string(b)
	}
}
