// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/internal/base/config"
)

// Tables of containerd's configuration, as version 3 calls them.
const (
	criImages  = "io.containerd.cri.v1.images"
	criRuntime = "io.containerd.cri.v1.runtime"
	criServer  = "io.containerd.grpc.v1.cri" // in version 2 all of CRI
	nriPlugin  = "io.containerd.nri.v1.nri"
)

// criPlugins are the plug-ins that turn containerd's CRI off, in 1.7 and in 2.
var criPlugins = []string{criServer, criImages, criRuntime}

// newestVersion is the newest version of containerd's configuration that is known.
const newestVersion = 4

const containerdSocket = "/run/containerd/containerd.sock"

// containerdTree brings one file of containerd's into the form of version 3, in which the keys of
// its tables have the names of before.
func containerdTree(file string, text []byte) (t tree, version int64, err error) {
	t, err = parseTOML(file, text)
	if err != nil {
		return nil, 0, err
	}
	l, ok := t["version"].(*leaf)
	switch {
	case !ok && len(t.sub("plugins")) == 0:
		version = 2 // a short file, such as that of Docker's packages, means the same in each
	case !ok:
		return nil, 0, fmt.Errorf("read %s: it has no version, which makes it one of version 1; write it anew with `containerd config migrate`, which prints version 2 or newer", file)
	default:
		if version, ok = l.value.(int64); !ok || version < 2 {
			return nil, 0, fmt.Errorf("read %s: version %s is not read, but 2, 3 and 4 are; `containerd config migrate` prints a newer one", file, show(l))
		}
		if version > newestVersion {
			return nil, 0, fmt.Errorf("read %s: version %d is newer than what this berth knows, which is %d; take a newer berth, or write the file in version %d", file, version, newestVersion, newestVersion)
		}
		l.used = true
	}
	if version == 2 {
		upgrade(t)
	}
	if old := t.sub("grpc"); len(old) > 0 && len(t.sub("plugins", "io.containerd.server.v1.grpc")) == 0 {
		put(t, old, "plugins", "io.containerd.server.v1.grpc")
		delete(t, "grpc")
	}
	return t, version, nil
}

// put puts a table where another one may be.
func put(t tree, v any, at ...string) {
	for _, k := range at[:len(at)-1] {
		next, ok := t[k].(tree)
		if !ok {
			next = tree{}
			t[k] = next
		}
		t = next
	}
	last := at[len(at)-1]
	if have, ok := t[last].(tree); ok {
		if more, ok := v.(tree); ok {
			have.merge(more, false)
			return
		}
	}
	t[last] = v
}

// upgrade moves the settings of one table in version 2 to the three of version 3.
func upgrade(t tree) {
	old := t.sub("plugins", criServer)
	server := []string{"disable_tcp_service", "stream_server_address", "stream_server_port", "stream_idle_timeout", "enable_tls_streaming", "x509_key_pair_streaming"}
	images := []string{
		"registry", "image_decryption", "max_concurrent_downloads", "image_pull_progress_timeout",
		"image_pull_with_sync_fs", "stats_collect_period",
	}
	for k, v := range old {
		switch {
		case slices.Contains(server, k):
			continue
		case k == "sandbox_image":
			put(t, v, "plugins", criImages, "pinned_images", "sandbox")
		case slices.Contains(images, k):
			put(t, v, "plugins", criImages, k)
		case k == "containerd":
			ctrd, _ := v.(tree)
			for _, moved := range []string{"snapshotter", "disable_snapshot_annotations", "discard_unpacked_layers"} {
				if w, ok := ctrd[moved]; ok {
					put(t, w, "plugins", criImages, moved)
					delete(ctrd, moved)
				}
			}
			put(t, v, "plugins", criRuntime, k)
		default:
			put(t, v, "plugins", criRuntime, k)
		}
		delete(old, k)
	}
}

