// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"berth/internal/base/config"
)

// settingsFile is the drop-in file that a migration writes.
const settingsFile = "/etc/berth/conf.d/50-migrated.toml"

const crictlConfig = "/etc/crictl.yaml"

// Actions of a step.
const (
	Write   = "write"   // a file
	Stop    = "stop"    // a unit
	Disable = "disable" // a unit: it is stopped, and not started at boot
	Restart = "restart" // a unit
	Enable  = "enable"  // a unit: it is started, now and at boot
	Start   = "start"   // a unit
	End     = "end"     // the pods of the old runtime
	Clear   = "clear"   // a socket that is not served any more
)

// Step is one of a migration.
type Step struct {
	Do   string `json:"do"`
	What string `json:"what"` // the path of the file, the unit, or the socket
	Why  string `json:"why"`
	body []byte
	mode os.FileMode

	restarts string // a unit that reads the file when it starts
}

// Pod is one that a runtime has, and that has not ended.
type Pod struct {
	ID         string   `json:"id"`
	Namespace  string   `json:"namespace"`
	Name       string   `json:"name"`
	Containers []string `json:"containers,omitempty"` // that run
}

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Plan lists the steps of a migration, and their effects.
type Plan struct {
	From     string    `json:"from"`
	Beside   bool      `json:"beside"` // containerd goes on, without its CRI plug-in
	Nothing  string    `json:"nothing,omitempty"`
	Old      string    `json:"oldEndpoint,omitempty"`
	New      string    `json:"newEndpoint,omitempty"`
	Read     []string  `json:"read"`
	Remarks  []Remark  `json:"remarks"`
	Before   []string  `json:"before"` // actions for a person, before and after
	Steps    []Step    `json:"steps"`
	After    []string  `json:"after"`
	Settings []Setting `json:"settings"`
	Pods     []Pod     `json:"pods"`              // that are ended
	Unasked  string    `json:"unasked,omitempty"` // why the pods are not known

	root    string // of the node's files
	state   string // the directory of berth's records
	healthz int    // port of the kubelet's
}

// Make reads a node and makes a plan. It asks the old runtime for its pods, unless host is nil.
func Make(ctx context.Context, w Where, host Host) (*Plan, error) {
	n, err := read(w)
	if err != nil {
		return nil, err
	}
	p := &Plan{
		From:    n.From,
		Beside:  n.Beside,
		Read:    n.read,
		root:    n.Root,
		state:   n.berth.Root,
		healthz: n.kubelet.healthz,
		New:     "unix://" + n.berth.Address,
	}
	if n.moved {
		p.Nothing = fmt.Sprintf("the kubelet uses berth already, by %s: there is nothing to migrate", n.kubelet.where)
		return p, nil
	}
	p.Old = "unix://" + n.old.socket
	if n.kubelet.endpoint != "" {
		p.Old = "unix://" + n.socket
	}
	n.cluster()
	if err := n.check(p); err != nil {
		return nil, err
	}
	if err := p.steps(n); err != nil {
		return nil, err
	}
	p.people(n)
	p.Remarks = sorted(append(p.Remarks, n.old.remarks...))
	p.Read = n.read
	p.Settings = n.old.settings
	if host == nil {
		p.Unasked = "the files of another root were read, and nobody was asked for pods"
		return p, nil
	}
	if p.Pods, err = host.Running(ctx, p.Old); err != nil {
		p.Unasked = err.Error()
	}
	return p, nil
}

