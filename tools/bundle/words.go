// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"regexp"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"berth/internal/base/event"
)

// terms are the words of berth's own that are written: states, steps, actions, and so on.
var terms = strings.Fields(`
	CREATING CREATED RUNNING EXITED READY NOTREADY
	absent created running stopped unreachable
	alive gone unknown
	none later watch adopt report measure lost abandon undostart undo hold release
	undo-start settle notify update reap
	task io container snapshot sandbox network netns files views pins
	kernel stream audit start
	Completed Error OOMKilled StartError Unknown
	pod above node
	stdout stderr
	exec exec-sync attach port-forward
	runc crun kata gvisor runsc youki wasm
	debug info warn error text json
	overlayfs native btrfs zfs devmapper erofs stargz nydus
	auto always closed open refuse allow inside beside
	kubelet crictl berth k3s rke2 k0s microk8s
	io.containerd.runc.v2 io.containerd.kata.v2 io.containerd.runsc.v1`)

// other stands for a word that is not written.
const other = "other"

// term returns a word if it is one of berth's, and "other" for any other one.
func term[T ~string](s T) T {
	if s == "" || slices.Contains(terms, string(s)) {
		return s
	}
	return other
}

// hidden stands for a text that is not written.
func hidden(string) string { return other }

// omitted leaves a text out.
func omitted(string) string { return "" }

// causes are the words of errors that are written. They say enough of why something failed.
var causes = []string{
	"no space left on device",
	"read-only file system",
	"input/output error",
	"too many open files",
	"cannot allocate memory",
	"resource temporarily unavailable",
	"device or resource busy",
	"permission denied",
	"operation not permitted",
	"no such file or directory",
	"no such process",
	"exec format error",
	"executable file not found",
	"connection refused",
	"connection closed",
	"connection reset",
	"broken pipe",
	"ttrpc: closed",
	"context deadline exceeded",
	"context canceled",
	"not found",
	"already exists",
	"failed precondition",
	"unavailable",
	"unauthorized",
	"no such host",
	"i/o timeout",
	"timed out",
	"signal: killed",
	"exit status",
	"must be stopped before deletion",
	"berth stopped",
}

// cause returns those words of an error that are written, or "other" where it has none of them.
func cause(err string) string {
	if err == "" {
		return ""
	}
	var found []string
	low := strings.ToLower(err)
	for _, c := range causes {
		if strings.Contains(low, c) {
			found = append(found, c)
		}
	}
	if found == nil {
		return other
	}
	return strings.Join(found, "; ")
}

// reboots are how a berth ends.
var reboots = []string{event.AfterStop, event.AfterKill, event.AfterReboot}

func after(s string) string {
	if s == "" || slices.Contains(reboots, s) {
		return s
	}
	return other
}

var (
	hexID   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	uuid    = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	dnsName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)
	release = regexp.MustCompile(`^[0-9A-Za-z.+~_-]{1,80}$`)
)

func match(r *regexp.Regexp, s string) string {
	if s == "" || r.MatchString(s) {
		return s
	}
	return other
}

// idOf returns id if it has the form of the IDs that berth makes, and the word for another text if
// not.
func idOf(id string) string { return match(hexID, id) }

// nameOf returns a name that Kubernetes allows.
func nameOf(s string) string { return match(dnsName, s) }

// namesOf returns names that Kubernetes allows.
func namesOf(n event.Names) event.Names {
	return event.Names{
		Namespace: nameOf(n.Namespace),
		Pod:       nameOf(n.Pod),
		UID:       nameOf(n.UID),
		Sandbox:   idOf(n.Sandbox),
		Container: nameOf(n.Container),
		Attempt:   n.Attempt,
	}
}

// imageOf returns the name of an image, or its ID.
func imageOf(ref string) string {
	if ref == "" {
		return ""
	}
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		if hex, ok := strings.CutPrefix(ref, "sha256:"); ok && hexID.MatchString(hex) {
			return ref
		}
		return other
	}
	return named.String()
}
