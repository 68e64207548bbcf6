// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

// Config is every setting. Fields without a doc tag are tables.
type Config struct {
	Root           string             `toml:"root" doc:"Directory of what has to survive a reboot: records, images, writable layers."`
	State          string             `toml:"state" doc:"Directory of what has not: sockets, FIFOs, pods' shared files. Keep it short: sockets live below it."`
	Address        string             `toml:"address" doc:"Unix socket on which CRI is served, mode 0600."`
	Libexec        string             `toml:"libexec" doc:"Directory of the shim, runc and the pause program. Empty: libexec/berth or libexec beside the berth binary, then /usr/local/libexec/berth."`
	DefaultRuntime string             `toml:"default_runtime" doc:"Runtime handler of pods that name none."`
	Log            Log                `toml:"log"`
	Containerd     Containerd         `toml:"containerd"`
	Network        Network            `toml:"network"`
	Image          Image              `toml:"image"`
	Lanes          Lanes              `toml:"lanes"`
	Logs           Logs               `toml:"logs"`
	Streams        Streams            `toml:"streams"`
	Metrics        Metrics            `toml:"metrics"`
	Tracing        Tracing            `toml:"tracing"`
	Runtimes       map[string]Runtime `toml:"runtimes"`
}

// Log is berth's own log.
type Log struct {
	Level  string `toml:"level" doc:"debug, info, warn or error."`
	Format string `toml:"format" doc:"text or json."`
}

// Containerd is where containerd is.
type Containerd struct {
	Address     string `toml:"address" doc:"Socket of a containerd that runs already. Empty: containerd runs inside berth. One that runs already must not load its own CRI plug-in."`
	Snapshotter string `toml:"snapshotter" doc:"Snapshotter of images and writable layers."`
}

// Network is CNI.
type Network struct {
	ConfDir       string   `toml:"conf_dir" doc:"Directory of CNI configurations; the lexically first valid one is used, and changes are followed."`
	BinDirs       []string `toml:"bin_dirs" doc:"Directories of CNI plug-ins. The libexec directory's cni is looked through last."`
	NetNSDir      string   `toml:"netns_dir" doc:"Directory where network namespaces are pinned."`
	UseDefault    bool     `toml:"use_default" doc:"Where there is no CNI configuration, use a bridge of berth's own."`
	DefaultBridge string   `toml:"default_bridge" doc:"Name of that bridge."`
	DefaultSubnet string   `toml:"default_subnet" doc:"Its subnet."`
}

// Image is pulling.
type Image struct {
	RegistryDir            string   `toml:"registry_dir" doc:"Directory of registries' configurations (certs.d layout: HOST/hosts.toml). Empty: none."`
	PullTimeout            Duration `toml:"pull_timeout" doc:"A pull for which no byte comes for so long is given up."`
	MaxConcurrentDownloads int      `toml:"max_concurrent_downloads" doc:"Layers fetched at the same time, per image."`
}

// Lanes are the retries of settling and releasing.
type Lanes struct {
	AttemptTimeout Duration `toml:"attempt_timeout" doc:"Deadline of one attempt."`
	BackoffMin     Duration `toml:"backoff_min" doc:"Wait after the first failure; it doubles with each further one."`
	BackoffMax     Duration `toml:"backoff_max" doc:"Longest wait."`
}

// Logs are containers' logs.
type Logs struct {
	MaxLine int `toml:"max_line" doc:"Bytes of one line; longer ones are split into tagged parts."`
}

// Streams is the server of exec, attach and port-forward.
type Streams struct {
	Address  string `toml:"address" doc:"HOST:PORT to serve exec, attach and port-forward on; port 0 is one that is free. The kubelet connects to it. An address that is not of the loopback needs a certificate."`
	CertFile string `toml:"cert_file" doc:"File of the certificate, PEM. Empty: without TLS. It is read again for each connection."`
	KeyFile  string `toml:"key_file" doc:"File of the certificate's key, PEM."`
}

// Metrics is the Prometheus endpoint.
type Metrics struct {
	Address string `toml:"address" doc:"HOST:PORT to serve /metrics on. Empty: off."`
}

// Tracing is OpenTelemetry's.
type Tracing struct {
	Endpoint string  `toml:"endpoint" doc:"URL of an OTLP collector's gRPC endpoint, such as http://127.0.0.1:4317. Empty: off."`
	Sampling float64 `toml:"sampling" doc:"Part of the traces that berth begins itself that is kept: 0 to 1."`
}

