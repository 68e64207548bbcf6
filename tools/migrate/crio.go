// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"berth/internal/base/config"
)

const crioSocket = "/run/crio/crio.sock"

// fromCRIO turns CRI-O's settings, of all its files, into berth's. registries are those of
// registries.conf.
func fromCRIO(cfg, registries tree, f facts) (*translation, error) {
	t := &translation{facts: f, socket: crioSocket}
	crio := cfg.sub("crio")
	if v, _ := t.text(crio, "api", "listen"); v != "" {
		t.socket = strings.TrimPrefix(v, "unix://")
	}
	t.crioHandlers(crio.sub("runtime"))
	t.crioPods(crio.sub("runtime"))
	t.crioImages(crio.sub("image"))
	t.registriesConf(registries)
	t.crioNetwork(crio.sub("network"))
	t.crioServes(crio)
	t.containers(crio.sub("image"))
	t.rest(cfg, crioLost, "this is a setting of CRI-O itself, or one that this berth does not know; berth has none like it")
	return t, errors.Join(t.errs...)
}

// crioHandlers takes the handlers of runtime classes.
func (t *translation) crioHandlers(in tree) {
	systemd, managed := t.text(in, "cgroup_manager")
	switch systemd {
	case "", "systemd", "cgroupfs":
	default:
		t.wrong(managed, "systemd or cgroupfs")
	}
	from := managed.from()
	if managed == nil {
		from = "cgroup_manager, which is systemd where nothing is set"
	}
	handlers := in.sub("runtimes")
	name, l := t.text(in, "default_runtime")
	if name == "" {
		name = "crun"
		t.say(Note, nil, "CRI-O's default handler is crun where no file says another one, and runc in old versions: name it by default_runtime in a file if pods are to have runc")
	}
	t.set(l.from(), name, "default_runtime")
	names := handlers.names()
	for _, must := range []string{name, "runc"} { // runc is berth's own handler, which has to agree
		if !slices.Contains(names, must) {
			names = append(names, must)
		}
	}
	for _, n := range names {
		in := handlers.sub(n)
		if v, _ := t.flag(in, "inherit_default_runtime"); v && n != name {
			whole := tree{}
			for _, key := range []string{"runtime_path", "runtime_type", "runtime_config_path"} {
				t.find(in, key) // the setting of the default handler takes precedence
				if v, ok := handlers.sub(name)[key]; ok {
					whole[key] = v
				}
			}
			for k, v := range in {
				if _, ok := whole[k]; !ok {
					whole[k] = v
				}
			}
			in = whole
			if handlers.sub(name)["runtime_path"] == nil && name != "runc" {
				if program := t.which(name); program != "" {
					in["runtime_path"] = &leaf{value: program, file: "the search path", key: name}
				}
			}
		}
		t.crioHandler(n, in, from, systemd != "cgroupfs")
	}
}

func (t *translation) crioHandler(name string, in tree, managed string, systemd bool) {
	set := func(l *leaf, value any, key string) { t.set(l.from(), value, "runtimes", name, key) }
	program, at := t.text(in, "runtime_path")
	kind, l := t.text(in, "runtime_type")
	if v, p := t.flag(in, "privileged_without_host_devices"); v {
		set(p, true, "privileged_without_host_devices")
	}
	if program != "" && !filepath.IsAbs(program) {
		t.wrong(at, "an absolute path")
		return
	}
	switch kind {
	case "vm":
		if program == "" {
			program = t.which("containerd-shim-" + name + "-v2")
		}
		if program == "" {
			t.errs = append(t.errs, fmt.Errorf("read %s: the handler %s is of the type vm and has no runtime_path; name its shim", l.file, name))
			return
		}
		t.set(at.from(), program, "runtimes", name, "type")
		t.carryText(in, []string{"runtime_config_path"}, "runtimes", name, "config_path")
		if strings.Contains(program, "kata") {
			t.set("what Kata's shim has", "shim", "runtimes", name, "sandboxer")
		}
		t.say(Note, at, "the handler %s has a shim of its own kind: exits of its containers are as exact as what the shim says, since the kernel does not see their processes. No test of berth's runs it", name)
		return
	case "pod":
		t.say(Note, l, "berth has no conmon-rs: the OCI runtime of the handler %s is run by berth's shim", name)
	case "", "oci":
	default:
		t.wrong(l, "oci, vm or pod")
		return
	}
	t.set(l.from(), "io.containerd.runc.v2", "runtimes", name, "type")
	t.set("the kernel sees the processes of runc's shim", true, "runtimes", name, "host_process")
	t.set(managed, systemd, "runtimes", name, "systemd_cgroup")
	from := at.from()
	if program == "" && name != "runc" {
		if program, from = t.which(name), "the program that the handler is named after"; program == "" {
			t.say(Blocks, l, "the handler %s names no program, and none of that name is in the usual directories: name it as runtime_path", name)
			return
		}
	}
	if program != "" {
		t.set(from, program, "runtimes", name, "binary")
	}
}