// imports returns the patterns by which a configuration file of containerd names further files, in
// their order.
func imports(t tree, file string) (patterns []string, err error) {
	l, ok := t["imports"].(*leaf)
	if !ok {
		return nil, nil
	}
	l.used = true
	tr := translation{}
	list, _ := tr.list(t, "imports")
	if len(tr.errs) > 0 {
		return nil, tr.errs[0]
	}
	for _, p := range list {
		if !filepath.IsAbs(p) {
			p = filepath.Join(filepath.Dir(file), p)
		}
		patterns = append(patterns, filepath.Clean(p))
	}
	return patterns, nil
}

// fromContainerd turns containerd's settings, of all its files, into berth's.
func fromContainerd(cfg tree, version int64, f facts) (*translation, error) {
	t := &translation{facts: f, socket: containerdSocket}
	t.containerdItself(cfg)
	images, runtime := cfg.sub("plugins", criImages), cfg.sub("plugins", criRuntime)
	t.containerdImages(cfg, images)
	t.containerdRegistries(images.sub("registry"))
	t.containerdPods(runtime)
	t.containerdHandlers(cfg, runtime.sub("containerd"), images.sub("runtime_platforms"))
	t.streams(cfg.sub("plugins", criServer))
	t.containerdNRI(cfg.sub("plugins"), version)
	t.carry(cfg, containerdTable.Carried)
	given{t, everyHandler}.unset(cfg.sub("plugins", criRuntime))
	t.spread()
	if v, off := t.flag(runtime, "enable_cdi"); off != nil && !v {
		t.set(off.from(), []string{}, "cdi", "spec_dirs")
	}
	t.rest(cfg, containerdTable, "this is a setting of containerd itself, or one that this berth does not know; berth has none like it")
	return t, errors.Join(t.errs...)
}

// containerdItself translates settings that are not about CRI.
func (t *translation) containerdItself(cfg tree) {
	if v, _ := t.text(cfg, "plugins", "io.containerd.server.v1.grpc", "address"); v != "" {
		t.socket = strings.TrimPrefix(v, "unix://")
	}
	if t.Beside {
		t.set("the socket of containerd, which goes on", t.socket, "containerd", "address")
	}
	if v, l := t.text(cfg, "root"); l != nil && v != "" && path.Clean(v) != "/var/lib/containerd" && !t.Beside {
		t.say(Note, l, "images and writable layers of berth are below `root`, which is /var/lib/berth: set it to another directory on that disk, if this is what %s was chosen for", v)
	}
	if off, l := t.list(cfg, "disabled_plugins"); slices.ContainsFunc(off, func(p string) bool { return p == "cri" || p == criServer || p == criRuntime }) {
		t.say(Note, l, "containerd's CRI is turned off, so no kubelet can use it: this node is no node of containerd's as it is")
	}
	for _, name := range cfg.sub("stream_processors").names() {
		p := cfg.sub("stream_processors", name)
		args, l := t.list(p, "args")
		p.useAll()
		i := slices.Index(args, "--decryption-keys-path")
		switch {
		case i >= 0 && i+1 < len(args):
			t.set(l.from(), path.Clean(args[i+1]), "image", "decryption_keys_dir")
		case strings.Contains(name, "ocicrypt"):
			t.say(Pods, l, "berth decrypts images with the keys in `image.decryption_keys_dir`, and this names no directory of keys: encrypted images are not pulled until that is set")
		default:
			t.say(Pods, l, "berth runs no stream processors: images whose layers need %s are not unpacked", name)
		}
	}
}

// snapshotter carries the name of a snapshotter over, and the socket of one that is a program of
// its own.
func (t *translation) snapshotter(cfg tree, name string, l *leaf, to ...string) {
	t.set(l.from(), name, to...)
	if t.Beside || name == "overlayfs" || name == "native" {
		return
	}
	proxy := cfg.sub("proxy_plugins", name)
	address, from := t.text(proxy, "address")
	if from == nil {
		t.say(Blocks, l, "the containerd inside berth has the snapshotters overlayfs, native and those of `proxy_plugins`, and not %s: migrate with --beside, which keeps the node's containerd, or choose overlayfs, for which images are pulled again", name)
		return
	}
	t.set(from.from(), strings.TrimPrefix(address, "unix://"), "snapshotters", name, "address")
	if root, from := t.text(proxy, "exports", "root"); from != nil {
		t.set(from.from(), path.Clean(root), "snapshotters", name, "root")
	}
}