// Runtime is one runtime handler.
type Runtime struct {
	Type                         string   `toml:"type" doc:"containerd runtime: a name such as io.containerd.runc.v2, or the path of a shim."`
	Binary                       string   `toml:"binary" doc:"Path of the OCI runtime. Empty: runc of the libexec directory (embedded), the shim's own default (external)."`
	Root                         string   `toml:"root" doc:"Directory of the OCI runtime's state. Empty: below state (embedded), the shim's own default (external)."`
	SystemdCgroup                bool     `toml:"systemd_cgroup" doc:"Let systemd make the cgroups. It must be what the kubelet does."`
	Sandboxer                    string   `toml:"sandboxer" doc:"Sandbox controller of containerd's that makes the pod sandboxes, for shims with a sandbox API. Empty: berth's own, a pause process."`
	HostProcess                  bool     `toml:"host_process" doc:"A container's init is a process of this host, so that the kernel can witness its end. False for VM runtimes."`
	PrivilegedWithoutHostDevices bool     `toml:"privileged_without_host_devices" doc:"Privileged containers do not get the host's devices."`
	PodAnnotations               []string `toml:"pod_annotations" doc:"Patterns of pod annotations that are passed to the OCI runtime."`
	ContainerAnnotations         []string `toml:"container_annotations" doc:"Patterns of container annotations that are passed to the OCI runtime."`
}

// Duration is a time.Duration written like 10s or 5m.
type Duration time.Duration

// MarshalText writes it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads it.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// Default is what holds where nothing is said.
func Default() Config {
	return Config{
		Root: "/var/lib/berth", State: "/run/berth", Address: "/run/berth/berth.sock", DefaultRuntime: "runc",
		Log: Log{"info", "text"}, Containerd: Containerd{"", "overlayfs"},
		Network: Network{"/etc/cni/net.d", []string{"/opt/cni/bin"}, "/run/netns", true, "berth0", "10.88.0.0/16"},
		Image:   Image{"", Duration(5 * time.Minute), 3},
		Lanes:   Lanes{Duration(10 * time.Second), Duration(time.Second), Duration(5 * time.Minute)},
		Logs:    Logs{16 << 10},
		Streams: Streams{Address: "127.0.0.1:0"},
		Tracing: Tracing{"", 1},
		Runtimes: map[string]Runtime{"runc": {
			Type: "io.containerd.runc.v2", HostProcess: true, PodAnnotations: []string{}, ContainerAnnotations: []string{},
		}},
	}
}