// cluster sets the settings that a node of a cluster needs, whatever its old runtime was.
func (n *node) cluster() {
	t := n.old
	t.set("a node of a cluster waits for the cluster's network", false, "network", "use_default")
	if n.kubelet.driver == "" {
		return
	}
	systemd := n.kubelet.driver == "systemd"
	names := []string{"runc"}
	for _, s := range t.settings {
		if len(s.path) == 3 && s.path[0] == "runtimes" && s.path[2] == "type" && s.path[1] != "runc" {
			if kind, _ := s.Value.(string); (config.Runtime{Type: kind}).IsRunc() {
				names = append(names, s.path[1])
			}
		}
	}
	for _, name := range names {
		at := []string{"runtimes", name, "systemd_cgroup"}
		i := slices.IndexFunc(t.settings, func(s Setting) bool { return slices.Equal(s.path, at) })
		had := i >= 0 && t.settings[i].Value == true
		if had == systemd {
			continue
		}
		if name == "runc" || i >= 0 {
			t.remarks = append(t.remarks, Remark{
				Weight:  Note,
				Setting: dotted(at),
				Means: fmt.Sprintf("the kubelet names the cgroup driver %s and %s does not use it for %s: the kubelet's is taken, since both have to agree",
					n.kubelet.driver, n.From, name),
			})
		}
		t.set("cgroupDriver of the kubelet", systemd, at...)
		if i >= 0 && !systemd {
			t.settings = slices.Delete(t.settings, i, i+1) // false is the default
		}
	}
}

// check reads the settings as berth will, and reports obstacles.
func (n *node) check(p *Plan) error {
	block := func(format string, args ...any) {
		p.Remarks = append(p.Remarks, Remark{Weight: Blocks, Means: fmt.Sprintf(format, args...)})
	}
	if !n.kubelet.there && !n.k3s {
		block("there is no kubelet on this node, or it reads a file that is not known: name its configuration with --kubelet-config")
	} else if n.kubelet.config == "" && n.kubelet.endpoint == "" && !n.k3s {
		block("the kubelet has no configuration file, and no flag names its runtime: name the file with --kubelet-config")
	}
	if n.k3s {
		block("k3s starts its own containerd and its kubelet within itself: set container-runtime-endpoint in /etc/rancher/k3s/config.yaml by hand, as docs/clusters.md says. The settings below hold all the same")
	} else if units, err := n.unit("berth.service"); err != nil {
		return err
	} else if len(units) == 0 {
		block("berth is not installed here, since there is no berth.service: run ./berth install in its archive, or install the package")
	}
	docker, err := n.unit("docker.service")
	if err != nil {
		return err
	}
	if len(docker) > 0 && n.From == Containerd && !n.Beside {
		block("Docker is on this node (%s) and uses containerd, which would be stopped: migrate with --beside, or remove Docker", docker[0])
	}
	cfg, err := n.result()
	if err != nil {
		return err
	}
	n.link = cfg.Containerd.Link
	n.looks(p, cfg)
	if j, err := loadJournal(journalDir(n.Root, n.berth.Root)); err != nil {
		block("%v", err)
	} else if j != nil && (j.State == applying || j.State == undoing) {
		block("a migration was cut off, and this is a plan of what it has left: take it back with `berth migrate --undo` first")
	}
	return n.proxies()
}

// proxy finds a proxy in the environment that a unit, or a file of its environment, sets.
var proxy = regexp.MustCompile(`(?mi)^[ \t]*(?:Environment=)?(.*\b(?:https?|no)_proxy=.*)$`)

// proxies finds the proxies of the old runtime, through which berth has to pull as well.
func (n *node) proxies() error {
	units, err := n.unit(unitOf[n.From] + ".service")
	if err != nil {
		return err
	}
	var lines []string
	for _, u := range units {
		text, _, err := n.text(u)
		if err != nil {
			return err
		}
		for _, m := range environment.FindAllStringSubmatch(text, -1) {
			if env, ok, err := n.text(m[1]); err != nil {
				return err
			} else if ok && proxy.MatchString(env) {
				n.old.say(Pods, &leaf{value: "(hidden)", file: m[1], key: "a proxy"}, "berth pulls through the proxies of its own unit: run systemctl edit berth, and name the same file there as EnvironmentFile=")
			}
		}
		for _, m := range proxy.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[0], "Environment=") {
				lines = append(lines, "Environment="+m[1])
			}
		}
	}
	if len(lines) > 0 {
		n.old.files = append(n.old.files, madeFile{
			path: "/etc/systemd/system/berth.service.d/50-migrated.conf",
			body: []byte("# Proxies of this node's " + n.From + ": see docs/migrate.md.\n[Service]\n" + strings.Join(lines, "\n") + "\n"),
			mode: 0o600,
			why:  "the proxies of " + n.From + ", through which berth pulls as well",
		})
	}
	return nil
}

