// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/pidfd"
)

// pidfdWorks opens and closes a pidfd of this process.
func pidfdWorks() error {
	fd, err := pidfd.Open(os.Getpid())
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// release reads the version of the kernel, and its numbers.
func (m *machine) release() (text string, major, minor int, err error) {
	if text, err = m.read("/proc/sys/kernel/osrelease"); err != nil {
		return "", 0, 0, err
	}
	if _, err := fmt.Sscanf(text, "%d.%d", &major, &minor); err != nil {
		return text, 0, 0, fmt.Errorf("the kernel's version %q has no numbers", text)
	}
	return text, major, minor, nil
}

func askKernel(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	text, major, minor, err := m.release()
	before := func(a, b int) bool { return major < a || major == a && minor < b }
	switch {
	case err != nil:
		f.unasked(err)
	case before(5, 6):
		f.add(Error, "boot Linux 5.6 or newer", "the kernel is Linux %s: berth needs 5.6", text)
	case before(6, 15):
		f.add(Note, "boot Linux 6.15 or newer if that matters",
			"the kernel is Linux %s, which does not report exit codes: the code of a container whose shim is dead is not known", text)
	}
	if err := m.Pidfd(); errors.Is(err, unix.ENOSYS) {
		f.add(Error, "boot Linux 5.6 or newer, or allow pidfd_open where a seccomp filter stands around berth", "the kernel has no pidfds: berth cannot see how containers end")
	} else if err != nil {
		f.unasked(fmt.Errorf("open a pidfd: %w", err))
	}
	m.askOverlay(&f, text)
	if n, err := m.number("/proc/sys/user/max_user_namespaces"); absent(err) || err == nil && n == 0 {
		f.add(Warning, "set the sysctl user.max_user_namespaces, to 100000 for instance", "user namespaces are off: pods with hostUsers: false are refused")
	} else {
		f.unasked(err)
	}
	if _, err := m.read("/proc/sys/kernel/seccomp/actions_avail"); absent(err) {
		f.add(Error, "boot a kernel with CONFIG_SECCOMP_FILTER", "the kernel has no seccomp filters: containers with a profile do not start, and RuntimeDefault is one")
	} else {
		f.unasked(err)
	}
	return f.result()
}

// askOverlay finds out whether the kernel has overlayfs, or a module for it that is loaded on
// demand.
func (m *machine) askOverlay(f *findings, release string) {
	if m.cfg.Containerd.Snapshotter != "overlayfs" {
		return
	}
	known, err := m.read("/proc/filesystems")
	if err != nil {
		f.unasked(err)
		return
	}
	if slices.Contains(strings.Fields(known), "overlay") {
		return
	}
	modules, err := m.read(filepath.Join("/lib/modules", release, "modules.dep"))
	if err != nil && !absent(err) {
		f.unasked(err)
		return
	}
	if !strings.Contains(modules, "/overlay.ko") {
		f.add(Error, "install the kernel's modules, or set containerd.snapshotter to native", "the kernel has no overlayfs, which the snapshotter needs: no container can be made")
	}
}

func askSecurityModules(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	enabled, err := m.read("/sys/module/apparmor/parameters/enabled")
	if err != nil && !absent(err) {
		f.unasked(err)
	}
	if enabled == "Y" {
		p, err := m.which("apparmor_parser", searchPath...)
		f.unasked(err)
		if p == "" && err == nil {
			f.add(Error, "install apparmor_parser (Debian's package apparmor)",
				"AppArmor is on, and apparmor_parser is missing: containers that do not ask for another profile are refused")
		}
	}
	enforces, err := m.read("/sys/fs/selinux/enforce")
	if err != nil && !absent(err) {
		f.unasked(err)
	}
	if enforces == "1" {
		m.askSELinux(&f)
	}
	return f.result()
}

// askSELinux looks whether the policy has types for containers.
func (m *machine) askSELinux(f *findings) {
	conf, err := m.read("/etc/selinux/config")
	if err != nil {
		f.unasked(err)
		return
	}
	for line := range strings.Lines(conf) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "SELINUXTYPE=")
		if !ok {
			continue
		}
		contexts := filepath.Join("/etc/selinux", strings.TrimSpace(name), "contexts/lxc_contexts")
		if there, err := m.exists(contexts); err != nil {
			f.unasked(err)
		} else if !there {
			f.add(Error, "install the policy for containers (the package container-selinux)",
				"SELinux enforces a policy without types for containers: there is no %s", contexts)
		}
	}
}

func askClock(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	const run = "run chrony or systemd-timesyncd"
	ok, err := m.Synchronised()
	f.unasked(err)
	if err == nil && !ok {
		f.add(Warning, run, "the clock is not synchronised: certificates and the times in logs and statuses cannot be relied on")
	}
	if now := m.Now(); now.Before(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)) {
		f.add(Error, "set the clock, and "+run, "the clock says %s, which is in the past: certificates of registries are refused", now.UTC().Format(time.DateOnly))
	}
	return f.result()
}

func askLimits(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	for _, l := range []struct {
		sysctl string
		least  int64
		what   string
	}{
		{"kernel.pid_max", 65536, "a node full of pods runs out of process IDs"},
		{"fs.inotify.max_user_instances", 512, "programs in pods, and the kubelet, run out of watches: too many open files"},
		{"fs.inotify.max_user_watches", 65536, "programs in pods, and the kubelet, run out of watches: no space left on device"},
		{"fs.file-max", 100000, "the node runs out of open files"},
	} {
		n, err := m.number("/proc/sys/" + strings.ReplaceAll(l.sysctl, ".", "/"))
		f.unasked(err)
		if err == nil && n < l.least {
			f.add(Warning, fmt.Sprintf("set %s in /etc/sysctl.d, to %d at least, and run sysctl --system", l.sysctl, l.least), "%s is %d: %s", l.sysctl, n, l.what)
		}
	}
	return f.result()
}

func askForwarding(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	if text, err := m.read("/proc/sys/net/ipv4/ip_forward"); err != nil {
		f.unasked(err)
	} else if text == "0" {
		f.add(Error, "set the sysctl net.ipv4.ip_forward to 1, and keep it in /etc/sysctl.d", "the kernel forwards no packets: pods reach nothing but this node")
	}
	bridged, err := m.bridged()
	f.unasked(err)
	if !bridged {
		return f.result()
	}
	const do = "load br_netfilter (modprobe br_netfilter, and a line in /etc/modules-load.d), and set net.bridge.bridge-nf-call-iptables to 1"
	switch text, err := m.read("/proc/sys/net/bridge/bridge-nf-call-iptables"); {
	case absent(err):
		f.add(Warning, do, "br_netfilter is not loaded: services do not work between pods that share the bridge")
	case err != nil:
		f.unasked(err)
	case text == "0":
		f.add(Warning, do, "net.bridge.bridge-nf-call-iptables is 0: services do not work between pods that share the bridge")
	}
	return f.result()
}