func (t *translation) containerdImages(cfg, in tree) {
	if v, l := t.text(in, "snapshotter"); l != nil && v != "" {
		t.snapshotter(cfg, v, l, "containerd", "snapshotter")
	}
	own, l := t.number(in, "max_concurrent_downloads")
	if n, transfer := t.number(cfg, "plugins", "io.containerd.transfer.v1.local", "max_concurrent_downloads"); transfer != nil && (l == nil || own == 3) {
		own, l = n, transfer
	}
	switch {
	case l != nil && own > 0:
		t.set(l.from(), own, "image", "max_concurrent_downloads")
	case l != nil && own < 0:
		t.wrong(l, "a number that is not negative")
	}
	t.progress(in, "image_pull_progress_timeout")
	pinned := []string{}
	var from string
	for _, name := range slices.Sorted(maps.Keys(in.sub("pinned_images"))) {
		image, l := t.text(in, "pinned_images", name)
		switch {
		case image == "":
		case name == "sandbox" && strings.HasPrefix(image, "registry.k8s.io/pause:"):
		case name == "sandbox":
			t.say(Note, l, "berth brings its own pause program, and starts pods without this image. To have it all the same, set `sandbox_image` of a handler")
		default:
			pinned, from = append(pinned, image), l.from()
		}
	}
	if len(pinned) > 0 {
		t.set(from, pinned, "image", "pinned")
	}
}

// progress carries over how long a pull may make no progress.
func (t *translation) progress(in tree, key string) {
	v, l := t.text(in, key)
	if l == nil || v == "" {
		return
	}
	d, err := parseDuration(v)
	switch {
	case err != nil:
		t.wrong(l, "a duration such as 5m0s")
	case d == 0:
		t.say(Note, l, "berth gives a pull up on which nothing comes for five minutes; `image.pull_timeout` can be longer, and not endless")
	default:
		t.set(l.from(), d.String(), "image", "pull_timeout")
	}
}

// containerdPods translates settings for all pods.
func (t *translation) containerdPods(in tree) {
	if n, l := t.number(in, "max_container_log_line_size"); l != nil {
		switch {
		case n <= 0:
			t.say(Pods, l, "berth splits lines that are longer than `logs.max_line`, 16384 bytes, into parts, which are marked as such; agents that read logs put them together")
		case n < 256:
			t.say(Pods, l, "berth splits no lines that are shorter than 256 bytes")
			t.set(l.from(), int64(256), "logs", "max_line")
		default:
			t.set(l.from(), n, "logs", "max_line")
		}
	}
	if v, l := t.flag(in, "tolerate_missing_hugetlb_controller"); l != nil && !v {
		t.set(l.from(), true, "pod", "require_hugetlb")
	}
	if v, l := t.flag(in, "enable_selinux"); l != nil && !v && t.SELinux {
		t.say(Pods, l, "this node has SELinux, and berth labels the pods of such a node: volumes need labels that containers may use")
	}
	cni := in.sub("cni")
	bins, l := t.list(cni, "bin_dirs")
	if one, from := t.text(cni, "bin_dir"); one != "" && len(bins) == 0 {
		bins, l = []string{one}, from
	}
	if len(bins) > 0 {
		for i := range bins {
			bins[i] = path.Clean(bins[i])
		}
		t.set(l.from(), bins, "network", "bin_dirs")
	}
	if n, l := t.number(cni, "max_conf_num"); l != nil && n != 1 {
		t.say(Pods, l, "berth uses the first valid configuration of a network alone: pods lose the interfaces of the others. Put the plug-ins into one list of plug-ins (.conflist), or use one that calls others, such as Multus")
	}
	if v, l := t.text(cni, "conf_template"); v != "" {
		t.say(Pods, l, "berth writes no configuration of a network out of a template: the one that is there now goes on to be used, and a node that gets another range of addresses needs a new one by other means")
	}
}

