// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// Each text is one that containerd, ttrpc, runc or crun writes, with all that it says.
func TestTheTextsOfOtherPrograms(t *testing.T) {
	for text, want := range map[string][]statement{
		`runc did not terminate successfully: exit status 1: exec: "criu": executable file not found in $PATH`: {noCRIU},
		"OCI runtime restore failed: could not open CRIU: No such file or directory":                           {noCRIU, ofRuntime},
		"runc did not terminate successfully: exit status 1: criu failed: type NOTIFY errno 0":                 nil,
		"ttrpc: closed": {cutShort, hungUp},
		"start failed: failed to create TTRPC connection: dial unix /run/containerd/s/15aa: connect: no such file or directory":                                             {noSocket},
		"start failed: failed to create TTRPC connection: dial unix /run/containerd/s/15aa: connect: connection refused":                                                    {noSocket},
		"io.containerd.runc.v2: remove pre-existing socket: remove /run/containerd/s/15aa: no such file or directory: exit status 1":                                        {socketLeft},
		`failed to mount rootfs component: mount source: "overlay", target: "/run/x/rootfs", fstype: overlay, flags: 0, data: "volatile", err: input/output error`:          {notMounted},
		`failed to mount rootfs component: mount source: "overlay", target: "/run/x/rootfs", fstype: overlay, flags: 0, data: "workdir=/w", err: no such file or directory`: {notThere},
		"runc did not terminate successfully: signal: killed":                                                                                        {cutShort},
		"runc did not terminate successfully: exit status 1: write cpuset.cpus: invalid argument":                                                    {badValue},
		"crun did not terminate successfully: exit status 1: write file `cpuset.cpus`: Numerical result out of range":                                {badValue},
		"mkdir /run/containerd/io.containerd.runtime.v2.task/k8s.io/" + thisID + ": file exists":                                                     {ofBundle},
		"mkdir /run/containerd/io.containerd.runtime.v2.task/k8s.io/" + otherID + ": file exists":                                                    nil,
		"OCI runtime create failed: open /run/containerd/io.containerd.runtime.v2.task/k8s.io/" + thisID + "/config.json: no such file or directory": {ofRuntime, ofBundle},
		"mkdir /run/berth/containerd/io.containerd.sandbox.controller.v1.shim/k8s.io/" + thisID + ": file exists":                                    {shimBundleLeft},
		"remove /run/berth/containerd/io.containerd.sandbox.controller.v1.shim/k8s.io/" + thisID + ": directory not empty":                           nil,
		"connect /run/berth/containerd/io.containerd.sandbox.controller.v1.shim/k8s.io/" + otherID + ": file exists":                                 nil,
	} {
		for _, s := range slices.Sorted(maps.Keys(texts)) {
			if got := says(errors.New(text), s, thisID); got != slices.Contains(want, s) {
				t.Errorf("%q: statement %d: %v", text, s, got)
			}
		}
	}
}

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
