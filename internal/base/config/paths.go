// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Characters of a path that are special to programs that are given the path and that cannot be
// escaped on every version that berth works with.
const (
	overlaid = `:,\` // between and within the options of the mount of layers
	listed   = ":"   // between the directories of PATH and CNI_PATH
	message  = ","   // between the namespaces of which runc tells its first process
	inURL    = "%?#" // within the URL by which the clients of gRPC and the kubelet name a socket
)

// setPath is a path that is a setting.
type setPath struct {
	key, path string
	refused   string // characters that the path must not have
}

// paths returns the settings that are paths. One that is "" and may be is not among them.
func (c *Config) paths() []setPath {
	all := []setPath{
		{"root", c.Root, overlaid + "%"},
		{"state", c.State, message + inURL},
		{"address", c.Address, inURL},
		{"network.conf_dir", c.Network.ConfDir, ""},
		{"network.netns_dir", c.Network.NetNSDir, message},
	}
	for _, p := range []setPath{
		{"libexec", c.Libexec, listed},
		{"streams.socket", c.Streams.Socket, ""},
		{"debug.socket", c.Debug.Socket, ""},
		{"api.read_socket", c.API.ReadSocket, ""},
		{"streams.cert_file", c.Streams.CertFile, ""},
		{"streams.key_file", c.Streams.KeyFile, ""},
		{"streams.client_ca_file", c.Streams.ClientCA, ""},
		{"pod.rdt_file", c.Pod.RDTFile, ""},
		{"pod.blockio_file", c.Pod.BlockIOFile, ""},
		{"image.registry_dir", c.Image.RegistryDir, ""},
		{"image.decryption_keys_dir", c.Image.DecryptionKeysDir, ""},
		{"image.preload_dir", c.Image.PreloadDir, ""},
		{"image.policy_file", c.Image.PolicyFile, ""},
		{"audit.file", c.Audit.File, ""},
		{"audit.sessions", c.Audit.Sessions, ""},
		{"containerd.address", strings.TrimPrefix(c.Containerd.Address, "unix://"), inURL},
	} {
		if p.path != "" {
			all = append(all, p)
		}
	}
	for i, d := range c.Network.BinDirs {
		if d != "" {
			all = append(all, setPath{fmt.Sprintf("network.bin_dirs[%d]", i), d, listed})
		}
	}
	for i, d := range c.CDI.SpecDirs {
		all = append(all, setPath{fmt.Sprintf("cdi.spec_dirs[%d]", i), d, ""})
	}
	return all
}

// check reports a path that cannot work. A character that means something else to a program that is
// given the path would be seen much later, as a layer, a program or a socket that is missing.
func (p setPath) check(bad func(key, format string, args ...any)) {
	if !filepath.IsAbs(p.path) {
		bad(p.key, "%q is not an absolute path", p.path)
	}
	if !utf8.ValidString(p.path) {
		bad(p.key, "%q is not UTF-8, and a message to containerd has to be; choose another path", p.path)
	}
	for _, r := range p.path {
		if unicode.IsControl(r) || strings.ContainsRune(p.refused, r) {
			bad(p.key, "%q has the character %q, which programs that are given the path take for "+
				"something else; choose another path", p.path, r)
			return
		}
	}
}
