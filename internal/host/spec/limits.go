// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits of one request. Each bound is far above what the kubelet sends, and keeps a record, a
// specification and the work on them small enough for a node.
const (
	MaxConfig     = 8 << 20   // bytes of a whole configuration, as it is recorded
	MaxLabels     = 256 << 10 // bytes of all labels, and of all annotations: Kubernetes' own bound
	MaxMounts     = 4096      // mounts of a container
	MaxPaths      = 1024      // masked paths, and read-only paths
	MaxCDIDevices = 512       // CDI devices of a container
	MaxVolumes    = 128       // volumes of an image; each is a directory and a mount
	// bytes of one argument or variable with its end: MAX_ARG_STRLEN of execve(2)
	maxExecString = 128 << 10
	// bytes of all of them: three quarters of _STK_LIM, the most that execve(2) takes
	maxExecStrings = 6 << 20
)

// CheckSandbox refuses a sandbox that is larger than any sensible use, or impossible. It is called
// before anything is recorded or made. The error names the field. It is ErrInvalidArgument, or
// ErrNotImplemented if berth does not support the field yet.
func CheckSandbox(cfg *runtimeapi.PodSandboxConfig) error {
	if n := proto.Size(cfg); n > MaxConfig {
		return tooMuch("config", n, MaxConfig, "bytes")
	}
	if err := checkLabels(cfg.GetLabels(), cfg.GetAnnotations()); err != nil {
		return err
	}
	if err := checkUserNamespace(cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()); err != nil {
		return err
	}
	return refuseSandbox(cfg)
}

// CheckContainer refuses a container that is larger than any sensible use, or impossible. It is
// called before anything is recorded or made. It returns the same errors as [CheckSandbox].
func CheckContainer(cfg *runtimeapi.ContainerConfig) error {
	if n := proto.Size(cfg); n > MaxConfig {
		return tooMuch("config", n, MaxConfig, "bytes")
	}
	if err := checkLabels(cfg.GetLabels(), cfg.GetAnnotations()); err != nil {
		return err
	}
	sec := cfg.GetLinux().GetSecurityContext()
	for _, c := range []struct {
		field     string
		have, max int
	}{
		{"mounts", len(cfg.GetMounts()), MaxMounts},
		{"devices", len(cfg.GetDevices()), MaxDevices},
		{"masked_paths", len(sec.GetMaskedPaths()), MaxPaths},
		{"readonly_paths", len(sec.GetReadonlyPaths()), MaxPaths},
		{"supplemental_groups", len(sec.GetSupplementalGroups()), MaxGroups},
	} {
		if c.have > c.max {
			return tooMuch(c.field, c.have, c.max, "entries")
		}
	}
	for _, d := range cfg.GetDevices() {
		if err := checkDevice(d); err != nil {
			return err
		}
	}
	images := 0
	for _, m := range cfg.GetMounts() {
		if err := checkImageMount(m); err != nil {
			return err
		}
		if m.GetImage() != nil {
			images++
		}
	}
	if images > MaxVolumes {
		return tooMuch("mounts", images, MaxVolumes, "images")
	}
	if _, err := CDIDevices(cfg); err != nil {
		return err
	}
	return refuseContainer(cfg)
}

// CheckImage refuses to run an image whose configuration is larger than any sensible use. It is
// called before anything is recorded or made. The error is ErrInvalidArgument and names the field.
func CheckImage(cfg ocispec.ImageConfig) error {
	if n := len(cfg.Volumes); n > MaxVolumes {
		return tooMuch("volumes of the image", n, MaxVolumes, "entries")
	}
	for v := range cfg.Volumes {
		if strings.Contains(v, "\x00") || slices.Contains(strings.Split(v, "/"), "..") { // CVE-2022-23648
			return fmt.Errorf("volumes of the image: %q is not a path within the image: %w", v, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

func checkLabels(labels, annotations map[string]string) error {
	for field, m := range map[string]map[string]string{"labels": labels, "annotations": annotations} {
		n := 0
		for k, v := range m {
			n += len(k) + len(v)
		}
		if n > MaxLabels {
			return tooMuch(field, n, MaxLabels, "bytes")
		}
	}
	return nil
}

// checkExec refuses arguments that execve(2) would refuse or cut off after everything else was
// made.
func checkExec(args, env []string) error {
	total := 0
	for field, list := range map[string][]string{"args": args, "envs": env} {
		for _, v := range list {
			if len(v) >= maxExecString {
				return tooMuch(field, len(v), maxExecString-1, "bytes in one entry")
			}
			if strings.Contains(v, "\x00") {
				return fmt.Errorf("%s: %q has a zero byte: %w", field, v, errdefs.ErrInvalidArgument)
			}
			if !utf8.ValidString(v) { // the OCI runtime reads it in JSON, which has no other strings
				if name, _, ok := strings.Cut(v, "="); ok && field == "envs" {
					v = name // its value may be a secret
				}
				return fmt.Errorf("%s: %q is not UTF-8, so the container would not get it as it is: %w", field, v, errdefs.ErrInvalidArgument)
			}
			total += len(v) + 1
		}
	}
	if total > maxExecStrings {
		return tooMuch("args and envs", total, maxExecStrings, "bytes")
	}
	return nil
}

func tooMuch(field string, have, limit int, of string) error {
	return fmt.Errorf("%s: %d %s are more than %d: %w", field, have, of, limit, errdefs.ErrInvalidArgument)
}