// crioPods translates settings for all pods.
func (t *translation) crioPods(in tree) {
	if v, l := t.flag(in, "drop_infra_ctr"); l != nil && !v {
		t.set(l.from(), config.PauseAlways, "pod", "pause")
	}
	if dirs, l := t.list(in, "cdi_spec_dirs"); len(dirs) > 0 {
		t.set(l.from(), dirs, "cdi", "spec_dirs")
	}
	t.carryDir(in, []string{"decryption_keys_path"}, "image", "decryption_keys_dir")
	if v, l := t.flag(in, "selinux"); l != nil && !v && t.SELinux {
		t.say(Pods, l, "this node has SELinux, and berth labels the pods of such a node: volumes need labels that containers may use")
	}
	caps, l := t.list(in, "default_capabilities")
	if l == nil {
		caps = crioCaps
	}
	if more := beyond(caps); len(more) > 0 {
		t.say(Pods, l, "a container that says nothing about it has more capabilities with berth, as with containerd: also %s. Drop them in the pods where they matter", strings.Join(more, ", "))
	}
	if fewer := lacking(caps); len(fewer) > 0 {
		t.say(Pods, l, "containers have %s with berth only if they ask for it", strings.Join(fewer, ", "))
	}
	if v, l := t.list(in, "default_sysctls"); len(v) > 0 {
		var others []string
		for _, s := range v {
			name, _, _ := strings.Cut(s, "=")
			if n := strings.TrimSpace(name); n != "net.ipv4.ping_group_range" && n != "net.ipv4.ip_unprivileged_port_start" {
				others = append(others, n)
			}
		}
		if len(others) > 0 {
			t.say(Pods, l, "pods have %s only if they ask for it in their securityContext", strings.Join(others, ", "))
		}
	}
	if l := t.find(in, "hooks_dir"); l != nil {
		list, _ := l.value.([]any)
		for _, d := range list {
			if dir, ok := d.(string); ok && t.full(dir) {
				t.say(Pods, l, "berth reads no hooks that choose their containers: those in %s do not run. A `base_spec` of a handler has hooks for all of its containers, CDI those of devices, and NRI plug-ins the rest", dir)
			}
		}
	}
}

