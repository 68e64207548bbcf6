// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// kind is one of the daemons that are compared.
type kind struct {
	name string
	// shim is a part of the command lines of the processes between the daemon and its containers.
	shim string
	// prepare writes the daemon's configuration below n.dir and returns its command line. It may add
	// to n.env.
	prepare  func(n *node) ([]string, error)
	settings []string // as KEY=VALUE
	monitor  string   // which version of conmon it has; "" for those without
}

// kinds are compared always. The first is berth.
var kinds = []kind{
	{name: "berth", shim: "containerd-shim", prepare: prepareBerth},
	{name: "containerd", shim: "containerd-shim", prepare: prepareContainerd},
}

// crio is compared only where it is asked for, because this module does not build it.
var crio = kind{name: "crio", shim: "conmon", prepare: prepareCRIO}

// compared returns the daemons to compare: those of this module, and another one if requested. If
// programs of that one are not in PATH, the error names them. berth runs with the setting, which is
// KEY=VALUE, or with "" as it ships.
func compared(other, setting string) ([]kind, error) {
	all := slices.Clone(kinds)
	if setting != "" {
		all[0] = with(all[0], setting)
	}
	switch other {
	case "":
		return all, nil
	case crio.name:
	default:
		return nil, fmt.Errorf("-with %s: the bench knows -with %s alone", other, crio.name)
	}
	var missing []error
	for _, program := range []string{"crio", "conmon", "pinns"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, err)
		}
	}
	if err := errors.Join(missing...); err != nil {
		return nil, fmt.Errorf("-with %s: %w", other, err)
	}
	k := crio
	v, err := exec.Command("conmon", "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("ask conmon for its version: %w", err)
	}
	k.monitor, _, _ = strings.Cut(string(v), "\n")
	return append(all, k), nil
}

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

// prepareCRIO configures CRI-O as its authors ship it, with the crio, conmon and pinns of PATH.
// Beside paths that is: the runc of this module, as the other daemons have it; cgroupfs, which they
// use here as well; and the events of pods, which CRI-O leaves off unless it is told.
func prepareCRIO(n *node) ([]string, error) {
	n.socket = n.dir + "/crio.sock"
	programs := map[string]string{"crio": "", "conmon": "", "pinns": ""}
	for p := range programs {
		found, err := exec.LookPath(p)
		if err == nil {
			found, err = filepath.Abs(found)
		}
		if err != nil {
			return nil, err
		}
		programs[p] = found
	}
	runc := func(name, binary string) string {
		return fmt.Sprintf("[crio.runtime.runtimes.%s]\nruntime_path = %q\nruntime_root = %q\nmonitor_path = %q\n", name, binary, n.dir+"/runc", programs["conmon"])
	}
	cfg := fmt.Sprintf("[crio]\nroot = %q\nrunroot = %q\nlog_dir = %q\nversion_file = %q\nversion_file_persist = %q\nclean_shutdown_file = %q\nstorage_driver = 'overlay'\n",
		n.dir+"/lib", n.dir+"/run/storage", n.dir+"/logs", n.dir+"/run/version", n.dir+"/version", n.dir+"/clean.shutdown") +
		fmt.Sprintf("[crio.api]\nlisten = %q\n", n.socket) +
		fmt.Sprintf("[crio.runtime]\ndefault_runtime = 'runc'\ncgroup_manager = 'cgroupfs'\nenable_pod_events = true\npinns_path = %q\n", programs["pinns"]) +
		fmt.Sprintf("container_exits_dir = %q\ncontainer_attach_socket_dir = %q\nnamespaces_dir = %q\n", n.dir+"/run/exits", n.dir+"/a", n.dir+"/ns") +
		fmt.Sprintf("decryption_keys_path = %q\nirqbalance_config_restore_file = 'disable'\n", n.dir+"/keys") +
		runc("runc", n.build+"/libexec/runc") + runc("hanging", n.dir+"/hanging-runc") +
		fmt.Sprintf("[crio.image]\npause_image = %q\nsignature_policy = %q\nsignature_policy_dir = %q\nnamespaced_auth_dir = %q\n",
			pauseImage, n.dir+"/policy.json", n.dir+"/policies", n.dir+"/auth") +
		fmt.Sprintf("[crio.network]\nnetwork_dir = %q\nplugin_dirs = [%q]\n", n.dir+"/net.d", n.build+"/cni") +
		fmt.Sprintf("[crio.nri]\nnri_listen = %q\nnri_plugin_dir = %q\nnri_plugin_config_dir = %q\n", n.dir+"/nri.sock", n.dir+"/nri", n.dir+"/nri.d")
	n.env = append(n.env, "CONTAINERS_STORAGE_CONF="+os.DevNull, "CONTAINER_REGISTRIES_CONF="+n.dir+"/registries.conf", "CONTAINER_REGISTRIES_CONF_DIR="+n.dir+"/registries.d")
	path := filepath.Join(n.dir, "crio.conf")
	return []string{programs["crio"], "--config", path, "--config-dir", n.dir + "/crio.d"}, errors.Join(
		os.WriteFile(path, []byte(cfg), 0o600),
		os.WriteFile(n.dir+"/policy.json", []byte(`{"default": [{"type": "insecureAcceptAnything"}]}`), 0o600),
		os.WriteFile(n.dir+"/registries.conf", fmt.Appendf(nil, "[[registry]]\nprefix = %q\nlocation = %q\ninsecure = true\n", imageHost, n.registry), 0o600))
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

// hangingRunc returns an OCI runtime: runc behind a shell script, which costs all daemons the
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
