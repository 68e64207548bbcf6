// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/test/command"
)

// OtherVersion is a version that only the berth of [Other] has.
const OtherVersion = "99.0.1"

// Other builds berth as another version, [OtherVersion], for [Node.Program]. It is removed at the
// end of the test.
func Other(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "berth")
	cmd := command.Within(t, 10*time.Minute, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X berth/internal/base/version.Version="+OtherVersion, "-o", path, "./cmd/berth")
	cmd.Dir = Module(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build berth: %v\n%s", err, out)
	}
	return path
}