// Capabilities of a container that asks for none, in CRI-O and in berth.
var (
	crioCaps = []string{"CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "KILL"}
	ownCaps  = []string{
		"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP",
		"SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
	}
)

func beyond(caps []string) []string  { return less(ownCaps, caps) }
func lacking(caps []string) []string { return less(caps, ownCaps) }

// less is all of a that b lacks.
func less(a, b []string) (list []string) {
	bare := func(c string) string { return strings.TrimPrefix(strings.ToUpper(c), "CAP_") }
	for _, c := range a {
		if !slices.ContainsFunc(b, func(d string) bool { return bare(c) == bare(d) }) {
			list = append(list, bare(c))
		}
	}
	slices.Sort(list)
	return list
}

func (t *translation) crioImages(in tree) {
	if v, l := t.list(in, "pinned_images"); len(v) > 0 {
		t.set(l.from(), v, "image", "pinned")
	}
	if v, l := t.text(in, "pause_image"); v != "" && !strings.HasPrefix(v, "registry.k8s.io/pause:") {
		t.say(Note, l, "berth brings its own pause program, and starts pods without this image. To have it all the same, set `sandbox_image` of a handler")
	}
	if v, l := t.text(in, "global_auth_file"); v != "" {
		t.dockerAuth(v, l)
	}
	if v, l := t.text(in, "pull_progress_timeout"); v != "" {
		if d, err := parseDuration(v); err != nil {
			t.wrong(l, "a duration such as 5m0s")
		} else if d > 0 {
			t.set(l.from(), d.String(), "image", "pull_timeout")
		}
	}
	for _, key := range []string{"signature_policy", "signature_policy_dir"} {
		v, l := t.text(in, key)
		if v != "" && (key == "signature_policy" || t.full(v)) {
			t.say(Pods, l, "NO signature is checked until the same is said by rules in `image.policy_file`, whose form is another one: docs/policy.md")
		}
	}
}

// containers translates the settings in /etc/containers that CRI-O's own files do not mention.
func (t *translation) containers(image tree) {
	const certs = "/etc/containers/certs.d"
	switch {
	case !t.full(certs):
	case len(t.files) == 0:
		t.set("certificates of registries", certs, "image", "registry_dir")
	default:
		t.say(Pods, nil, "the certificates in %s are not read beside the mirrors: copy its directories into %s, or name the certificates in the files there", certs, hostsDir)
	}
	const policy = "/etc/containers/policy.json"
	if _, ok := image["signature_policy"].(*leaf); !ok || nothing(image["signature_policy"].(*leaf).value) {
		text, err := t.read(policy)
		for _, m := range regexp.MustCompile(`"type"\s*:\s*"([^"]*)"`).FindAllStringSubmatch(string(text), -1) {
			if err == nil && m[1] != "insecureAcceptAnything" {
				t.say(Pods, &leaf{value: m[1], file: policy, key: "type"}, "NO signature is checked, and no image refused, until the same is said by rules in `image.policy_file`, whose form is another one: docs/policy.md")
				break
			}
		}
	}
	for _, file := range []string{"/etc/containers/mounts.conf", "/usr/share/containers/mounts.conf"} {
		if text, err := t.read(file); err == nil && strings.TrimSpace(string(text)) != "" {
			t.say(Pods, nil, "containers do not get the mounts that %s lists: a `base_spec` of their handler can have them", file)
			break
		}
	}
}

// crioNetwork takes the directories of CNI.
func (t *translation) crioNetwork(in tree) {
	t.carryDir(in, []string{"network_dir"}, "network", "conf_dir")
	if dirs, l := t.list(in, "plugin_dirs"); len(dirs) > 0 {
		for i := range dirs {
			dirs[i] = path.Clean(dirs[i])
		}
		t.set(l.from(), dirs, "network", "bin_dirs")
	}
	if v, l := t.text(in, "cni_default_network"); v != "" {
		t.say(Pods, l, "berth takes the first valid configuration in the order of the names of their files: see to it that the one of the network %s is the first", v)
	}
}

// crioServes takes the sockets, streams, traces and plug-ins.
func (t *translation) crioServes(in tree) {
	api := in.sub("api")
	address, l := t.text(api, "stream_address")
	number := ""
	if p := t.find(api, "stream_port"); p != nil {
		number = fmt.Sprint(p.value)
		if l == nil {
			l = p
		}
	}
	tls, _ := t.flag(api, "stream_enable_tls")
	cert, _ := t.text(api, "stream_tls_cert")
	key, _ := t.text(api, "stream_tls_key")
	t.stream(l, address, number, tls, cert, key)
	if on, l := t.flag(in, "metrics", "enable_metrics"); on {
		t.say(Note, l, "berth's metrics are at `metrics.address`, by other names: docs/metrics.md. Nothing is set, so that nobody takes them for CRI-O's")
	}
	if on, l := t.flag(in, "tracing", "enable_tracing"); on {
		to, at := t.text(in, "tracing", "tracing_endpoint")
		if to == "" {
			to, at = "127.0.0.1:4317", l
		}
		t.set(at.from(), "http://"+to, "tracing", "endpoint")
		if n := t.find(in, "tracing", "tracing_sampling_rate_per_million"); n != nil {
			if v, err := strconv.ParseFloat(fmt.Sprint(n.value), 64); err != nil || v < 0 || v > 1e6 {
				t.wrong(n, "a number up to 1000000")
			} else {
				t.set(n.from(), v/1e6, "tracing", "sampling")
			}
		}
	}
	nri := in.sub("nri")
	on, l := t.flag(nri, "enable_nri")
	if l != nil && !on {
		nri.useAll()
		return
	}
	from := "NRI, which CRI-O has on unless it is told otherwise"
	if l != nil {
		from = l.from()
	}
	t.nri(from, nri, "nri_listen", "nri_plugin_dir", "nri_plugin_config_dir", "nri_plugin_request_timeout", "nri_plugin_registration_timeout")
}

// crioLost are the settings that nothing is made of.
var crioLost = []lost{
	{
		key: "crio/root", weight: Note, usual: []any{"/var/lib/containers/storage"},
		means: "images and writable layers of berth are below `root`, which is /var/lib/berth: set it to another directory on that disk, if this is what it was chosen for",
	},
	{
		key: "crio/imagestore", weight: Note,
		means: "images of berth are where its layers are, below `root`",
	},
	{
		key: "crio/storage_driver", weight: Note, usual: []any{"overlay"},
		means: "the containerd inside berth has the snapshotters overlayfs and native",
	},
	{
		key: "crio/storage_option", weight: Note,
		means: "the containerd inside berth takes no options of a storage driver. A store of images that is shared read-only is not read",
	},
	{key: "crio/*"},
	{
		key: "crio/api/stream_tls_ca", weight: Pods,
		means: "berth asks whoever connects to exec for no certificate: its URLs are for one use each",
	},
	{key: "crio/api/**"},

	{
		key: "crio/runtime/no_pivot", weight: Pods,
		means: "berth does not start containers on a root in memory, which this is for",
	},
	{
		key: "crio/runtime/default_ulimits", weight: Pods,
		means: "containers have the limits of berth's unit, or those of the `base_spec` of their handler, which has rlimits",
	},
	{
		key: "crio/runtime/default_env", weight: Pods,
		means: "containers have no variables besides: a `base_spec` of their handler can have them",
	},
	{
		key: "crio/runtime/seccomp_profile", weight: Pods, usual: []any{"/usr/share/containers/seccomp.json"},
		means: "RuntimeDefault is berth's own profile, that of containerd. Pods that need this one name it as Localhost, below the kubelet's directory of seccomp profiles",
	},
	{
		key: "crio/runtime/privileged_seccomp_profile", weight: Pods,
		means: "privileged containers run without a seccomp profile",
	},
	{
		key: "crio/runtime/apparmor_profile", weight: Pods, usual: []any{"crio-default"},
		means: "RuntimeDefault is berth's own AppArmor profile. Pods that need this one name it as Localhost",
	},
	{
		key: "crio/runtime/add_inheritable_capabilities", weight: Pods,
		means: "inheritable capabilities are none, so that a program that is not root's gets none by its file alone",
	},
	{
		key: "crio/runtime/allowed_devices", weight: Pods, usual: []any{[]any{"/dev/fuse"}, []any{"/dev/fuse", "/dev/net/tun"}},
		means: "the annotation devices.crio.io has no effect: give the pods these devices by CDI or a device plug-in",
	},
	{
		key: "crio/runtime/additional_devices", weight: Pods,
		means: "containers do not get these devices: a `base_spec` of their handler can have them, or CDI gives them to those that ask",
	},
	{
		key: "crio/runtime/default_mounts_file", weight: Pods, usual: []any{"/etc/containers/mounts.conf"},
		means: "containers do not get these mounts: a `base_spec` of their handler can have them",
	},
	{
		key: "crio/runtime/default_mounts", weight: Pods,
		means: "containers do not get these mounts: a `base_spec` of their handler can have them",
	},
	{
		key: "crio/runtime/read_only", weight: Pods,
		means: "the root of a container can be written to, unless the pod has readOnlyRootFilesystem: true",
	},
	{
		key: "crio/runtime/pids_limit", weight: Pods, usual: []any{-1},
		means: "berth limits no processes by itself: set podPidsLimit in the kubelet's configuration",
	},
	{
		key: "crio/runtime/log_size_max", weight: Pods, usual: []any{-1},
		means: "berth does not cut logs: the kubelet rotates them, by containerLogMaxSize",
	},
	{
		key: "crio/runtime/log_to_journald", weight: Pods,
		means: "the output of containers goes to files of the kubelet alone, and not to the journal",
	},
	{
		key: "crio/runtime/bind_mount_prefix", weight: Blocks,
		means: "berth runs on the host, and mounts what the kubelet names: take this away, if CRI-O runs on the host as well",
	},
	{
		key: "crio/runtime/uid_mappings", weight: Pods,
		means: "pods have a user namespace of their own if they ask for it, by hostUsers: false",
	},
	{
		key: "crio/runtime/gid_mappings", weight: Pods,
		means: "pods have a user namespace of their own if they ask for it, by hostUsers: false",
	},
	{
		key: "crio/runtime/infra_ctr_cpuset", weight: Pods,
		means: "pause processes run on every CPU; most pods have none",
	},
	{
		key: "crio/runtime/shared_cpuset", weight: Pods,
		means: "pods get no CPUs besides those of their own",
	},
	{
		key: "crio/runtime/absent_mount_sources_to_reject", weight: Pods,
		means: "where the source of a mount is not there, berth does what the request says, and makes no exceptions",
	},
	{
		key: "crio/runtime/device_ownership_from_security_context", weight: Pods,
		means: "devices belong to the user and group that they have on the host: containers that run as another user cannot open them",
	},
	{
		key: "crio/runtime/disable_hostport_mapping", weight: Pods,
		means: "hostPort works where the configuration of the network has the plug-in portmap",
	},
	{
		key: "crio/runtime/timezone", weight: Pods,
		means: "containers have the time zone of their image: set TZ in the pods",
	},
	{
		key: "crio/runtime/blockio_config_file", weight: Pods,
		means: "berth has no classes of block I/O: the annotations that ask for one have no effect",
	},
	{
		key: "crio/runtime/rdt_config_file", weight: Pods,
		means: "berth has no classes of RDT: the annotations that ask for one have no effect",
	},
	{
		key: "crio/runtime/min_injected_gomaxprocs", weight: Pods,
		means: "containers get no GOMAXPROCS: Go sets it by the limit of CPUs from 1.25 on",
	},
	{
		key: "crio/runtime/workloads/**", weight: Pods,
		means: "annotations of workloads have no effect: their CPU sets and shares are not set, and the annotations that they allow do nothing",
	},
	{
		key: "crio/runtime/additional_artifact_stores", weight: Pods,
		means: "artifacts come from registries alone, and not from a store that is shared",
	},
	{
		key: "crio/runtime/conmon", weight: Note,
		means: "berth has no conmon: its shim and berth-logger do what conmon does",
	},
	{
		key: "crio/runtime/conmon_cgroup", weight: Note,
		means: "berth has no conmon: its shims run in the cgroup of berth's unit, or in that of the pod",
	},
	{
		key: "crio/runtime/conmon_env", weight: Note, usual: []any{[]any{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
		means: "berth has no conmon: shims have the environment of berth's unit, and containers that of their pods and images",
	},
	{
		key: "crio/runtime/pinns_path", weight: Note,
		means: "berth has no pinns: it pins namespaces itself, below /run/netns and /run/berth/pins",
	},
	{
		key: "crio/runtime/namespaces_dir", weight: Note, usual: []any{"/var/run", "/run"},
		means: "berth pins namespaces below /run/netns and /run/berth/pins",
	},
	{
		key: "crio/runtime/runtimes/*/allowed_annotations", weight: Pods,
		means: "annotations of CRI-O's own have no effect. hostUsers: false takes the place of userns-mode, an emptyDir in memory that of shm-size, CDI that of devices, and Localhost profiles that of seccomp-profile",
	},
	{
		key: "crio/runtime/runtimes/*/default_annotations/**", weight: Pods,
		means: "containers of this handler do not get the annotation: a `base_spec` can have it",
	},
	{
		key: "crio/runtime/runtimes/*/seccomp_profile", weight: Pods,
		means: "RuntimeDefault is berth's own profile in every handler. Pods that need this one name it as Localhost",
	},
	{
		key: "crio/runtime/runtimes/*/platform_runtime_paths/**", weight: Pods,
		means: "a handler has one program: images of other platforms need a handler of their own",
	},
	{
		key: "crio/runtime/runtimes/*/monitor_path", weight: Note,
		means: "berth has no conmon: its shim and berth-logger do what conmon does",
	},
	{
		key: "crio/runtime/runtimes/*/monitor_cgroup", weight: Note, usual: []any{"system.slice", "pod"},
		means: "berth has no conmon: its shims run in the cgroup of berth's unit, or in that of the pod",
	},
	{
		key: "crio/runtime/runtimes/*/monitor_env", weight: Note,
		usual: []any{[]any{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
		means: "berth has no conmon: shims have the environment of berth's unit",
	},
	{key: "crio/runtime/runtimes/*/**"}, {key: "crio/runtime/**"},

	{
		key: "crio/image/image_volumes", weight: Pods, usual: []any{"mkdir"},
		means: "berth makes a volume for each that an image declares",
	},
	{
		key: "crio/image/default_transport", weight: Pods, usual: []any{"docker://"},
		means: "berth pulls from registries alone",
	},
	{
		key: "crio/image/pause_image_auth_file", weight: Note,
		means: "berth needs no pause image",
	},
	{
		key: "crio/image/separate_pull_cgroup", weight: Note,
		means: "berth pulls and unpacks in the cgroup of its unit",
	},
	{
		key: "crio/image/short_name_mode", weight: Note, usual: []any{"enforcing"},
		means: "berth takes a name without a host for one of docker.io",
	},
	{key: "crio/image/**"},
	{
		key: "crio/nri/default_validator/nri_enable_default_validator", weight: Pods,
		means: "berth does not restrict what NRI plug-ins may change",
	},
	{
		key: "crio/nri/nri_disable_connections", weight: Note,
		means: "plug-ins that are started by others may register on `nri.socket`",
	},
	{key: "crio/nri/**"},
	{key: "crio/metrics/**"}, {key: "crio/tracing/**"}, {key: "crio/stats/**"}, {key: "crio/network/**"},
	{key: "crio/checkpoint_restore/**"},
}
