// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// IsUnimplemented reports whether an error says that the service does not have the method: it is an
// earlier berth, or another runtime.
func IsUnimplemented(err error) bool { return status.Code(err) == codes.Unimplemented }

// IsNotFound reports whether an error says that the object does not exist.
func IsNotFound(err error) bool { return status.Code(err) == codes.NotFound }

// IsUnavailable reports whether a call was not answered: berth is restarted, or what it needs is.
// The call may have taken effect.
func IsUnavailable(err error) bool { return status.Code(err) == codes.Unavailable }

func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// Explain replaces the gRPC errors within err by sentences for a person. The result wraps err.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, e := range statuses(err) {
		text = strings.ReplaceAll(text, e.Error(), sentence(e.GRPCStatus()))
	}
	if text == err.Error() {
		return err
	}
	return explained{text, err}
}

type explained struct {
	text string
	err  error
}

func (e explained) Error() string { return e.text }
func (e explained) Unwrap() error { return e.err }

type statusError interface {
	error
	GRPCStatus() *status.Status
}

// statuses returns the gRPC errors that err consists of.
func statuses(err error) []statusError {
	switch e := err.(type) { //nolint:errorlint // the tree is walked by hand: every status in it is wanted
	case statusError:
		return []statusError{e}
	case interface{ Unwrap() error }:
		return statuses(e.Unwrap())
	case interface{ Unwrap() []error }:
		var out []statusError
		for _, part := range e.Unwrap() {
			out = append(out, statuses(part)...)
		}
		return out
	}
	return nil
}

// dialed matches gRPC's message for a socket without a listener, or one to which the user may not
// connect. It matches the whole message, because berth answers with such a message within another
// one if a socket that it needs is away, such as that of a snapshotter.
var dialed = regexp.MustCompile(`^connection error: desc = "transport: Error while dialing: dial unix (.+): connect: (.+?)"$`)

func sentence(st *status.Status) string {
	m := st.Message()
	switch at := dialed.FindStringSubmatch(m); {
	case st.Code() == codes.Unavailable && at != nil && at[2] == "permission denied":
		return fmt.Sprintf("%s may not be used by this user; run the command as root", at[1])
	case st.Code() == codes.Unavailable && at != nil:
		return fmt.Sprintf("berth does not answer at %s; is `berth serve` running?", at[1])
	case st.Code() == codes.Unavailable && (strings.Contains(m, "error reading from server") || strings.Contains(m, "transport is closing")):
		return "berth ended during the call; is `berth serve` still running?"
	case st.Code() == codes.Unimplemented:
		return "berth does not support that: " + m
	}
	return m
}
