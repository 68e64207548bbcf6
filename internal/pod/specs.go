// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/spec"
	"berth/internal/state"
)

// containerSpec gathers what the specification of u needs.
func (c *Controller) containerSpec(ctx context.Context, u *unit, img Image) (*specs.Spec, error) {
	cfg, p := u.container.Config, u.pod
	passwd, group, err := c.images.Files(ctx, img)
	if err != nil {
		return nil, err
	}
	if err := prepareMounts(cfg); err != nil {
		return nil, err
	}
	volumes, err := c.makeVolumes(ctx, u, img)
	if err != nil {
		return nil, err
	}
	in := spec.Container{
		ID: u.id, SandboxID: p.id, SandboxPID: p.now().Process.Pid, Config: cfg, Sandbox: p.sandbox.Config, Image: img.Config,
		ImageName: imageRef(cfg), Passwd: passwd, Group: group, NetNS: p.sandbox.NetNS, Hostname: p.hostname(),
		Files: c.sharedFiles(p), Volumes: volumes, Devices: hostDevices,
		PrivilegedWithoutHostDevices: p.handler.PrivilegedWithoutHostDevices, SystemdCgroup: p.handler.SystemdCgroup,
		PodAnnotations: p.handler.PodAnnotations, ContainerAnnotations: p.handler.ContainerAnnotations,
		Seccomp: loadSeccomp,
	}
	if ns := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions(); ns.GetPid() == runtimeapi.NamespaceMode_TARGET {
		t, err := c.find(ns.GetTargetId(), false)
		if err != nil {
			return nil, err
		}
		if t.pod != p {
			return nil, fmt.Errorf("target container %s is in another pod: %w", t.id, errdefs.ErrInvalidArgument)
		}
		if st := t.now(); st.Phase == state.Running {
			in.TargetPID = st.Process.Pid
		}
	}
	out, degraded, err := spec.ForContainer(c.cfg.Host, in)
	if err != nil {
		return nil, err
	}
	c.noteDegraded(u, degraded)
	return out, nil
}

// hostname is what the pod's processes see.
func (u *unit) hostname() string {
	if h := u.sandbox.Config.GetHostname(); h != "" {
		return h
	}
	h, _ := os.Hostname()
	return h
}

// sharedFiles are the pod's own files that its containers see.
func (c *Controller) sharedFiles(p *unit) map[string]string {
	dir := c.sandboxDir(p.id)
	files := map[string]string{
		"/etc/hosts": filepath.Join(dir, "hosts"), "/etc/hostname": filepath.Join(dir, "hostname"), "/etc/resolv.conf": filepath.Join(dir, "resolv.conf"),
		"/dev/shm": filepath.Join(dir, "shm"),
	}
	if p.sandbox.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetIpc() == runtimeapi.NamespaceMode_NODE {
		files["/dev/shm"] = "/dev/shm"
	}
	return files
}

// prepareMounts makes host directories that do not exist, as the kubelet and crictl's users expect.
func prepareMounts(cfg *runtimeapi.ContainerConfig) error {
	for _, m := range cfg.GetMounts() {
		host := m.GetHostPath()
		if !filepath.IsAbs(host) {
			continue // spec refuses it
		}
		if _, err := os.Stat(host); os.IsNotExist(err) {
			if err := os.MkdirAll(host, 0o755); err != nil {
				return fmt.Errorf("mount %s: make host path: %w", m.GetContainerPath(), err)
			}
		} else if err != nil {
			return fmt.Errorf("mount %s: host path: %w", m.GetContainerPath(), err)
		}
	}
	return nil
}

// makeVolumes makes a host directory, with the image's content, for each of the image's volumes that the
// configuration mounts nothing at.
func (c *Controller) makeVolumes(ctx context.Context, u *unit, img Image) (map[string]string, error) {
	mounted := map[string]bool{}
	for _, m := range u.container.Config.GetMounts() {
		mounted[filepath.Clean("/"+m.GetContainerPath())] = true
	}
	volumes := map[string]string{}
	i := 0
	for v := range img.Config.Volumes {
		dst := filepath.Clean("/" + v)
		if mounted[dst] || dst == "/" {
			continue
		}
		dir := filepath.Join(c.volumeDir(u.id), strconv.Itoa(i))
		i++
		if err := os.MkdirAll(c.volumeDir(u.id), 0o711); err != nil {
			return nil, fmt.Errorf("make image volume %s: %w", v, err)
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make image volume %s: %w", v, err)
		}
		if err := c.images.CopyOut(ctx, img, dst, dir); err != nil {
			return nil, fmt.Errorf("make image volume %s: %w", v, err)
		}
		volumes[dst] = dir
	}
	return volumes, nil
}

// maxSeccomp bounds a profile's size, in bytes.
const maxSeccomp = 4 << 20

func loadSeccomp(path string) (*specs.LinuxSeccomp, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("path is not absolute: %w", errdefs.ErrInvalidArgument)
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	if st.Size() > maxSeccomp || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("no regular file of at most %d bytes: %w", maxSeccomp, errdefs.ErrInvalidArgument)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var s specs.LinuxSeccomp
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return &s, nil
}

// hostDevices resolves a device node, or the nodes in a directory.
func hostDevices(path string) ([]spec.Device, error) {
	node, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	var found []spec.Device
	err = filepath.WalkDir(node, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d, ok := spec.DeviceAt(p); ok {
			d.Path = path + p[len(node):]
			found = append(found, d)
		}
		return nil
	})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%s is no device: %w", path, errdefs.ErrInvalidArgument)
	}
	return found, err
}
