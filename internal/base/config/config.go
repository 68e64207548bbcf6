// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/pelletier/go-toml/v2"
)

// Config contains every setting. Fields without a doc tag are tables.
type Config struct {
	Root           string             `toml:"root" doc:"Directory for what has to survive a reboot: records, images and writable layers. Its mode is reduced to 0700."`
	State          string             `toml:"state" doc:"Directory for volatile state: sockets, FIFOs and files that pods share. It need not survive a reboot. A path of a socket is limited to 107 bytes, so keep it short. Its mode is reduced to 0711."`
	Address        string             `toml:"address" doc:"Unix socket on which CRI is served. Its mode is 0600. A socket that systemd passes to berth (berth.socket) takes precedence."`
	Libexec        string             `toml:"libexec" doc:"Directory of the shim, runc and the pause program. Empty: libexec/berth or libexec beside the directory of the berth binary, then /usr/local/libexec/berth."`
	DefaultRuntime string             `toml:"default_runtime" doc:"Runtime handler of pods that do not name one."`
	Log            Log                `toml:"log"`
	Containerd     Containerd         `toml:"containerd"`
	Network        Network            `toml:"network"`
	Image          Image              `toml:"image"`
	Lanes          Lanes              `toml:"lanes"`
	CRI            CRI                `toml:"cri"`
	CDI            CDI                `toml:"cdi"`
	Pod            Pod                `toml:"pod"`
	Logs           Logs               `toml:"logs"`
	Streams        Streams            `toml:"streams"`
	NRI            NRI                `toml:"nri"`
	Timeline       Timeline           `toml:"timeline"`
	Audit          Audit              `toml:"audit"`
	Metrics        Metrics            `toml:"metrics"`
	Debug          Debug              `toml:"debug"`
	API            API                `toml:"api"`
	Tracing        Tracing            `toml:"tracing"`
	Tricks         Tricks             `toml:"tricks"`
	Runtimes       map[string]Runtime `toml:"runtimes"`
	// Snapshotters are those that are not built in, by name.
	Snapshotters map[string]Snapshotter `toml:"snapshotters"`
}

// Log configures berth's own log, which goes to standard error.
type Log struct {
	Level  string `toml:"level" doc:"Least severe messages that are logged: debug, info, warn or error."`
	Format string `toml:"format" doc:"text or json."`
}

// Containerd selects the containerd to use.
type Containerd struct {
	Address     string `toml:"address" doc:"Socket of a containerd that runs already. It must not load its own CRI plug-in. Empty: containerd runs inside berth."`
	Snapshotter string `toml:"snapshotter" doc:"Snapshotter for images and writable layers."`
	SyncLayers  bool   `toml:"sync_layers" doc:"Write the writable layer of a container to the disk when it ends and when its programs ask for a sync. The release of each container then waits for all that is to be written to that disk. If off, overlayfs leaves that out (its option volatile, from Linux 5.10 on): what a container wrote to its layer may be lost in a crash of the node, after which no container uses the layer. Volumes are not affected."`
	Link        string `toml:"link" doc:"Symbolic link to a socket on which the cAdvisor in the kubelet, which looks for containerd at this path alone, finds the containers. Not made where something else is. Empty: none."`
}

// Network configures CNI.
type Network struct {
	ConfDir       string   `toml:"conf_dir" doc:"Directory of CNI configurations. The first valid one in lexical order is used, and changes are followed."`
	BinDirs       []string `toml:"bin_dirs" doc:"Directories of CNI plug-ins. The directory cni of libexec is searched last."`
	NetNSDir      string   `toml:"netns_dir" doc:"Directory in which network namespaces are pinned."`
	Name          string   `toml:"name" doc:"Name of the network whose configuration is used, instead of the first one. Empty: the first one."`
	Prefer        string   `toml:"prefer" doc:"Which address of a pod with several is the first one: cni, in the order of the plug-ins; ipv4 or ipv6, the first one of that kind. containerd calls it ip_pref."`
	UseDefault    bool     `toml:"use_default" doc:"Use a bridge of berth's own if there is no CNI configuration."`
	DefaultBridge string   `toml:"default_bridge" doc:"Name of that bridge."`
	DefaultSubnet string   `toml:"default_subnet" doc:"IPv4 subnet of that bridge."`
}