// unset takes the seccomp profile of pods that ask for none.
func (t given) unset(in tree) {
	v, l := t.text(in, "unset_seccomp_profile")
	local, isLocal := strings.CutPrefix(v, "localhost/")
	switch {
	case v == "runtime/default" || v == "docker/default":
		t.set(l.from(), config.RuntimeDefault, "seccomp")
	case isLocal:
		t.set(l.from(), local, "seccomp")
	case v != "" && v != "unconfined":
		t.wrong(l, "runtime/default, unconfined or localhost/PROFILE")
	}
}

// containerdHandlers takes the handlers of runtime classes.
func (t *translation) containerdHandlers(cfg, in, platforms tree) {
	runtimes := in.sub("runtimes")
	for _, name := range runtimes.names() {
		t.handler(name, runtimes.sub(name))
		if v, l := t.text(runtimes.sub(name), "snapshotter"); v != "" {
			t.snapshotter(cfg, v, l, "runtimes", name, "snapshotter")
		} else if v, l := t.text(platforms, name, "snapshotter"); v != "" {
			t.snapshotter(cfg, v, l, "runtimes", name, "snapshotter")
		}
	}
	name, l := t.text(in, "default_runtime_name")
	if name == "" {
		name = "runc"
	}
	if _, ok := runtimes[name]; !ok && l != nil && name != "runc" {
		t.errs = append(t.errs, fmt.Errorf("read %s: default_runtime_name is %q, and there is no table of that handler; correct one of them", l.file, name))
	}
	if l != nil {
		t.set(l.from(), name, "default_runtime")
	}
	t.runc(name, runtimes)
}

// runc lets berth's own handler agree with the default one, where the old runtime has none of its
// name.
func (t *translation) runc(name string, handlers tree) {
	if _, ok := handlers["runc"]; ok || name == "runc" {
		return
	}
	for _, s := range t.settings {
		if slices.Equal(s.path, []string{"runtimes", name, "systemd_cgroup"}) {
			t.set("what holds for "+name+", since all handlers have to agree", s.Value, "runtimes", "runc", "systemd_cgroup")
			return
		}
	}
}

// oldRunc are types of runc's that containerd 2 does not have any more.
var oldRunc = []string{"io.containerd.runc.v1", "io.containerd.runtime.v1.linux"}

func (t *translation) handler(name string, in tree) {
	set := func(l *leaf, value any, key string) { t.set(l.from(), value, "runtimes", name, key) }
	kind, l := t.text(in, "runtime_type")
	shim, shimLeaf := t.text(in, "runtime_path")
	switch {
	case shim != "":
		kind, l = shim, shimLeaf
	case slices.Contains(oldRunc, kind):
		t.say(Note, l, "this kind of shim is gone from containerd 2: io.containerd.runc.v2 takes its place")
		kind = "io.containerd.runc.v2"
	case kind == "":
		kind = "io.containerd.runc.v2" // containerd's default
	}
	if shim != "" && !filepath.IsAbs(shim) {
		t.wrong(shimLeaf, "an absolute path")
	}
	about, runc := l, config.Runtime{Type: kind}.IsRunc()
	t.set(l.from(), kind, "runtimes", name, "type")
	if runc {
		t.set("the kernel sees the processes of runc's shim", true, "runtimes", name, "host_process")
	}
	if v, l := t.text(in, "sandboxer"); v != "" && v != "podsandbox" {
		set(l, v, "sandboxer")
	}
	for _, key := range []string{"pod_annotations", "container_annotations"} {
		if v, l := t.list(in, key); len(v) > 0 {
			set(l, v, key)
			if slices.ContainsFunc(v, func(p string) bool { return p == "*" || strings.HasPrefix(p, "run.oci.*") }) {
				t.say(Pods, l, "annotations that begin with run.oci. pass to the OCI runtime only where their whole names are listed, and some never do: docs/runtimes.md lists them")
			}
		}
	}
	options := in.sub("options")
	systemd, l := t.flag(options, "SystemdCgroup")
	if runc {
		if l != nil {
			set(l, systemd, "systemd_cgroup")
		}
		t.copy(options, []string{"BinaryName"}, "text", []string{"runtimes", name, "binary"})
		if v, l := t.text(options, "Root"); v != "" {
			t.say(Note, l, "the OCI runtime of berth has a directory of its own for its state, below /run/berth")
		}
		return
	}
	t.copy(options, []string{"ConfigPath"}, "text", []string{"runtimes", name, "config_path"})
	t.copy(options, []string{"ConfigBody"}, "text", []string{"runtimes", name, "config_body"})
	t.find(options, "TypeUrl")
	t.say(Note, about, "the handler %s has a shim of its own kind, %s: exits of its containers are as exact as what the shim says, since the kernel does not see their processes. No test of berth's runs it", name, kind)
}

