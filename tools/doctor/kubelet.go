// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"path"
	"strings"

	"sigs.k8s.io/yaml"
)

// kubeletConf is the used part of the kubelet's configuration.
type kubeletConf struct {
	ContainerRuntimeEndpoint string `json:"containerRuntimeEndpoint"`
	CgroupDriver             string `json:"cgroupDriver"`
	FailSwapOn               *bool  `json:"failSwapOn"`
}

// kubelet reads the kubelet's configuration. ok is false if there is none; wrong is the reason if
// it cannot be parsed.
func (m *machine) kubelet() (c kubeletConf, ok bool, wrong string, err error) {
	text, err := m.read(m.KubeletConfig)
	if absent(err) {
		return c, false, "", nil
	}
	if err != nil {
		return c, false, "", err
	}
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		return c, true, err.Error(), nil
	}
	return c, true, "", nil
}

// kubeadmFlags are where kubeadm keeps flags of the kubelet, which take precedence over the file.
const kubeadmFlags = "/var/lib/kubelet/kubeadm-flags.env"

// flag returns the value of a flag of the kubelet's; "" if kubeadm has not set it.
func (m *machine) flag(name string) (string, error) {
	text, err := m.read(kubeadmFlags)
	if err != nil {
		if absent(err) {
			return "", nil
		}
		return "", err
	}
	for _, w := range strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '"' || r == '\n' || r == '\'' }) {
		if _, v, ok := strings.Cut(w, "--"+name+"="); ok {
			return v, nil
		}
	}
	return "", nil
}

func askKubelet(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	c, ok, wrong, err := m.kubelet()
	if err != nil {
		return nil, err
	}
	if !ok {
		program, err := m.which("kubelet", searchPath...)
		if program != "" {
			return nil, fmt.Errorf("there is a kubelet, %s, and no file %s; name the one it reads with --kubelet-config", program, m.KubeletConfig)
		}
		if err != nil {
			return nil, err
		}
		return nil, errNothing("there is no kubelet")
	}
	if wrong != "" {
		f.add(Error, "correct it", "%s cannot be read as the kubelet's configuration: %s", m.KubeletConfig, wrong)
		return f.result()
	}
	endpoint, where := c.ContainerRuntimeEndpoint, m.KubeletConfig
	flag, err := m.flag("container-runtime-endpoint")
	f.unasked(err)
	if flag != "" {
		endpoint, where = flag, kubeadmFlags
	}
	want := "unix://" + m.cfg.Address
	switch {
	case err != nil:
	case endpoint == "":
		f.add(Error, "put containerRuntimeEndpoint: "+want+" into "+where+", and restart the kubelet",
			"%s names no containerRuntimeEndpoint: the kubelet uses containerd, or does not start", where)
	case !sameSocket(endpoint, m.cfg.Address):
		f.add(Error, "set it to "+want+", and restart the kubelet; docs/migrate.md says how pods are moved",
			"the kubelet's runtime is %s, by %s, and not berth on %s", endpoint, where, m.cfg.Address)
	}
	driver := c.CgroupDriver
	if driver == "" {
		driver = "cgroupfs" // the kubelet's default
	}
	own := "cgroupfs"
	handler := m.cfg.DefaultRuntime
	if m.cfg.Runtimes[handler].SystemdCgroup {
		own = "systemd"
	}
	if driver != own {
		f.add(Error, fmt.Sprintf("set cgroupDriver: %s in %s, or runtimes.%s.systemd_cgroup to %v, and restart both", own, m.KubeletConfig, handler, driver == "systemd"),
			"the kubelet's cgroup driver is %s and berth's is %s: limits of pods do not hold, or pods do not start", driver, own)
	}
	return f.result()
}

// sameSocket reports whether an endpoint is a socket. /var/run is /run.
func sameSocket(endpoint, socket string) bool {
	clean := func(s string) string {
		s = path.Clean(strings.TrimPrefix(s, "unix://"))
		if rest, ok := strings.CutPrefix(s, "/var/run/"); ok {
			return "/run/" + rest
		}
		return s
	}
	return clean(endpoint) == clean(socket)
}

func askSwap(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	c, ok, wrong, err := m.kubelet()
	if err != nil {
		return nil, err
	}
	if !ok || wrong != "" {
		return nil, errNothing("there is no configuration of a kubelet")
	}
	text, err := m.read("/proc/swaps")
	if absent(err) {
		return nil, errNothing("the kernel has no swap")
	}
	if err != nil {
		return nil, err
	}
	lines := strings.Split(text, "\n")
	if fails := c.FailSwapOn == nil || *c.FailSwapOn; fails && len(lines) > 1 {
		device, _, _ := strings.Cut(lines[1], " ")
		device, _, _ = strings.Cut(device, "\t")
		f.add(Error, "run swapoff -a and take swap from /etc/fstab, or set failSwapOn: false in "+m.KubeletConfig,
			"swap is on (%s), and the kubelet refuses to start with it", device)
	}
	return f.result()
}