// Values of network.prefer.
const (
	PreferCNI  = "cni"
	PreferIPv4 = "ipv4"
	PreferIPv6 = "ipv6"
)

// Image configures pulling.
type Image struct {
	RegistryDir            string   `toml:"registry_dir" doc:"Directory with the configurations of registries: mirrors, certificates and headers, as HOST/hosts.toml (the certs.d layout of containerd). It need not exist. Empty: none."`
	DecryptionKeysDir      string   `toml:"decryption_keys_dir" doc:"Directory of the private keys (PEM, DER or JWK, one a file, without a password) that layers of encrypted images are decrypted with. The files are read again for each layer. Empty: none."`
	PullTimeout            Duration `toml:"pull_timeout" doc:"A pull is given up when no byte comes for this long while nothing is unpacked, or fewer than a kibibyte a minute on average."`
	MaxConcurrentDownloads int      `toml:"max_concurrent_downloads" doc:"Number of layers of one image that are fetched at the same time."`
	MaxConcurrentUnpacks   int      `toml:"max_concurrent_unpacks" doc:"Number of layers of one image that are unpacked at the same time, if containerd runs inside berth. An image with a layer that lacks the directory of one of its files is unpacked layer by layer."`
	Pinned                 []string `toml:"pinned" doc:"Images that the kubelet's image garbage collection and berth images prune leave: references, IDs, or patterns in which * stands for any text. CRI reports them as pinned; a client that removes one by its name does remove it."`
	PreloadDir             string   `toml:"preload_dir" doc:"Directory of archives (.tar, .tar.gz, .tgz, .tar.zst or .tzst, of docker save or in the OCI layout) that are imported and pinned in the background when berth starts and when it reads its settings again. An archive that has not changed since, and whose images are there, is not imported again. Nobody but root may be able to write to it. Empty: none."`
	DiscardBlobs           bool     `toml:"discard_blobs" doc:"Do not keep the compressed layers of images that are pulled or imported from now on once they are unpacked. It saves disk. A layer that is damaged or lost, or that another snapshotter needs, has to be fetched from the registry again then, and the image cannot be exported."`
	PolicyFile             string   `toml:"policy_file" doc:"File of the rules that say which images may be pulled, and which containers may be made from, by the namespace of the pod: see docs/policy.md. Changes of the file hold from the next decision on. Nobody but root may be able to write to it. Empty: every image is allowed."`
	PolicyFailure          string   `toml:"policy_failure" doc:"What holds while policy_file cannot be used. closed: nothing is pulled and no container is made. open: every image is allowed. What runs is left alone in any case."`
	Peer                   Peer     `toml:"peer"`
	// Auth has the credentials of registries by host. They are used where the request has none.
	Auth map[string]Auth `toml:"auth"`
}

// Values of image.policy_failure.
const (
	PolicyClosed = "closed"
	PolicyOpen   = "open"
)

// CRI configures the answers to clients of CRI.
type CRI struct {
	RuntimeName string   `toml:"runtime_name" doc:"Name of the runtime in the answer to Version. The kubelet puts it before the ID of each container (berth://ID) and before the version of the node. Agents that know only containerd:// or cri-o:// find their containers if it is containerd or cri-o: see docs/kubelet.md."`
	Sockets     []string `toml:"sockets" doc:"More Unix sockets on which CRI is served, besides address, such as one at which an agent looks. The mode of each is 0600. One on which another process listens is left to it, and one that cannot be made is named in the log; berth goes on without it."`
}

// runtimeName matches valid names of the runtime: the name ends up before :// in the IDs of
// containers, and in labels that agents make of them.
var runtimeName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// check reports invalid settings.
func (r CRI) check(c *Config, bad func(key, format string, args ...any)) {
	if !runtimeName.MatchString(r.RuntimeName) {
		bad("cri.runtime_name", "%q is not 1 to 63 lower-case letters, digits and dashes, such as berth, containerd or cri-o", r.RuntimeName)
	}
	for i, path := range r.Sockets {
		key := fmt.Sprintf("cri.sockets[%d]", i)
		switch {
		case !filepath.IsAbs(path):
			bad(key, "%q is not an absolute path", path)
		case len(path) > maxSocket:
			bad(key, "%d bytes are too many for the path of a socket; the maximum is %d", len(path), maxSocket)
		case path == c.Address:
			bad(key, "%s is the address, where CRI is served already", path)
		case slices.Contains(r.Sockets[:i], path):
			bad(key, "%s is in the list twice", path)
		case path == strings.TrimPrefix(c.Containerd.Address, "unix://"):
			bad(key, "%s is the socket of containerd, containerd.address", path)
		case path == c.Containerd.Link:
			bad(key, "%s is containerd.link; choose whether the cAdvisor of the kubelet or clients of CRI find something there, and set containerd.link = '' for the latter", path)
		}
	}
}

