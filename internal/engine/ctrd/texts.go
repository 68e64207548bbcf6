// SPDX-License-Identifier: Apache-2.0

// This file holds a trick whole: it interprets the texts of other programs' errors. It relies on
// wordings of containerd, ttrpc, runc and crun for errors without a code, which may change. No
// setting turns it off. Delete each entry when that error has a code.

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

// statement is a fact that an error conveys by its text alone.
type statement int

const (
	// noCRIU: the OCI runtime did not find CRIU.
	noCRIU statement = iota
	// cutShort: it is not an answer, because the program that was to give it was ended, or the call
	// was given up.
	cutShort
	// badValue: the kernel does not take the value that was asked for.
	badValue
	// ofRuntime: the answer of the OCI runtime.
	ofRuntime
	// ofBundle: it is about the bundle of a task, or about a file in it.
	ofBundle
	// shimBundleLeft: the bundle of a shim that is a sandbox is in the way of a new one.
	shimBundleLeft
	// hungUp: the shim ended before it had answered.
	hungUp
	// noSocket: the shim ended before it could be connected to.
	noSocket
	// socketLeft: the shim ended while another one was to be started on its socket.
	socketLeft
	// notMounted: the root file system cannot be mounted, because the disk has failed.
	notMounted
	// notThere: the root file system cannot be mounted, because a directory of a layer is missing.
	notThere
)

// texts lists, by statement, the texts that an error contains: one word of each line. ID stands for
// the ID of the task or of the pod. Case is ignored, because Go and libc write the kernel's errors
// differently.
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
	socketLeft:     {{"remove pre-existing socket"}, {"no such file or directory"}},
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

// refusal converts an error of the OCI runtime, which has no code of its own, into one that tells
// whether the request or the state of the container is the reason. Other errors stay as they are.
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
