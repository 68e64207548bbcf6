// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// What the OCI runtime answers gets a code that says whether the request or the state of the
// container is the reason; what is not an answer keeps its own.
func TestRefusal(t *testing.T) {
	for text, is := range map[string]func(error) bool{
		"runc did not terminate successfully: exit status 1: unable to set memory limit to 1 (current usage: 2, peak usage: 3)": errdefs.IsFailedPrecondition,
		"runc did not terminate successfully: exit status 1: rejecting memory limit 1 <= usage 2":                               errdefs.IsFailedPrecondition,
		"runc did not terminate successfully: exit status 1: write cpuset.cpus: invalid argument":                               errdefs.IsInvalidArgument,
		"runc did not terminate successfully: exit status 1: write cpuset.cpus: numerical result out of range":                  errdefs.IsInvalidArgument,
		"crun did not terminate successfully: exit status 1: write file `cpuset.cpus`: Numerical result out of range":           errdefs.IsInvalidArgument,
	} {
		if err := refusal(errors.New(text)); !is(err) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v", err)
		}
	}
	for _, err := range []error{
		context.DeadlineExceeded,
		errdefs.ErrNotFound,
		fmt.Errorf("dial: %w", errdefs.ErrUnavailable),
		errors.New("ttrpc: closed"),
		errors.New("runc did not terminate successfully: signal: killed"),
	} {
		if got := refusal(err); !errors.Is(got, err) || errdefs.IsFailedPrecondition(got) || errdefs.IsInvalidArgument(got) {
			t.Errorf("%v became %v", err, got)
		}
	}
}

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