// CDI configures the devices of the Container Device Interface.
type CDI struct {
	SpecDirs []string `toml:"spec_dirs" doc:"Directories of CDI specifications, which device plug-ins and vendors' tools write. A device in a later directory takes the place of one of the same name in an earlier directory. Empty: there are no CDI devices."`
}

// Pod configures the sandboxes of pods.
type Pod struct {
	Pause          string `toml:"pause" doc:"Which sandboxes have a pause process. auto: those that need one, since their containers share a PID namespace or they have a user namespace of their own, and those of handlers that name a sandbox_image, or whose shim is not berth's. always: every sandbox. A change holds for new pods."`
	RDTFile        string `toml:"rdt_file" doc:"File of the classes of Intel RDT, in the form of goresctrl. A container gets the class that annotations of it or its pod name (rdt.resources.beta.kubernetes.io). Empty: the annotations have no effect."`
	BlockIOFile    string `toml:"blockio_file" doc:"File of the classes of block I/O, in the form of goresctrl, for the annotations blockio.resources.beta.kubernetes.io. Empty: they have no effect."`
	RequireHugetlb bool   `toml:"require_hugetlb" doc:"Refuse a container that has a hugepage limit where this host does not have the hugetlb cgroup controller. false: the container runs without the limit, and its timeline says so."`
}

// Values of pod.pause.
const (
	PauseAuto   = "auto"
	PauseAlways = "always"
)

// Lanes configures how settling and releasing are retried.
type Lanes struct {
	BackoffMax Duration `toml:"backoff_max" doc:"Longest wait between two attempts. The first wait is a three-hundredth of it, and doubles with each further attempt. The deadline of the first attempt is a thirtieth of it, and grows with the wait."`
}

// AttemptTimeout returns the deadline of the first attempt: a part of the longest wait, so that
// the two fit together. Below a second, an attempt that merely waits for a disk would be cut off.
func (l Lanes) AttemptTimeout() time.Duration {
	return max(time.Second, time.Duration(l.BackoffMax)/30)
}

// BackoffMin returns the wait after the first failed attempt.
func (l Lanes) BackoffMin() time.Duration {
	return max(100*time.Millisecond, time.Duration(l.BackoffMax)/300)
}

// Logs configures the logs of containers.
type Logs struct {
	MaxLine int `toml:"max_line" doc:"Longest line in bytes. Longer lines are split into parts that are marked as such."`
}

// Streams configures the server of exec, attach and port-forward.
type Streams struct {
	Address  string `toml:"address" doc:"HOST:PORT to serve exec, attach and port-forward on, for the kubelet to connect to. Port 0 means any free port. An address that is not of the loopback interface needs a certificate."`
	Socket   string `toml:"socket" doc:"Unix socket on which they are served as well, for berth's commands outside the network namespace of berth. The commands look for it at the path of the CRI socket with .streams behind it. Its mode is 0600. Empty: none."`
	CertFile string `toml:"cert_file" doc:"PEM file of the certificate. It is read again for each connection. Empty: no TLS."`
	KeyFile  string `toml:"key_file" doc:"PEM file of the certificate's key."`
	ClientCA string `toml:"client_ca_file" doc:"PEM file of the authorities that sign the certificates of clients: who connects to address has to show one. The kubelet shows none, so exec, attach and port-forward through the API server do not work then. Empty: no certificate is asked for."`
}

