// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/base/config"
)

// A container is in the class of block I/O that annotations name, and one that no file describes is
// an error.
func TestAClassOfBlockIOIsThatOfTheAnnotation(t *testing.T) {
	file := filepath.Join(t.TempDir(), "blockio.yaml")
	if err := os.WriteFile(file, []byte("Classes:\n  slow:\n    - Weight: 70\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	classes, err := openClasses(config.Pod{BlockIOFile: file})
	if err != nil {
		t.Fatal(err)
	}
	pod := map[string]string{"blockio.resources.beta.kubernetes.io/container.c": "slow", "blockio.resources.beta.kubernetes.io/container.d": "fast"}
	if c, err := classes("c", nil, pod); err != nil || c.BlockIO == nil || *c.BlockIO.Weight != 70 || c.RDT != "" {
		t.Errorf("%+v %v", c, err)
	}
	if c, err := classes("b", nil, pod); err != nil || c.BlockIO != nil {
		t.Errorf("%+v %v", c, err)
	}
	if _, err := classes("d", nil, pod); err == nil || !strings.Contains(err.Error(), `"fast"`) {
		t.Error(err)
	}
	if classes, err := openClasses(config.Pod{}); classes != nil || err != nil {
		t.Error("there are classes without a file", err)
	}
	if _, err := openClasses(config.Pod{BlockIOFile: file + ".absent"}); err == nil || !strings.Contains(err.Error(), "pod.blockio_file") {
		t.Error(err)
	}
}
