// SPDX-License-Identifier: Apache-2.0

// This file holds a trick whole: what the texts of other programs' errors say. It relies on what
// containerd, ttrpc, runc and crun do not promise, which is how they word an error that has no code
// of its own. No setting turns it off. Delete each entry when that error has a code.

package ctrd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"

	"berth/internal/engine/shims"
)

// statement is something that an error says by its text alone.
type statement int

const (
	// noCRIU: the OCI runtime did not find CRIU.
	noCRIU statement = iota
	// cutShort: it is not an answer, since the program that was to give it was ended, or the call was
	// given up.
	cutShort
	// badValue: the kernel does not take the value that was asked for.
	badValue
	// ofRuntime: it is what the OCI runtime has answered.
	ofRuntime
	// ofBundle: it is about the bundle of a task, or about a file in it.
	ofBundle
	// shimBundleLeft: the bundle of a shim that is a sandbox is in the way of a new one.
	shimBundleLeft
	// hungUp: the shim ended before it had answered.
	hungUp
	// noSocket: the shim ended before it could be connected to.
	noSocket
	// notMounted: the root file system cannot be mounted, since the disk has failed.
	notMounted
	// notThere: the root file system cannot be mounted, since a directory of a layer is missing.
	notThere
)

// texts has, by statement, what the text of an error contains: one word of each line. ID stands for
// the ID of the task or of the pod. Whether letters are large is of no account, since Go and libc
// write the kernel's errors differently.
var texts = map[statement][][]string{
	noCRIU: {
		{"criu"},
		{"executable file not found", "no such file or directory"},
	},
	cutShort:       {{"ttrpc: closed", "signal: killed", "context canceled", "context deadline exceeded"}},
	badValue:       {{"invalid argument", "numerical result out of range"}},
	ofRuntime:      {{"OCI runtime"}},
	ofBundle:       {{shims.TaskDir + "ID"}},
	shimBundleLeft: {{shims.SandboxDir + "ID: file exists"}},
	hungUp:         {{ttrpc.ErrClosed.Error()}},
	noSocket:       {{"TTRPC connection"}, {"no such file or directory", "connection refused"}},
	notMounted:     {{"mount rootfs"}, {"input/output error"}},
	notThere:       {{"mount rootfs"}, {"no such file or directory"}},
}

// says reports whether the text of an error makes a statement about an ID.
func says(err error, s statement, id string) bool {
	text := strings.ToLower(err.Error())
	for _, words := range texts[s] {
		if !containsOne(text, words, id) {
			return false
		}
	}
	return true
}

func containsOne(text string, words []string, id string) bool {
	for _, w := range words {
		if strings.Contains(text, strings.ToLower(strings.ReplaceAll(w, "ID", id))) {
			return true
		}
	}
	return false
}

// refusal gives an answer of the OCI runtime, which has no code of its own, one that says whether
// the request or the state of the container is the reason. What is not an answer stays as it is.
func refusal(err error) error {
	switch {
	case errdefs.IsNotFound(err), errdefs.IsUnavailable(err), errdefs.IsFailedPrecondition(err), errdefs.IsInvalidArgument(err),
		errdefs.IsNotImplemented(err), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		says(err, cutShort, ""):
		return err
	case says(err, badValue, ""):
		return fmt.Errorf("%s: %w", err.Error(), errdefs.ErrInvalidArgument)
	}
	return fmt.Errorf("%s: %w", err.Error(), errdefs.ErrFailedPrecondition)
}
