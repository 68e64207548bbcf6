// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
)

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
