// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestTheWrittenDefaultsAreTheDefaults(t *testing.T) {
	var b bytes.Buffer
	if err := WriteDefault(&b); err != nil {
		t.Fatal(err)
	}
	got, err := Parse(b.Bytes())
	if err != nil {
		t.Fatalf("%v in\n%s", err, b.String())
	}
	if !reflect.DeepEqual(got, Default()) {
		t.Fatalf("got %+v", got)
	}
	if err := got.Check(); err != nil {
		t.Fatal(err)
	}
	d := Default()
	for _, k := range d.keys() {
		leaf := k[strings.LastIndex(k, ".")+1:]
		if !strings.Contains(b.String(), leaf) {
			t.Errorf("%s is not written", k)
		}
	}
}

func TestAnUnknownKeyIsNamedWithTheNearest(t *testing.T) {
	for in, want := range map[string][]string{
		"roott = '/x'":                   {"line 1", "roott", `"root"`},
		"\n[network]\ncnf_dir = '/x'":    {"line 3", "network.cnf_dir", `"network.conf_dir"`},
		"[runtimes.runc]\ntipe = 'x'":    {"tipe", `"runtimes.runc.type"`},
		"[lanes]\nbackof_max = '1s'\n#x": {"line 2", `"lanes.backoff_max"`},
	} {
		_, err := Parse([]byte(in))
		if err == nil {
			t.Errorf("%q was taken", in)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: %q does not say %s", in, err, w)
			}
		}
	}
}

func TestSet(t *testing.T) {
	c := Default()
	for k, v := range map[string]string{
		"root": "/x", "lanes.backoff_max": "3s", "network.use_default": "false", "network.bin_dirs": `["/a", "/b"]`, "logs.max_line": "1024", "runtimes.runc.binary": "/runc",
	} {
		if err := c.Set(k, v); err != nil {
			t.Fatal(err)
		}
	}
	if c.Root != "/x" || c.Lanes.BackoffMax != Duration(3*time.Second) || c.Network.UseDefault || len(c.Network.BinDirs) != 2 || c.Logs.MaxLine != 1024 ||
		c.Runtimes["runc"].Binary != "/runc" || c.Runtimes["runc"].Type == "" || !c.Runtimes["runc"].HostProcess {
		t.Fatalf("%+v", c)
	}
	for _, k := range []string{"roott", "lanes.x", ""} {
		if err := c.Set(k, "1"); err == nil {
			t.Errorf("%q was set", k)
		}
	}
	if err := c.Set("logs.max_line", "many"); err == nil {
		t.Error("a word is not a number")
	}
}