var unitOf = map[string]string{Containerd: "containerd", CRIO: "crio"}

// result is berth's configuration with the file that is written.
func (n *node) result() (cfg config.Loaded, err error) {
	tmp, err := os.MkdirTemp("", "berth-migrate-")
	if err != nil {
		return cfg, fmt.Errorf("check the settings: %w", err)
	}
	defer os.RemoveAll(tmp)
	files := map[string][]byte{"conf.d/" + path.Base(settingsFile): n.draft(false)}
	for _, f := range n.berth.Files {
		rel, err := filepath.Rel(n.on("/etc/berth"), f)
		if err != nil || rel == "conf.d/"+path.Base(settingsFile) {
			continue
		}
		if files[rel], err = os.ReadFile(f); err != nil {
			return cfg, fmt.Errorf("read %s: %w; run this as root", f, err)
		}
	}
	for rel, body := range files {
		if err := errors.Join(os.MkdirAll(filepath.Join(tmp, filepath.Dir(rel)), 0o700), os.WriteFile(filepath.Join(tmp, rel), body, 0o600)); err != nil {
			return cfg, fmt.Errorf("check the settings: %w", err)
		}
	}
	cfg, err = config.LoadIfThere(filepath.Join(tmp, "config.toml"))
	if err == nil {
		err = cfg.Check()
	}
	if err != nil {
		text := strings.ReplaceAll(err.Error(), tmp, "/etc/berth")
		return cfg, fmt.Errorf("berth could not start with what %s says: %s; correct it in %s", n.config, text, strings.Join(slices.Sorted(maps.Keys(n.texts)), ", "))
	}
	return cfg, nil
}

// looks adds remarks from the directories of the node.
func (n *node) looks(p *Plan, cfg config.Loaded) {
	note := func(format string, args ...any) {
		p.Remarks = append(p.Remarks, Remark{Weight: Note, Means: fmt.Sprintf(format, args...)})
	}
	var networks []string
	for _, suffix := range []string{".conf", ".conflist", ".json"} {
		more, err := n.files(cfg.Network.ConfDir, suffix)
		if err != nil {
			note("%v", err)
		}
		networks = append(networks, more...)
	}
	slices.Sort(networks)
	switch {
	case len(networks) == 0:
		note("there is no configuration of a network in %s: the node is NotReady until the cluster's network writes one", cfg.Network.ConfDir)
	case len(networks) > 1:
		note("berth uses the first valid configuration of a network, %s at present, and none of %s", networks[0], strings.Join(networks[1:], ", "))
	}
	for _, dir := range cfg.Network.BinDirs {
		if !n.there(dir) {
			note("the directory of CNI plug-ins %s is not there", dir)
		}
	}
	made := false
	for _, f := range n.old.files {
		made = made || strings.HasPrefix(f.path, hostsDir)
	}
	if dir := cfg.Image.RegistryDir; dir != "" && !made {
		entries, _ := os.ReadDir(n.on(dir)) // it need not be there
		var hosts []string
		for _, e := range entries {
			hosts = append(hosts, e.Name())
		}
		if len(hosts) > 0 {
			note("%s has what is to be known of %s, and berth reads it as it is", dir, strings.Join(hosts, ", "))
		}
	} else if made && len(n.old.files) > 0 && n.old.full("/etc/containerd/certs.d") {
		note("what is in /etc/containerd/certs.d is not read, as before: registries are in %s now", hostsDir)
	}
	if cfg.CRI.RuntimeName == "berth" {
		prefix := map[string]string{Containerd: "containerd", CRIO: "cri-o"}[n.From]
		note("the IDs of containers begin with berth:// and no longer with %s://: agents that know the latter alone need `cri.runtime_name`, and those that look for %s a link or `cri.sockets`: docs/kubelet.md",
			prefix, strings.TrimPrefix(p.Old, "unix://"))
	}
	if n.Beside {
		note("images of the node's containerd are used as they are")
	} else {
		note("images are pulled again, into /var/lib/berth: those of %s stay until somebody removes them", n.From)
	}
}