// NRI configures the plug-ins of the Node Resource Interface.
type NRI struct {
	Enable          bool     `toml:"enable" doc:"Let NRI plug-ins take part in the life of pods. A plug-in can change what runs on the node, like root."`
	Socket          string   `toml:"socket" doc:"Unix socket on which plug-ins register. Its mode is 0600."`
	PluginDir       string   `toml:"plugin_dir" doc:"Directory of plug-ins that are started with berth, such as /opt/nri/plugins. Empty: none."`
	PluginConfigDir string   `toml:"plugin_config_dir" doc:"Directory of the configurations of those plug-ins."`
	RequestTimeout  Duration `toml:"request_timeout" doc:"A plug-in that does not answer a request, or does not register, within this time is disconnected."`
}

// check reports invalid settings.
func (n NRI) check(bad func(key, format string, args ...any)) {
	for _, p := range []struct {
		key, v   string
		optional bool
	}{
		{"nri.socket", n.Socket, !n.Enable},
		{"nri.plugin_dir", n.PluginDir, true},
		{"nri.plugin_config_dir", n.PluginConfigDir, true},
	} {
		if !filepath.IsAbs(p.v) && (p.v != "" || !p.optional) {
			bad(p.key, "%q is not an absolute path", p.v)
		}
	}
	if len(n.Socket) > maxSocket {
		bad("nri.socket", "%d bytes are too many for the path of a socket; the maximum is %d", len(n.Socket), maxSocket)
	}
	if n.RequestTimeout <= 0 {
		bad("nri.request_timeout", "%s is not more than 0", time.Duration(n.RequestTimeout))
	}
}

// maxSocket is the length of sun_path of unix(7) without its terminating zero.
const maxSocket = 107

// Timeline configures how many events are kept.
type Timeline struct {
	MaxMiB int `toml:"max_mib" doc:"How many MiB of the disk the timelines of all pods may take, below root. The oldest entries go first, except the first and the last crash of each container. 0: timelines are kept in memory alone, and begin when berth starts."`
}

// Audit configures the record of accesses to containers.
type Audit struct {
	File     string `toml:"file" doc:"File to which each exec, attach and port-forward is appended when it begins and when it ends, with who asked for it, the command, the code and the bytes. Each line has the hash of the one before: see berth audit verify. It may be renamed at any time. Probes are not in it. Empty: none; the timeline has them all the same."`
	OnError  string `toml:"on_error" doc:"What becomes of an exec, attach or port-forward that cannot be written to the file within two seconds: refuse it, or allow it and count it."`
	Sessions string `toml:"sessions" doc:"Directory in which what a terminal shows is kept, as a file that asciinema plays, for each exec and attach with a terminal. Nothing there is ever deleted by berth. Empty: none."`
}

// Values of audit.on_error: the treatment of an access that cannot be recorded.
const (
	AuditRefuse = "refuse"
	AuditAllow  = "allow"
)

// TimelineAge is how long an entry of a timeline is kept at most. The room on the disk decides
// before on a busy node, and an idle one shows a week to a person who comes after a holiday.
const TimelineAge = 7 * 24 * time.Hour

// How much a timeline on the disk may have, in MiB. An index of it is in memory.
const (
	minTimeline = 2
	maxTimeline = 4096
)

// Metrics configures the Prometheus endpoint.
type Metrics struct {
	Address string `toml:"address" doc:"HOST:PORT to serve /metrics on. Empty: no metrics."`
}

// API configures who may call the services of api/berth/v1 besides the clients of the CRI socket.
type API struct {
	ReadSocket string `toml:"read_socket" doc:"Unix socket on which berth.v1.Node alone is served, which changes nothing, for agents that are not root. Its mode is 0660. Empty: none."`
	ReadGroup  string `toml:"read_group" doc:"Name or number of the group that owns api.read_socket. Empty: root's."`
}

// Debug configures the questions that a person can ask a running berth about itself.
type Debug struct {
	Socket string `toml:"socket" doc:"Unix socket on which goroutines, the heap, a CPU profile and the lanes of berth are served over HTTP. Its mode is 0600. Empty: none."`
}

// Tracing configures OpenTelemetry.
type Tracing struct {
	Endpoint string  `toml:"endpoint" doc:"URL of the gRPC endpoint of an OTLP collector, such as http://127.0.0.1:4317. Empty: no tracing."`
	Sampling float64 `toml:"sampling" doc:"Share of the traces begun by berth that is kept: from 0 to 1."`
}

