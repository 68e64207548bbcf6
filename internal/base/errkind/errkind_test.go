// SPDX-License-Identifier: Apache-2.0

package errkind

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
)

// PROPERTIES 59: each kind arrives at the end of a process that has only a text and names to send.
func TestAKindArrives(t *testing.T) {
	for name, is := range kinds {
		err := fmt.Errorf("write x: %w", &fs.PathError{Op: "write", Path: "x", Err: is})
		got := Carry(err.Error(), Of(err)...)
		if got.Error() != err.Error() || !errors.Is(got, is) || len(Of(got)) != 1 {
			t.Errorf("%s: %v, of the kinds %q", name, got, Of(got))
		}
	}
	if err := Carry("x", "a kind of tomorrow"); err.Error() != "x" || len(Of(err)) != 0 {
		t.Errorf("an unknown kind: %v", err)
	}
}

// PROPERTIES 59: a disk that is full was text behind gRPC, and a text of bbolt.
func TestAFullDiskIsToldByItsText(t *testing.T) {
	for text, is := range map[string]error{
		"write /x: no space left on device: unknown": syscall.ENOSPC,
		"unpack: Disk quota exceeded":                syscall.EDQUOT,
		"open /x: read-only file system":             syscall.EROFS,
	} {
		err := Named(fmt.Errorf("%s: %w", text, errdefs.ErrNotFound))
		if !errors.Is(err, is) || !errdefs.IsNotFound(err) || Full(err) == errors.Is(is, syscall.EROFS) {
			t.Errorf("%s: %v is of the kinds %q", text, err, Of(err))
		}
	}
	if err := Named(errors.New("there is space left")); len(Of(err)) != 0 || Named(nil) != nil {
		t.Errorf("%v is of the kinds %q", err, Of(err))
	}
}