// draft is the file of settings.
func (n *node) draft(hidden bool) []byte {
	return draft(n.old.settings, "Settings of this node's "+n.From+", written by `berth migrate`: see docs/migrate.md.", hidden)
}

func (p *Plan) steps(n *node) error {
	add := func(do, what, format string, args ...any) *Step {
		p.Steps = append(p.Steps, Step{Do: do, What: what, Why: fmt.Sprintf(format, args...)})
		return &p.Steps[len(p.Steps)-1]
	}
	file := func(name string, body []byte, mode os.FileMode, format string, args ...any) *Step {
		s := add(Write, name, format, args...)
		s.body, s.mode = body, mode
		return s
	}
	for _, f := range n.old.files {
		file(f.path, f.body, os.FileMode(f.mode), "%s", f.why)
	}
	file(settingsFile, n.draft(false), 0o600, "the settings below; berth merges them with those that it has").restarts = "berth"
	add(Stop, "kubelet", "so that it starts no pods meanwhile")
	add(End, p.Old, "pods of %s do not move: without --pods-may-end there must be none", n.From)
	unit := unitOf[n.From]
	if n.Beside {
		body, err := withoutCRI(n.config, n.texts[n.config])
		if err != nil {
			return err
		}
		file(n.config, body, 0o644, "turn containerd's CRI plug-in off").restarts = unit
		add(Restart, unit, "so that it goes on without CRI")
	} else {
		add(Disable, unit, "its place is taken; nothing of its data is removed")
		if n.From == Containerd && n.link != "" {
			add(Clear, n.link, "berth makes a link there for the cAdvisor in the kubelet, if nothing else is there")
		}
	}
	add(Enable, "berth", "wait until its runtime is ready")
	files, texts, err := n.kubelet.edits(p.New)
	if err != nil {
		return err
	}
	for _, f := range files {
		file(f, []byte(texts[f]), 0o644, "point the kubelet at %s", p.New)
	}
	if text, ok, err := n.text(crictlConfig); err != nil {
		return err
	} else if ok {
		changed := text
		for _, key := range []string{"runtime-endpoint", "image-endpoint"} {
			if changed, err = setKey(changed, key, p.New, false); err != nil {
				return fmt.Errorf("change %s: %w", crictlConfig, err)
			}
		}
		if changed != text {
			file(crictlConfig, []byte(changed), 0o644, "point crictl at %s", p.New)
		}
	}
	add(Start, "kubelet", "wait until it is well, and the node ready")
	return nil
}

// people lists the actions for a person.
func (p *Plan) people(n *node) {
	name := "NODE"
	p.Before = append(p.Before, "kubectl drain "+name+" --ignore-daemonsets --delete-emptydir-data")
	if flagOf(n.kubelet.texts[kubeadmFlags], endpointFlags[0]) != "" || n.there(kubeletClient) && !n.there(kubeadmInstance) {
		p.After = append(p.After, "kubectl annotate node "+name+" --overwrite kubeadm.alpha.kubernetes.io/cri-socket="+p.New)
	}
	p.After = append(p.After, "kubectl uncordon "+name)
}

// disabled finds disabled_plugins before the first table of a file.
var disabled = regexp.MustCompile(`(?ms)^[ \t]*disabled_plugins[ \t]*=[ \t]*\[.*?\]`)