// Tricks turns the tricks on or off that have no other setting. A trick relies on behaviour that
// containerd, Go or the kernel do not promise: docs/tricks.md lists all of them.
type Tricks struct {
	CleanupScript bool `toml:"cleanup_script" doc:"Let a script answer where containerd starts a shim after a deletion to delete what is deleted already. If off, each deletion of a container or pod also starts a shim and an OCI runtime. A change holds for new pods and containers."`
	SetAside      bool `toml:"set_aside" doc:"Let containerd start without its tasks, and give it each one once its shim has answered, if containerd runs inside berth. If off, containerd asks every shim before it serves, and kills the containers of a shim that does not answer within five seconds."`
	EncodeOnce    bool `toml:"encode_once" doc:"Keep the items of lists as they were encoded, for the next list. If off, each answer to a list encodes every item anew."`
	WriteEarly    bool `toml:"write_early" doc:"Begin to write back what is pulled and unpacked while it is, in small parts. If off, the disk gets up to gigabytes at once, and an end that is written down meanwhile waits behind them."`
	SpareThreads  bool `toml:"spare_threads" doc:"Let Go code run on four threads more than there are processors, unless GOMAXPROCS in the environment or a quota of the control group says how many. If off, an end waits for goroutines that compute, as those do that pull images."`
	KeepOutput    bool `toml:"keep_output" doc:"Let berth-logger keep the pipes of a container's output open. If off, the shim copies the output into FIFOs, the last output of a container that ends while berth is away is lost, and a container in a user namespace cannot open /dev/stdout. A change holds for new containers."`
}

// Values of exec: the program that makes the process of an ExecSync.
const (
	ExecOCI    = "oci"
	ExecHelper = "helper"
)

// Values of start: the program that lets a container that is made execute its program.
const (
	StartOCI  = "oci"
	StartShim = "shim"
)

// Runtime configures one runtime handler.
type Runtime struct {
	Type                         string   `toml:"type" doc:"containerd runtime: a name such as io.containerd.runc.v2, or the path of a shim."`
	Binary                       string   `toml:"binary" doc:"Path of the OCI runtime. Empty: runc of the libexec directory (containerd inside berth), or what the shim chooses (another containerd)."`
	Root                         string   `toml:"root" doc:"Directory for the state of the OCI runtime. Empty: below state (containerd inside berth), or what the shim chooses (another containerd)."`
	SystemdCgroup                bool     `toml:"systemd_cgroup" doc:"Let systemd make the cgroups. It has to agree with the cgroup driver of the kubelet."`
	Sandboxer                    string   `toml:"sandboxer" doc:"Sandbox controller of containerd that makes pod sandboxes, for shims with a sandbox API. Empty: berth makes them itself, with a pause process where pod.pause has one."`
	HostProcess                  bool     `toml:"host_process" doc:"Whether the init process of a container is a process of this host, whose exit the kernel can report. False for VM runtimes."`
	PrivilegedWithoutHostDevices bool     `toml:"privileged_without_host_devices" doc:"Keep the devices of the host from privileged containers."`
	Exec                         string   `toml:"exec" doc:"Who makes the process of an ExecSync, as probes are. oci: the OCI runtime, by way of the shim. helper: berth-exec, without them, where the OCI runtime is runc 1.5 or crun 1.21 or 1.28; what it does not cover exactly the OCI runtime makes. Empty: helper for handlers of runc's shim with host_process, oci for all others. It is a trick: see docs/tricks.md."`
	Start                        string   `toml:"start" doc:"Who lets a container that is made execute its program. oci: a process of the OCI runtime. shim: the shim itself, if it is berth's and the OCI runtime is runc 1.5, in pods without a pause process. Empty: shim for handlers of runc's shim with host_process, oci for all others. A change holds for a pod that is made after it, and for those that share its shim. It is a trick: see docs/tricks.md."`
	ShimPods                     int      `toml:"shim_pods" doc:"How many pods without a pause process may share a shim, for handlers of runc's shim with host_process. 0: 20 for those, 1 for all others. 1: each has its own, as a pod with the annotation io.berth.shim.own has. It has no effect where the shim is not berth's or tricks.cleanup_script is off. A change holds for new pods. What it saves and costs: docs/runtimes.md."`
	PodAnnotations               []string `toml:"pod_annotations" doc:"Patterns of pod annotations that are passed to the OCI runtime. Those of run.oci., on which crun acts, are named in full. What would name files of the host, properties of units or the shim never passes: see docs/runtimes.md."`
	ConfigPath                   string   `toml:"config_path" doc:"Configuration file of the shim, for those that take generic options, such as Kata and runsc."`
	ConfigBody                   string   `toml:"config_body" doc:"Configuration of the shim, instead of a file."`
	Snapshotter                  string   `toml:"snapshotter" doc:"Snapshotter of the containers. Images are unpacked into it when a container is created. Empty: containerd.snapshotter."`
	BaseSpec                     string   `toml:"base_spec" doc:"JSON file of the OCI specification that the specifications of containers start from: hooks, mounts, rlimits, environment, annotations, devices. What CRI asks for takes precedence. Empty: none."`
	SandboxImage                 string   `toml:"sandbox_image" doc:"Image of the pause process, which holds the namespaces of a pod. It is pulled when it is missing, and the image garbage collection of the kubelet leaves it. Empty: a program that berth brings along, in the pods that pod.pause has a process for."`
	CNIConfDir                   string   `toml:"cni_conf_dir" doc:"Directory of CNI configurations for the pods of this handler, as network.conf_dir is for all others. Where it has no valid configuration the pods are refused. Empty: network.conf_dir."`
	ContainerAnnotations         []string `toml:"container_annotations" doc:"Patterns of container annotations that are passed to the OCI runtime, as in pod_annotations."`
	NoPivotRoot                  bool     `toml:"no_pivot_root" doc:"Let runc change the root of a container without pivot_root(2), for a host whose root is in memory. A container is confined less then."`
	NoNewKeyring                 bool     `toml:"no_new_keyring" doc:"Make no session keyring for each container."`
	Defaults                     Defaults `toml:"defaults"`
}

