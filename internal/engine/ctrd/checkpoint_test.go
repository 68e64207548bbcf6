// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheReasonOfCRIUIsInTheError(t *testing.T) {
	dir := t.TempDir()
	if got := reason(dir, "dump.log"); got != "" {
		t.Errorf("%q", got)
	}
	const line = "(00.01) Error (criu/sk-inet.c:191): a socket cannot be dumped"
	if err := os.WriteFile(filepath.Join(dir, "dump.log"), []byte("(00.00) begin\n"+line+"\n(00.02) Error: then this\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := reason(dir, "dump.log"); !strings.HasSuffix(got, line) {
		t.Errorf("%q", got)
	}
}
