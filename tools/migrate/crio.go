// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"errors"
	"fmt"
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
	t.carry(cfg, crioTable.Carried)
	t.rest(cfg, crioTable, "this is a setting of CRI-O itself, or one that this berth does not know; berth has none like it")
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
		t.copy(in, []string{"runtime_config_path"}, "text", []string{"runtimes", name, "config_path"})
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
	t.nri(from, nri, "nri_listen", "nri_plugin_dir", "nri_plugin_config_dir", "nri_plugin_request_timeout")
}