// Duration is a time.Duration written as 10s or 5m.
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// Default returns the settings that hold where nothing else is configured.
func Default() Config {
	return Config{
		Root:           "/var/lib/berth",
		State:          "/run/berth",
		Address:        "/run/berth/berth.sock",
		DefaultRuntime: "runc",
		Log:            Log{Level: "info", Format: "text"},
		Containerd:     Containerd{Snapshotter: "overlayfs", Link: "/run/containerd/containerd.sock"},
		Network: Network{
			ConfDir:       "/etc/cni/net.d",
			BinDirs:       []string{"/opt/cni/bin"},
			NetNSDir:      "/run/netns",
			Prefer:        PreferCNI,
			UseDefault:    true,
			DefaultBridge: "berth0",
			DefaultSubnet: "10.88.0.0/16",
		},
		Image: Image{
			RegistryDir:            "/etc/containerd/certs.d",
			PullTimeout:            Duration(5 * time.Minute),
			MaxConcurrentDownloads: 3,
			MaxConcurrentUnpacks:   3,
			Pinned:                 []string{},
			PolicyFailure:          PolicyClosed,
			Peer:                   Peer{Hosts: []string{}},
		},
		CRI:     CRI{RuntimeName: "berth", Sockets: []string{}},
		CDI:     CDI{SpecDirs: []string{"/etc/cdi", "/var/run/cdi"}},
		Pod:     Pod{Pause: PauseAuto},
		Lanes:   Lanes{BackoffMax: Duration(5 * time.Minute)},
		Logs:    Logs{MaxLine: 16 << 10},
		Streams: Streams{Address: "127.0.0.1:0"},
		NRI: NRI{
			Socket:          "/var/run/nri/nri.sock",
			PluginConfigDir: "/etc/nri/conf.d",
			RequestTimeout:  Duration(5 * time.Second),
		},
		Timeline: Timeline{MaxMiB: 64},
		Audit:    Audit{OnError: AuditRefuse},
		Tracing:  Tracing{Sampling: 1},
		Tricks: Tricks{
			CleanupScript: true,
			SetAside:      true,
			EncodeOnce:    true,
			KeepOutput:    true,
			WriteEarly:    true,
			SpareThreads:  true,
		},
		Runtimes: map[string]Runtime{"runc": {
			Type:                 "io.containerd.runc.v2",
			HostProcess:          true,
			PodAnnotations:       []string{},
			ContainerAnnotations: []string{},
			Defaults:             noDefaults(),
		}},
	}
}

