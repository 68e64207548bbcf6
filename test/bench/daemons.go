// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// kind is one of the two daemons that are compared.
type kind struct {
	name string
	// prepare writes the daemon's configuration below n.dir and returns its command line.
	prepare  func(n *node) ([]string, error)
	settings []string // as KEY=VALUE
}

var kinds = []kind{{name: "berth", prepare: prepareBerth}, {name: "containerd", prepare: prepareContainerd}}

// prepareBerth configures berth as it ships, with containerd inside. Only paths differ from the
// defaults.
func prepareBerth(n *node) ([]string, error) {
	n.socket = n.dir + "/cri.sock"
	runc := func(name, binary string) string {
		return fmt.Sprintf("[runtimes.%s]\ntype = 'io.containerd.runc.v2'\nbinary = %q\nroot = %q\nhost_process = true\n", name, binary, n.dir+"/runc")
	}
	cfg := fmt.Sprintf("root = %q\nstate = %q\naddress = %q\nlibexec = %q\n", n.dir+"/lib", n.dir+"/run", n.socket, n.build+"/libexec") +
		"[containerd]\nlink = ''\n" + fmt.Sprintf("[network]\nconf_dir = %q\nbin_dirs = [%q]\nnetns_dir = %q\n", n.dir+"/net.d", n.build+"/cni", n.dir+"/netns") +
		fmt.Sprintf("[image]\nregistry_dir = %q\n", n.dir+"/certs.d") +
		runc("runc", n.build+"/libexec/runc") + runc("hanging", n.dir+"/hanging-runc")
	path := filepath.Join(n.dir, "config.toml")
	return []string{n.build + "/bin/berth", "serve", "--config", path}, os.WriteFile(path, []byte(cfg), 0o600)
}

// prepareContainerd configures containerd with its CRI plug-in as its authors ship it (`containerd
// config default`). Only paths differ and, where this process may not lower oom_score_adj, the
// setting that pods start without that.
func prepareContainerd(n *node) ([]string, error) {
	n.socket = n.dir + "/run/containerd.sock"
	restrict, err := lacksSysResource()
	if err != nil {
		return nil, err
	}
	runc := func(name, binary string) string {
		table := "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes." + name + "]\n"
		return table + "runtime_type = 'io.containerd.runc.v2'\nsandboxer = 'podsandbox'\n" +
			strings.Replace(table, "]", ".options]", 1) + fmt.Sprintf("BinaryName = %q\nRoot = %q\n", binary, n.dir+"/runc")
	}
	cfg := fmt.Sprintf("version = 4\nroot = %q\nstate = %q\ntemp = %q\n", n.dir+"/lib", n.dir+"/run", n.dir+"/tmp") +
		"[plugins.'io.containerd.server.v1.grpc']\n" + fmt.Sprintf("address = %q\n", n.socket) +
		"[plugins.'io.containerd.server.v1.ttrpc']\n" + fmt.Sprintf("address = %q\n", n.socket+".ttrpc") +
		"[plugins.'io.containerd.shim.v1.manager']\n" + fmt.Sprintf("socket_dir = %q\n", n.dir+"/s") +
		"[plugins.'io.containerd.internal.v1.opt']\n" + fmt.Sprintf("path = %q\n", n.dir+"/opt") +
		"[plugins.'io.containerd.nri.v1.nri']\n" + fmt.Sprintf("socket_path = %q\nplugin_path = %q\nplugin_config_path = %q\n", n.dir+"/nri.sock", n.dir+"/nri", n.dir+"/nri.d") +
		"[plugins.'io.containerd.cri.v1.images'.pinned_images]\n" + fmt.Sprintf("sandbox = %q\n", pauseImage) +
		"[plugins.'io.containerd.cri.v1.images'.registry]\n" + fmt.Sprintf("config_path = %q\n", n.dir+"/certs.d") +
		"[plugins.'io.containerd.cri.v1.runtime']\n" + fmt.Sprintf("restrict_oom_score_adj = %t\nnetns_mounts_under_state_dir = true\n", restrict) +
		"[plugins.'io.containerd.cri.v1.runtime'.cni]\n" + fmt.Sprintf("bin_dirs = [%q]\nconf_dir = %q\n", n.build+"/cni", n.dir+"/net.d") +
		runc("runc", n.build+"/libexec/runc") + runc("hanging", n.dir+"/hanging-runc")
	path := filepath.Join(n.dir, "containerd.toml")
	return []string{n.build + "/libexec/containerd", "--config", path}, os.WriteFile(path, []byte(cfg), 0o600)
}

// lacksSysResource reports whether this process lacks CAP_SYS_RESOURCE, as root in a container
// often does.
func lacksSysResource() (bool, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(b)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			var caps uint64
			if _, err := fmt.Sscanf(strings.TrimSpace(hex), "%x", &caps); err != nil {
				return false, fmt.Errorf("read capabilities %q: %w", line, err)
			}
			const sysResource = 24 // capabilities(7)
			return caps&(1<<sysResource) == 0, nil
		}
	}
	return false, fmt.Errorf("no CapEff in /proc/self/status")
}

// hangingRunc returns an OCI runtime: runc behind a shell script, which costs both daemons the
// same. Its delete of a container hangs for 30 s while the directory hang has a FIFO with the
// container's ID. It stands for an unmount on a disk that does not answer.
func hangingRunc(n *node) string {
	return fmt.Sprintf(`#!/bin/sh
for id; do :; done
case " $* " in
*" delete "*)
	if [ -p %[1]s/"$id" ]; then
		# Opening it waits until somebody opens the other end, without using the processor.
		timeout -s KILL 30 cat %[1]s/"$id"
	fi ;;
esac
exec %[2]s "$@"
`, n.dir+"/hang", n.build+"/libexec/runc")
}
