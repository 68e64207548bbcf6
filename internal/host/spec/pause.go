// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Pause is the program that holds the namespaces of a sandbox.
type Pause struct {
	// Rootfs is the directory of its root file system.
	Rootfs string
	// Args are the arguments of the built-in program. They are not used with an image.
	Args []string
	// Image is the configuration of the image that the program comes from; nil for the built-in one.
	Image *ocispec.ImageConfig
	// ImageName names the image in errors. Passwd and Group are its /etc/passwd and /etc/group.
	ImageName     string
	Passwd, Group []byte
}

// pauseUser is the user and the group of the pause process, unless its image names others.
const pauseUser = 65535

// pauseProcess sets the pause process of a sandbox. An image provides only the arguments, the
// environment, the directory and the user: its root file system is read-only in any case, and the
// program has no capabilities.
func pauseProcess(s *specs.Spec, in Pause) error {
	s.Root = &specs.Root{Path: in.Rootfs, Readonly: true}
	s.Process.Args, s.Process.Cwd = slices.Clone(in.Args), "/"
	s.Process.User = specs.User{UID: pauseUser, GID: pauseUser}
	s.Process.Capabilities = &specs.LinuxCapabilities{} // the pause process needs none
	s.Process.NoNewPrivileges = true
	if in.Image == nil {
		return nil
	}
	of := Container{Image: *in.Image, ImageName: in.ImageName, Passwd: in.Passwd, Group: in.Group}
	err := CheckImage(*in.Image)
	if err == nil {
		s.Process.Args, err = arguments(of)
	}
	if err == nil {
		s.Process.Cwd, err = directory(of)
	}
	if err == nil && in.Image.User != "" {
		var user specs.User
		user, _, err = resolveUser(of)
		s.Process.User = specs.User{UID: user.UID, GID: user.GID}
	}
	s.Process.Env = slices.Clone(in.Image.Env)
	if err == nil {
		err = checkExec(s.Process.Args, s.Process.Env)
	}
	if err != nil {
		return fmt.Errorf("sandbox image %s: %w", in.ImageName, err)
	}
	return nil
}