func TestCheckFindsWhatCannotWork(t *testing.T) {
	for key, edit := range map[string]func(*Config){
		"root":                   func(c *Config) { c.Root = "x" },
		"state":                  func(c *Config) { c.State = c.Root },
		`root: "/a:b"`:           func(c *Config) { c.Root = "/a:b" },
		`root: "/a,b"`:           func(c *Config) { c.Root = "/a,b" },
		`root: "/a%b"`:           func(c *Config) { c.Root = "/a%b" },
		`the character '\\'`:     func(c *Config) { c.Root = `/a\b` },
		`the character '\n'`:     func(c *Config) { c.Image.PreloadDir = "/a\nb" },
		`"/a\xffb" is not UTF-8`: func(c *Config) { c.CDI.SpecDirs = []string{"/a\xffb"} },
		`state: "/a%41"`:         func(c *Config) { c.State = "/a%41" },
		`state: "/a,b"`:          func(c *Config) { c.State = "/a,b" },
		`address: "/a#b"`:        func(c *Config) { c.Address = "/a#b" },
		`libexec: "/a:b"`:        func(c *Config) { c.Libexec = "/a:b" },
		`netns_dir: "/a,b"`:      func(c *Config) { c.Network.NetNSDir = "/a,b" },
		`bin_dirs[0]: "/a:b"`:    func(c *Config) { c.Network.BinDirs = []string{"/a:b"} },
		"address":                func(c *Config) { c.Address = "/" + strings.Repeat("a", 107) },
		"libexec":                func(c *Config) { c.Libexec = "x" },
		"network.bin_dirs[1]":    func(c *Config) { c.Network.BinDirs = []string{"/x", "y"} },
		"cdi.spec_dirs[0]":       func(c *Config) { c.CDI.SpecDirs = []string{"x"} },
		"containerd.address":     func(c *Config) { c.Containerd.Address = "tcp://x" },
		`"unix://" names`:        func(c *Config) { c.Containerd.Address = "unix://" },
		"tracing.endpoint":       func(c *Config) { c.Tracing.Endpoint = "http://:4317" },
		"metrics.address":        func(c *Config) { c.Metrics.Address = "9440" },
		"log.level":              func(c *Config) { c.Log.Level = "loud" },
		"network.default_subnet": func(c *Config) { c.Network.DefaultSubnet = "10.0.0.0" },
		"network.default_bridge": func(c *Config) { c.Network.DefaultBridge = "a-much-too-long-name" },
		"lanes.backoff_max":      func(c *Config) { c.Lanes.BackoffMax = 0 },
		"pod.pause":              func(c *Config) { c.Pod.Pause = "never" },
		"default_runtime":        func(c *Config) { c.DefaultRuntime = "kata" },
		"runtimes.runc.type":     func(c *Config) { c.Runtimes["runc"] = Runtime{} },
		"snapshotters.a.address": func(c *Config) { c.Snapshotters = map[string]Snapshotter{"a": {Address: "x"}} },
		"is built in": func(c *Config) {
			c.Snapshotters = map[string]Snapshotter{"overlayfs": {Address: "/x"}}
		},
		"its own snapshotters": func(c *Config) {
			c.Containerd.Address, c.Snapshotters = "/c", map[string]Snapshotter{"a": {Address: "/x"}}
		},
		"logs.max_line":        func(c *Config) { c.Logs.MaxLine = 1 },
		"streams.socket: 108":  func(c *Config) { c.Streams.Socket = "/" + strings.Repeat("a", 107) },
		"debug.socket: 108":    func(c *Config) { c.Debug.Socket = "/" + strings.Repeat("a", 107) },
		"api.read_socket: 108": func(c *Config) { c.API.ReadSocket = "/" + strings.Repeat("a", 107) },
		"api.read_group":       func(c *Config) { c.API.ReadGroup = "adm" },
		"streams.socket: \"a":  func(c *Config) { c.Streams.Socket = "a" },
		"streams.address: \"a": func(c *Config) { c.Streams.Address = "a" },
		"open to other hosts":  func(c *Config) { c.Streams.Address = "10.0.0.5:1" },
		"can connect to":       func(c *Config) { c.Streams.Address = "0.0.0.0:1" },
		"image.preload_dir":    func(c *Config) { c.Image.PreloadDir = "x" },
		"image.policy_file":    func(c *Config) { c.Image.PolicyFile = "x" },
		"image.policy_failure": func(c *Config) { c.Image.PolicyFailure = "ajar" },
		"image.pinned[3]": func(c *Config) {
			c.Image.Pinned = []string{"app", "*/x", "sha256:" + strings.Repeat("a", 64), "Not One"}
		},
		"streams.cert_file":                                   func(c *Config) { c.Streams.KeyFile = "/key" },
		"image.peer.address":                                  func(c *Config) { c.Image.Peer.Address = "node:1" },
		"image.peer.hosts[1]":                                 func(c *Config) { c.Image.Peer.Hosts = []string{"peers.example:5443", "peers.example"} },
		"image.peer.dns":                                      func(c *Config) { c.Image.Peer.Hosts, c.Image.Peer.DNS = []string{"a:1"}, "dns" },
		"image.peer.ca_file":                                  func(c *Config) { c.Image.Peer.Address = "0.0.0.0:5443" },
		"image.peer.key_file":                                 func(c *Config) { c.Image.Peer.Address, c.Image.Peer.KeyFile = "0.0.0.0:5443", "key" },
		"cri.runtime_name":                                    func(c *Config) { c.CRI.RuntimeName = "cri-o://" },
		"cri.sockets[0]: \"a\"":                               func(c *Config) { c.CRI.Sockets = []string{"a"} },
		"cri.sockets[1]: /a is in the list twice":             func(c *Config) { c.CRI.Sockets = []string{"/a", "/a"} },
		"cri.sockets[0]: /run/berth/berth.sock":               func(c *Config) { c.CRI.Sockets = []string{c.Address} },
		"cri.sockets[0]: 108 bytes":                           func(c *Config) { c.CRI.Sockets = []string{"/" + strings.Repeat("a", 107)} },
		"cri.sockets[0]: /c.sock is the socket of containerd": func(c *Config) { c.CRI.Sockets, c.Containerd.Address = []string{"/c.sock"}, "unix:///c.sock" },
		"/run/containerd/containerd.sock is containerd.link":  func(c *Config) { c.CRI.Sockets = []string{"/run/containerd/containerd.sock"} },
		"streams.key_file":                                    func(c *Config) { c.Streams.CertFile, c.Streams.KeyFile = "/cert", "key" },
	} {
		c := Default()
		edit(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: got %v", key, err)
		}
	}
}