// Load reads a file over the defaults. A handler under [runtimes] replaces the one of the same name.
func Load(path string) (Config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	c, err := Parse(b)
	if err != nil {
		return Config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// Parse reads TOML over the defaults.
func Parse(b []byte) (Config, error) {
	c := Default()
	dec := toml.NewDecoder(bytes.NewReader(b)).DisallowUnknownFields()
	err := dec.Decode(&c)
	var strict *toml.StrictMissingError
	var bad *toml.DecodeError
	switch {
	case errors.As(err, &strict):
		var errs []error
		for _, e := range strict.Errors {
			row, _ := e.Position()
			errs = append(errs, unknown(strings.Join(e.Key(), "."), fmt.Sprintf("line %d: ", row)))
		}
		return Config{}, errors.Join(errs...)
	case errors.As(err, &bad):
		row, col := bad.Position()
		return Config{}, fmt.Errorf("line %d, column %d: %w: %w", row, col, err, errdefs.ErrInvalidArgument)
	case err != nil:
		return Config{}, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return c, nil
}

// Set changes one setting by its dotted name, as on the command line. The value is TOML; a plain word is a string.
func (c *Config) Set(key, value string) error {
	parts := strings.Split(key, ".")
	doc := func(v string) []byte {
		table, leaf := parts[:len(parts)-1], parts[len(parts)-1]
		if len(table) == 0 {
			return []byte(leaf + " = " + v)
		}
		return []byte("[" + strings.Join(table, ".") + "]\n" + leaf + " = " + v)
	}
	if !slices.Contains(c.keys(), key) {
		return unknown(key, "")
	}
	quoted, err := toml.Marshal(map[string]string{"v": value})
	if err != nil {
		return err
	}
	literal := strings.TrimSpace(strings.TrimPrefix(string(quoted), "v = "))
	next := c.clone()
	if toml.Unmarshal(doc(value), &next) != nil {
		next = c.clone()
		if err := toml.Unmarshal(doc(literal), &next); err != nil {
			return fmt.Errorf("set %s to %q: %w: %w", key, value, err, errdefs.ErrInvalidArgument)
		}
	}
	if len(parts) == 3 && parts[0] == "runtimes" { // a map's value is decoded anew: keep its other settings
		r := c.Runtimes[parts[1]]
		if err := set(&r, parts[2], doc, value, literal); err != nil {
			return fmt.Errorf("set %s to %q: %w: %w", key, value, err, errdefs.ErrInvalidArgument)
		}
		next.Runtimes[parts[1]] = r
	}
	*c = next
	return nil
}

func set(r *Runtime, leaf string, _ func(string) []byte, value, literal string) error {
	if toml.Unmarshal([]byte(leaf+" = "+value), r) == nil {
		return nil
	}
	return toml.Unmarshal([]byte(leaf+" = "+literal), r)
}

func (c *Config) clone() Config {
	next := *c
	next.Runtimes = map[string]Runtime{}
	for k, v := range c.Runtimes {
		next.Runtimes[k] = v
	}
	return next
}

// Check finds values that cannot work.
func (c *Config) Check() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s: %w", key, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument))
	}
	for _, p := range []struct{ key, v string }{
		{"root", c.Root}, {"state", c.State}, {"address", c.Address}, {"network.conf_dir", c.Network.ConfDir}, {"network.netns_dir", c.Network.NetNSDir},
	} {
		if !filepath.IsAbs(p.v) {
			bad(p.key, "%q is not an absolute path", p.v)
		}
	}
	optional := []struct{ key, v string }{
		{"libexec", c.Libexec}, {"streams.cert_file", c.Streams.CertFile}, {"streams.key_file", c.Streams.KeyFile}, {"image.registry_dir", c.Image.RegistryDir}, {"containerd.address", strings.TrimPrefix(c.Containerd.Address, "unix://")},
	}
	for i, d := range c.Network.BinDirs {
		optional = append(optional, struct{ key, v string }{fmt.Sprintf("network.bin_dirs[%d]", i), d})
	}
	for _, p := range optional {
		if p.v != "" && !filepath.IsAbs(p.v) {
			bad(p.key, "%q is not an absolute path", p.v)
		}
	}
	if s := c.Tracing.Sampling; s < 0 || s > 1 {
		bad("tracing.sampling", "%v is not between 0 and 1", s)
	}
	if e := c.Tracing.Endpoint; e != "" && !strings.HasPrefix(e, "http://") && !strings.HasPrefix(e, "https://") {
		bad("tracing.endpoint", "%q is not an http:// or https:// URL", e)
	}
	if c.Root == c.State {
		bad("state", "it is the same directory as root")
	}
	const maxSocket = 107 // sun_path of unix(7), less its zero
	if len(c.Address) > maxSocket {
		bad("address", "%d bytes are too many for a socket, %d are allowed", len(c.Address), maxSocket)
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		bad("log.level", "%q is not debug, info, warn or error", c.Log.Level)
	}
	if c.Log.Format != "text" && c.Log.Format != "json" {
		bad("log.format", "%q is not text or json", c.Log.Format)
	}
	if p, err := netip.ParsePrefix(c.Network.DefaultSubnet); c.Network.UseDefault && (err != nil || !p.Addr().Is4() || p.Bits() > 29) {
		bad("network.default_subnet", "%q is not an IPv4 subnet with room for pods", c.Network.DefaultSubnet)
	}
	if n := len(c.Network.DefaultBridge); c.Network.UseDefault && (n == 0 || n > 15) {
		bad("network.default_bridge", "%q cannot be the name of an interface", c.Network.DefaultBridge)
	}
	for _, d := range []struct {
		key string
		v   Duration
	}{
		{"image.pull_timeout", c.Image.PullTimeout}, {"lanes.attempt_timeout", c.Lanes.AttemptTimeout}, {"lanes.backoff_min", c.Lanes.BackoffMin}, {"lanes.backoff_max", c.Lanes.BackoffMax},
	} {
		if d.v <= 0 {
			bad(d.key, "%s is not longer than nothing", time.Duration(d.v))
		}
	}
	if c.Lanes.BackoffMax < c.Lanes.BackoffMin {
		bad("lanes.backoff_max", "it is shorter than lanes.backoff_min")
	}
	if c.Logs.MaxLine < 256 {
		bad("logs.max_line", "%d bytes are too few, 256 are the least", c.Logs.MaxLine)
	}
	checkStreams(c.Streams, bad)
	if _, ok := c.Runtimes[c.DefaultRuntime]; !ok {
		bad("default_runtime", "there is no [runtimes.%s]", c.DefaultRuntime)
	}
	for name, r := range c.Runtimes {
		if r.Type == "" {
			bad("runtimes."+name+".type", "it is missing")
		}
	}
	return errors.Join(errs...)
}

// checkStreams finds addresses at which streams cannot be served, or not safely.
func checkStreams(s Streams, bad func(key, format string, args ...any)) {
	at, err := netip.ParseAddrPort(s.Address)
	switch {
	case err != nil:
		bad("streams.address", "%q is not an IP address and a port, such as 127.0.0.1:0", s.Address)
	case at.Addr().IsUnspecified():
		bad("streams.address", "%q is not an address that clients can connect to; give one of this node's", s.Address)
	case !at.Addr().IsLoopback() && s.CertFile == "":
		bad("streams.address", "%q is open to other hosts; set streams.cert_file and streams.key_file, or use an address of the loopback", s.Address)
	}
	if (s.CertFile == "") != (s.KeyFile == "") {
		bad("streams.cert_file", "a certificate and its key are set together")
	}
}