// withoutCRI turns the CRI plug-in off in a configuration of containerd, and leaves the rest of the
// text as it is.
func withoutCRI(file, text string) ([]byte, error) {
	if text == "" {
		return []byte("version = 2\ndisabled_plugins = " + quotes(criPlugins) + "\n"), nil
	}
	t, err := parseTOML(file, []byte(text))
	if err != nil {
		return nil, err
	}
	tr := translation{}
	off, _ := tr.list(t, "disabled_plugins")
	for _, p := range criPlugins {
		if !slices.Contains(off, p) {
			off = append(off, p)
		}
	}
	top, tables := text, ""
	if at := regexp.MustCompile(`(?m)^[ \t]*\[`).FindStringIndex(text); at != nil {
		top, tables = text[:at[0]], text[at[0]:]
	}
	line := "disabled_plugins = " + quotes(off)
	if disabled.MatchString(top) {
		top = disabled.ReplaceAllLiteralString(top, line)
	} else {
		if top != "" && !strings.HasSuffix(top, "\n") {
			top += "\n"
		}
		top += line + "\n"
	}
	changed, err := parseTOML(file, []byte(top+tables))
	if err == nil {
		got, _ := tr.list(changed, "disabled_plugins")
		if !slices.Equal(got, off) || len(tr.errs) > 0 {
			err = errors.New("the change would not have the effect")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("turn CRI off in %s: %w; put disabled_plugins = %s there by hand, before the first table", file, err, quotes(off))
	}
	return []byte(top + tables), nil
}

// Blocked returns why the plan cannot be applied; nil if it can.
func (p *Plan) Blocked() error {
	var why []string
	for _, r := range p.Remarks {
		if r.Weight == Blocks {
			why = append(why, r.Means)
		}
	}
	if len(why) == 0 {
		return nil
	}
	return fmt.Errorf("this node cannot be migrated as it is: %s", strings.Join(why, "; and "))
}

// Write writes the plan for a person.
func (p *Plan) Write(w io.Writer) {
	if p.Nothing != "" {
		fmt.Fprintln(w, p.Nothing)
		return
	}
	how := "with containerd inside berth"
	if p.Beside {
		how = "with the node's containerd beside berth"
	}
	fmt.Fprintf(w, "From %s to berth, %s. Nothing is changed by this plan.\n\nFiles that were read:\n", p.From, how)
	for _, f := range p.Read {
		fmt.Fprintf(w, "    %s\n", f)
	}
	for _, of := range []struct{ weight, title string }{
		{Blocks, "In the way, so that --apply is refused"},
		{Pods, "What changes for pods"},
		{Note, "Good to know"},
	} {
		first := true
		for _, r := range p.Remarks {
			if r.Weight != of.weight {
				continue
			}
			if first {
				fmt.Fprintf(w, "\n%s:\n", of.title)
			}
			first = false
			switch {
			case r.Setting != "" && r.File != "":
				fmt.Fprintf(w, "  - %s = %s (%s): %s\n", r.Setting, r.Value, r.File, r.Means)
			case r.Setting != "":
				fmt.Fprintf(w, "  - %s: %s\n", r.Setting, r.Means)
			default:
				fmt.Fprintf(w, "  - %s\n", r.Means)
			}
		}
	}
	fmt.Fprintln(w, "\nPods of "+p.From+", which do not move:")
	switch {
	case p.Unasked != "":
		fmt.Fprintf(w, "    not known: %s\n", p.Unasked)
	case len(p.Pods) == 0:
		fmt.Fprintln(w, "    none is left")
	default:
		for _, pod := range p.Pods {
			fmt.Fprintf(w, "    %s (%d containers)\n", pod, len(pod.Containers))
		}
		fmt.Fprintln(w, "    They are ended: drain the node first. What a drain leaves is ended by --apply with --pods-may-end.")
	}
	p.commands(w, "\nFirst, from where the cluster can be reached:\n", p.Before)
	fmt.Fprintln(w, "\nSteps of --apply, each of which --undo takes back:")
	for i, s := range p.Steps {
		fmt.Fprintf(w, "%4d. %-8s %s: %s\n", i+1, s.Do, s.What, s.Why)
	}
	p.commands(w, "\nThen:\n", p.After)
	for _, s := range p.Steps {
		if s.Do == Write && strings.HasPrefix(s.What, hostsDir) {
			fmt.Fprintf(w, "\n%s:\n\n%s", s.What, indent(string(s.body)))
		}
	}
	fmt.Fprintf(w, "\n%s:\n\n%s", settingsFile, indent(string(draft(p.Settings, "", true))))
}

func (p *Plan) commands(w io.Writer, title string, commands []string) {
	if len(commands) == 0 {
		return
	}
	fmt.Fprint(w, title)
	for _, c := range commands {
		fmt.Fprintf(w, "    %s\n", c)
	}
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimLeft(text, "\n")) {
		if line != "\n" {
			b.WriteString("    ")
		}
		b.WriteString(line)
	}
	return b.String()
}
