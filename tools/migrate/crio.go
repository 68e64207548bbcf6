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
	t.crioServes(crio)
	t.containers(crio.sub("image"), crio.sub("runtime"))
	t.carry(cfg, crioTable.Carried)
	t.spread()
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
	devices, l := t.list(in, "allowed_devices")
	if l == nil {
		devices = []string{"/dev/fuse", "/dev/net/tun"}
	}
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
		own := given{t, n}
		own.crioAnnotations(handlers.sub(n), devices)
		own.crioSeccomp(handlers.sub(n))
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
	every := given{t, everyHandler}
	caps, l := t.list(in, "default_capabilities")
	if l == nil {
		caps = crioCaps
	}
	if len(less(ownCaps, caps))+len(less(caps, ownCaps)) > 0 {
		every.set(l.from(), caps, "capabilities")
	}
	every.crioSeccomp(in)
	dirs, l := t.list(in, "hooks_dir")
	if l == nil {
		dirs = []string{"/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"}
	}
	if dirs = slices.DeleteFunc(dirs, func(d string) bool { return !t.full(d) }); len(dirs) > 0 {
		every.set(l.from(), dirs, "hooks_dirs")
	}
}

// crioSeccomp takes the file of RuntimeDefault, of a handler or of every one.
func (t given) crioSeccomp(in tree) {
	v, l := t.text(in, "seccomp_profile")
	if v == "" || v == "/usr/share/containers/seccomp.json" || v == "unconfined" {
		return
	}
	text, err := t.read(v)
	if conditions.Match(text) || err != nil {
		t.say(Pods, l, "RuntimeDefault is berth's own profile, since that of the file cannot be read, or has rules with conditions (includes, excludes). Write them as plain rules, and name the file as `seccomp_runtime_default` of the handler")
		return
	}
	t.set(l.from(), v, "seccomp_runtime_default")
}

// conditions finds rules of a seccomp profile that hold for some containers alone.
var conditions = regexp.MustCompile(`"(includes|excludes)"\s*:\s*\{\s*"`)

// crioAnnotations takes what a handler gives to pods that ask by annotations.
func (t given) crioAnnotations(in tree, devices []string) {
	allowed, l := t.list(in, "allowed_annotations")
	taken := 0
	for _, a := range allowed {
		taken++
		switch a {
		case "devices.crio.io", "io.kubernetes.cri-o.Devices":
			t.set(l.from(), devices, "allowed_devices")
		case "cgroup2-mount-hierarchy-rw.crio.io", "io.kubernetes.cri-o.cgroup2-mount-hierarchy-rw":
			t.set(l.from(), config.CgroupsAnnotated, "cgroup_writable")
		default:
			taken--
		}
	}
	if l != nil {
		l.used = taken > 0 && taken == len(allowed) // the rest is named
	}
	var more []string
	var from *leaf
	in.sub("default_annotations").each(func(at []string, l *leaf) {
		l.used = true
		if strings.Contains(at[len(at)-1], "crio.io") || strings.Contains(at[len(at)-1], "cri-o") {
			t.say(Pods, l, "annotations of CRI-O's own have no effect: an NRI plug-in can do the same")
			return
		}
		more, from = append(more, strings.Join(at, ".")+"="+fmt.Sprint(l.value)), l
	})
	if len(more) > 0 {
		t.set(from.from(), more, "annotations")
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
func (t *translation) containers(image, runtime tree) {
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
	every := given{t, everyHandler}
	if list, l := t.list(runtime, "default_mounts"); len(list) > 0 {
		every.mounts(l, l.from(), list)
		return
	}
	named, l := t.text(runtime, "default_mounts_file")
	for _, file := range []string{named, "/etc/containers/mounts.conf", "/usr/share/containers/mounts.conf"} {
		text, err := t.read(file)
		if mounts := strings.Fields(string(text)); file != "" && err == nil && len(mounts) > 0 {
			every.mounts(l, "the mounts in "+file, mounts)
			break
		}
	}
}

// mounts takes a list of mounts, HOST or HOST:CONTAINER. CRI-O gives a container a copy of what the
// host has there, and nothing if the host has nothing there.
func (t given) mounts(l *leaf, from string, lines []string) {
	var all []string
	for _, m := range lines {
		host, _, two := strings.Cut(m, ":")
		if !two {
			m = host + ":" + host
		}
		b, err := config.ParseMount(m + ":ro")
		switch _, unread := t.read(host); {
		case err != nil:
			t.say(Pods, l, "containers do not get a mount of %s: %v", from, err)
		case unread == nil || t.full(b.Host):
			all = append(all, m+":ro")
		}
	}
	if len(all) > 0 {
		t.set(from, all, "mounts")
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
