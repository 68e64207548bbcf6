// SPDX-License-Identifier: Apache-2.0

package shims

import (
	"log/slog"
	"os"
	"testing"
)

// A simulation is not about the machine that it runs on: what it asks for is not looked for there.
func TestNowhereHasNoShims(t *testing.T) {
	s := Nowhere(slog.New(slog.DiscardHandler))
	s.Remember(thisID, uint32(os.Getpid()))
	s.Add(thisID, os.Getppid())
	if s.Knows(thisID) || s.isDoubted(thisID) || s.HasEnded(thisID) || s.BundleLeft(thisID) {
		t.Error("there is a shim, or something is left")
	}
	if err := s.EndLeft(t.Context(), Task{ID: thisID, Root: string([]byte{0})}); err != nil { // no such path can be looked at
		t.Errorf("end what is left: %v", err)
	}
	if err := s.End(t.Context(), thisID); err != nil {
		t.Errorf("end the shim: %v", err)
	}
	s.Wait()
}