// streams takes the server of exec, attach and port-forward.
func (t *translation) streams(in tree) {
	address, l := t.text(in, "stream_server_address")
	port := t.find(in, "stream_server_port") // a string, or a number
	tls, _ := t.flag(in, "enable_tls_streaming")
	cert, _ := t.text(in, "x509_key_pair_streaming", "tls_cert_file")
	key, _ := t.text(in, "x509_key_pair_streaming", "tls_key_file")
	number := "0"
	if port != nil {
		number = fmt.Sprint(port.value)
	}
	if l == nil {
		l = port
	}
	t.stream(l, address, number, tls, cert, key)
}

// stream carries the server of exec over, wherever it is configured.
func (t *translation) stream(l *leaf, address, port string, tls bool, cert, key string) {
	if address == "" {
		address = "127.0.0.1"
	}
	if n, err := strconv.Atoi(port); port != "" && (err != nil || n < 0 || n > 65535) {
		t.wrong(l, "a port")
		return
	}
	if port == "" {
		port = "0"
	}
	local := address == "127.0.0.1" || address == "::1" || address == "localhost"
	switch {
	case tls && cert != "" && key != "":
		t.set(l.from(), strings.Trim(address, "[]")+":"+port, "streams", "address")
		t.set(l.from(), cert, "streams", "cert_file")
		t.set(l.from(), key, "streams", "key_file")
	case local && !tls:
		if port != "0" {
			t.set(l.from(), "127.0.0.1:"+port, "streams", "address")
		}
	case tls:
		t.say(Note, l, "berth makes no certificate for exec, attach and port-forward by itself: they are served on the loopback, to which the kubelet connects")
	default:
		t.say(Note, l, "berth serves exec, attach and port-forward on another address than the loopback with a certificate alone (`streams.cert_file`): they are on the loopback now, to which the kubelet connects")
	}
}

// containerdNRI takes the plug-ins of NRI, which are on in containerd 2 unless they are turned off.
// A containerd 2 that still has a file of version 2 is known by the socket for plug-ins.
func (t *translation) containerdNRI(plugins tree, version int64) {
	in := plugins.sub(nriPlugin)
	off, l := t.flag(in, "disable")
	if off || l == nil && version == 2 && !t.full("/run/nri") {
		in.useAll()
		return
	}
	from := "NRI, which containerd 2 has on unless it is told otherwise"
	if l != nil {
		from = l.from()
	}
	t.nri(from, in, "socket_path", "plugin_path", "plugin_config_path", "plugin_request_timeout")
}

// nri translates the settings of NRI's plug-ins. keys are their names in the old runtime.
func (t *translation) nri(from string, in tree, socket, dir, conf, request string) {
	t.set(from, true, "nri", "enable")
	t.copy(in, []string{socket}, "dir", []string{"nri", "socket"})
	plugins, l := t.text(in, dir)
	if plugins == "" {
		plugins = "/opt/nri/plugins"
	}
	if t.full(plugins) {
		if l != nil {
			from = l.from()
		}
		t.set(from, plugins, "nri", "plugin_dir")
	}
	t.copy(in, []string{conf}, "dir", []string{"nri", "plugin_config_dir"})
	// berth waits longer than the two seconds of others
	if v, l := t.text(in, request); v != "" && v != "2s" {
		if _, err := parseDuration(v); err != nil {
			t.wrong(l, "a duration such as 5s")
			return
		}
		t.set(l.from(), v, "nri", "request_timeout")
	}
}
