// SPDX-License-Identifier: Apache-2.0

package errkind

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
)

// Kind is the name of a kind of error, as it is sent from one process to another.
type Kind string

// kinds are the kinds by their names. [Register] adds the kinds of a room.
var kinds = map[Kind]error{
	"disk full":           syscall.ENOSPC,
	"quota used up":       syscall.EDQUOT,
	"read-only":           syscall.EROFS,
	"input/output error":  syscall.EIO,
	"resource exhausted":  errdefs.ErrResourceExhausted,
	"failed precondition": errdefs.ErrFailedPrecondition,
	"invalid argument":    errdefs.ErrInvalidArgument,
	"internal":            errdefs.ErrInternal,
}

// Register adds a kind that a room decides on. It is called by the initialisation of the room, in
// each of the processes that send the kind or receive it.
func Register(name Kind, is error) error {
	kinds[name] = is
	return is
}

// Of returns the kinds that an error has.
func Of(err error) []Kind {
	var of []Kind
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		if errors.Is(err, kinds[k]) {
			of = append(of, k)
		}
	}
	return of
}

// Carry returns an error with a text and kinds. A kind without a meaning here, as one of another
// version of berth, is left out.
func Carry(text string, of ...Kind) error {
	c := carried{text: text}
	for _, k := range of {
		if is, known := kinds[k]; known {
			c.is = append(c.is, is)
		}
	}
	return c
}

// carried is an error of which the text and the kinds have arrived.
type carried struct {
	text string
	is   []error
}

// Error returns the text.
func (c carried) Error() string { return c.text }

// Unwrap returns the kinds.
func (c carried) Unwrap() []error { return c.is }

// Full reports whether an error means that there is no room on a disk, or none within a quota.
func Full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// told are the error numbers that other programs convey by their texts alone: containerd gives an
// error without a class of its own the code Unknown, and bbolt formats the kernel's errors.
var told = []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO}

// Named returns an error with the kinds that its text tells besides those that it has. The text
// stays the same, and the errors that err wraps are still wrapped.
func Named(err error) error {
	if err == nil {
		return nil
	}
	text := strings.ToLower(err.Error())
	for _, is := range told {
		if !errors.Is(err, is) && strings.Contains(text, is.Error()) {
			err = carried{err.Error(), []error{err, is}}
		}
	}
	return err
}