// Parse reads TOML and completes it with the defaults. Settings that are retired are passed over.
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
			if key := strings.Join(e.Key(), "."); retiredBecause(key) == "" {
				row, _ := e.Position()
				errs = append(errs, unknown(key, fmt.Sprintf("line %d: ", row)))
			}
		}
		if len(errs) > 0 {
			return Config{}, errors.Join(errs...)
		}
	case errors.As(err, &bad):
		row, col := bad.Position()
		return Config{}, fmt.Errorf("line %d, column %d: %w: %w", row, col, err, errdefs.ErrInvalidArgument)
	case err != nil:
		return Config{}, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return c, nil
}

// Set changes one setting by its dotted name, as on the command line. The value is TOML, or a bare
// word, which is a string.
func (c *Config) Set(key, value string) error {
	parts := strings.Split(key, ".")
	doc := func(v string) []byte {
		table, leaf := parts[:len(parts)-1], parts[len(parts)-1]
		if len(table) == 0 {
			return []byte(leaf + " = " + v)
		}
		return []byte("[" + strings.Join(table, ".") + "]\n" + leaf + " = " + v)
	}
	if retiredBecause(key) != "" {
		return nil
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
	if len(parts) > 2 && parts[0] == "runtimes" { // decoding has replaced the handler as a whole
		r := c.Runtimes[parts[1]]
		if err := set(&r, strings.Join(parts[2:], "."), value, literal); err != nil {
			return fmt.Errorf("set %s to %q: %w: %w", key, value, err, errdefs.ErrInvalidArgument)
		}
		next.Runtimes[parts[1]] = r
	}
	*c = next
	return nil
}

// set changes one setting of a handler. literal is the value quoted as a TOML string.
func set(r *Runtime, leaf, value, literal string) error {
	if toml.Unmarshal([]byte(leaf+" = "+value), r) == nil {
		return nil
	}
	return toml.Unmarshal([]byte(leaf+" = "+literal), r)
}

func (c *Config) clone() Config {
	next := *c
	next.Runtimes = maps.Clone(c.Runtimes)
	next.Snapshotters = maps.Clone(c.Snapshotters)
	return next
}

// Check returns an error that names all settings whose values cannot work.
func (c *Config) Check() error { return c.check(func(string) string { return "" }) }

// check is Check. origin returns where a setting was set, or "".
func (c *Config) check(origin func(key string) string) error {
	var errs []error
	bad := func(key, format string, args ...any) {
		err := fmt.Errorf("%s: %s: %w", key, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
		if from := origin(key); from != "" {
			err = fmt.Errorf("%s: %w", from, err)
		}
		errs = append(errs, err)
	}
	for _, p := range c.paths() {
		p.check(bad)
	}
	if s := c.Tracing.Sampling; s < 0 || s > 1 {
		bad("tracing.sampling", "%v is not between 0 and 1", s)
	}
	if u, err := url.Parse(c.Tracing.Endpoint); c.Tracing.Endpoint != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "") {
		bad("tracing.endpoint", "%q is not an http:// or https:// URL of a host", c.Tracing.Endpoint)
	}
	if a := c.Metrics.Address; a != "" {
		_, port, err := net.SplitHostPort(a)
		if _, number := strconv.ParseUint(port, 10, 16); err != nil || number != nil {
			bad("metrics.address", "%q is not HOST:PORT, such as 127.0.0.1:9440", a)
		}
	}
	if a := c.Containerd.Address; a != "" && strings.TrimPrefix(a, "unix://") == "" {
		bad("containerd.address", "%q names no socket", a)
	}
	if c.Root == c.State {
		bad("state", "it is the same directory as root")
	}
	for key, path := range map[string]string{
		"address":        c.Address,
		"streams.socket": c.Streams.Socket,
		"debug.socket":   c.Debug.Socket,

		"api.read_socket": c.API.ReadSocket,
	} {
		if len(path) > maxSocket {
			bad(key, "%d bytes are too many for the path of a socket; the maximum is %d", len(path), maxSocket)
		}
	}
	if c.API.ReadGroup != "" && c.API.ReadSocket == "" {
		bad("api.read_group", "%q would own nothing; set api.read_socket", c.API.ReadGroup)
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		bad("log.level", "%q is not debug, info, warn or error", c.Log.Level)
	}
	if c.Log.Format != "text" && c.Log.Format != "json" {
		bad("log.format", "%q is not text or json", c.Log.Format)
	}
	if f := c.Image.PolicyFailure; f != PolicyClosed && f != PolicyOpen {
		bad("image.policy_failure", "%q is not closed or open", f)
	}
	if p := c.Network.Prefer; p != PreferCNI && p != PreferIPv4 && p != PreferIPv6 {
		bad("network.prefer", "%q is not %s, %s or %s", p, PreferCNI, PreferIPv4, PreferIPv6)
	}
	if c.Pod.Pause != PauseAuto && c.Pod.Pause != PauseAlways {
		bad("pod.pause", "%q is not auto or always", c.Pod.Pause)
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
		{"image.pull_timeout", c.Image.PullTimeout},
		{"lanes.backoff_max", c.Lanes.BackoffMax},
	} {
		if d.v <= 0 {
			bad(d.key, "%s is not more than 0", time.Duration(d.v))
		}
	}
	if n := c.Timeline.MaxMiB; n != 0 && (n < minTimeline || n > maxTimeline) {
		bad("timeline.max_mib", "%d is neither 0 nor between %d and %d", n, minTimeline, maxTimeline)
	}
	if how := c.Audit.OnError; how != AuditRefuse && how != AuditAllow {
		bad("audit.on_error", "%q is neither %s nor %s", how, AuditRefuse, AuditAllow)
	}
	if n := c.Image.MaxConcurrentUnpacks; n < 1 {
		bad("image.max_concurrent_unpacks", "%d is less than 1", n)
	}
	if c.Logs.MaxLine < 256 {
		bad("logs.max_line", "%d bytes are too few; the minimum is 256", c.Logs.MaxLine)
	}
	checkStreams(c.Streams, bad)
	checkAuth(c.Image.Auth, bad)
	checkPinned(c.Image.Pinned, bad)
	c.Image.Peer.check(bad)
	c.NRI.check(bad)
	c.CRI.check(c, bad)
	if _, ok := c.Runtimes[c.DefaultRuntime]; !ok {
		bad("default_runtime", "there is no table [runtimes.%s]", c.DefaultRuntime)
	}
	for name, r := range c.Runtimes {
		if r.Type == "" {
			bad("runtimes."+name+".type", "it is missing")
		}
		r.check("runtimes."+name+".", bad)
	}
	for name, s := range c.Snapshotters {
		s.check("snapshotters."+quoteKey(name)+".", name, c, bad)
	}
	return errors.Join(errs...)
}

// checkPinned reports entries that do not name an image.
func checkPinned(entries []string, bad func(key, format string, args ...any)) {
	for i, entry := range entries {
		key := fmt.Sprintf("image.pinned[%d]", i)
		if _, err := digest.Parse(entry); err == nil || strings.Contains(entry, "*") {
			continue
		}
		if _, err := reference.ParseDockerRef(entry); err != nil {
			bad(key, "%q is not a reference, a pattern with * or an ID that begins with sha256: %v", entry, err)
		}
	}
}

// checkStreams reports an address on which streams cannot be served, or not safely.
func checkStreams(s Streams, bad func(key, format string, args ...any)) {
	at, err := netip.ParseAddrPort(s.Address)
	switch {
	case err != nil:
		bad("streams.address", "%q is not an IP address and a port, such as 127.0.0.1:0", s.Address)
	case at.Addr().IsUnspecified():
		bad("streams.address", "%q is not an address that clients can connect to; use an address of this node", s.Address)
	case !at.Addr().IsLoopback() && s.CertFile == "":
		bad("streams.address", "%q is open to other hosts; set streams.cert_file and streams.key_file, or use an address of the loopback", s.Address)
	}
	if (s.CertFile == "") != (s.KeyFile == "") {
		bad("streams.cert_file", "a certificate and its key are set together")
	}
	if s.ClientCA != "" && s.CertFile == "" {
		bad("streams.client_ca_file", "certificates of clients need TLS; set streams.cert_file and streams.key_file")
	}
}
