// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"os"
	"testing"
)

func TestTheSamplePodIsTheDemos(t *testing.T) {
	b, err := os.ReadFile("../../contrib/pods/demo.yaml")
	if err != nil || string(b) != manifest {
		t.Errorf("contrib/pods/demo.yaml is not the pod that the demo runs: %v", err)
	}
}
