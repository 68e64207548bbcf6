// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// The kubelet's settings on a node of kubeadm's and on others.
const (
	kubeletConfig   = "/var/lib/kubelet/config.yaml"
	kubeadmFlags    = "/var/lib/kubelet/kubeadm-flags.env"
	kubeadmInstance = "/var/lib/kubelet/instance-config.yaml"
	kubeletClient   = "/etc/kubernetes/kubelet.conf"
)

// kubeletFlags are the files that may have flags of the kubelet's, besides its unit.
var kubeletFlags = []string{kubeadmFlags, "/etc/default/kubelet", "/etc/sysconfig/kubelet"}

// unitDirs are systemd's directories of units, the one with precedence first.
var unitDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// The kubelet's settings for the sockets of its runtime.
var (
	endpointKeys  = []string{"containerRuntimeEndpoint", "imageServiceEndpoint"}
	endpointFlags = []string{"container-runtime-endpoint", "image-service-endpoint"}
)

// environment finds the files of flags that a unit names.
var environment = regexp.MustCompile(`(?m)^\s*EnvironmentFile=-?(/[^\s*?]+)`)

// kubelet is the configuration of a node's kubelet.
type kubelet struct {
	there    bool
	config   string // its configuration file
	endpoint string // the socket of its runtime, from the setting with precedence
	where    string // the file with that setting
	driver   string // of cgroups; "" if nothing names one
	healthz  int    // port of its health check; 0 for none
	texts    map[string]string
	settings []string // files of settings, in the order in which they count
	flags    []string // files with flags
}

// kubeletSettings is the used part of a configuration file.
type kubeletSettings struct {
	Kind                     string `json:"kind"`
	ContainerRuntimeEndpoint string `json:"containerRuntimeEndpoint"`
	CgroupDriver             string `json:"cgroupDriver"`
	HealthzPort              *int   `json:"healthzPort"`
}

// flagOf returns the value of a flag in a text; "" if it is not there.
func flagOf(text, name string) string {
	var last string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		for _, m := range flagPattern(name).FindAllStringSubmatch(line, -1) {
			last = m[3]
		}
	}
	return last
}

func flagPattern(name string) *regexp.Regexp {
	return regexp.MustCompile(`(--` + regexp.QuoteMeta(name) + `(?:=|\s+))(["']?)([^\s"'\\]+)`)
}

// setFlag gives a flag another value, where it is set.
func setFlag(text, name, value string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			line = flagPattern(name).ReplaceAllString(line, "${1}${2}"+strings.ReplaceAll(value, "$", "$$"))
		}
		b.WriteString(line)
	}
	return b.String()
}

// setKey gives a key at the top of a file of YAML or JSON another value. If it is not there it is
// added, if that is asked for. Everything else stays as it is, or the file is an error: it may be
// written in a way that only a person can change.
func setKey(text, key, value string, add bool) (string, error) {
	var before, after map[string]any
	if err := yaml.Unmarshal([]byte(text), &before); err != nil {
		return text, err
	}
	if was, _ := before[key].(string); was == "" && !add {
		return text, nil
	}
	changed := withKey(text, key, value)
	err := yaml.Unmarshal([]byte(changed), &after)
	if before == nil {
		before = map[string]any{}
	}
	before[key] = value
	if err != nil || !reflect.DeepEqual(before, after) {
		return text, fmt.Errorf("the key %s cannot be found in it: set it to %q by hand, or write it on a line of its own", key, value)
	}
	return changed, nil
}

// withKey returns the text with the key, as far as patterns find it.
func withKey(text, key, value string) string {
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		pattern := regexp.MustCompile(`("` + key + `"\s*:\s*)"(?:[^"\\]|\\.)*"`)
		quoted, _ := json.Marshal(value) // a string can always be written
		if pattern.MatchString(text) {
			return pattern.ReplaceAllString(text, "${1}"+strings.ReplaceAll(string(quoted), "$", "$$"))
		}
		before, after, _ := strings.Cut(text, "{")
		comma := ","
		if strings.HasPrefix(strings.TrimSpace(after), "}") {
			comma = ""
		}
		return before + "{\n  \"" + key + "\": " + string(quoted) + comma + after
	}
	line := key + ": " + value
	pattern := regexp.MustCompile(`(?m)^["']?` + key + `["']?[ \t]*:[^\n\r]*`)
	if pattern.MatchString(text) {
		return pattern.ReplaceAllLiteralString(text, line)
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + line + "\n"
}

// readKubelet reads the kubelet's configuration: its configuration file, its drop-in files, and
// flags, of which each takes precedence over the one before.
func (n *node) readKubelet(named string) (k kubelet, err error) {
	k = kubelet{texts: map[string]string{}, healthz: 10248}
	units, err := n.unit("kubelet.service")
	if err != nil {
		return k, err
	}
	k.there = len(units) > 0
	files := append(slices.Clone(units), kubeletFlags...)
	for _, u := range units {
		text, _, err := n.text(u)
		if err != nil {
			return k, err
		}
		for _, m := range environment.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(files, m[1]) {
				files = append(files, m[1])
			}
		}
	}
	var config, dropIns, driver string
	for _, f := range files {
		text, ok, err := n.text(f)
		if err != nil {
			return k, err
		}
		if !ok {
			continue
		}
		k.texts[f] = text
		k.flags = append(k.flags, f)
		config = cmp.Or(flagOf(text, "config"), config)
		dropIns = cmp.Or(flagOf(text, "config-dir"), dropIns)
		driver = cmp.Or(flagOf(text, "cgroup-driver"), driver)
	}
	k.config = cmp.Or(named, config, kubeletConfig)
	files = []string{k.config, kubeadmInstance}
	if dropIns != "" {
		more, err := n.files(dropIns, ".conf")
		if err != nil {
			return k, err
		}
		files = append(files, more...)
	}
	for i, f := range files {
		text, ok, err := n.text(f)
		if err != nil {
			return k, err
		}
		if !ok {
			if i == 0 && named != "" {
				return k, fmt.Errorf("read %s: there is no such file; name the kubelet's configuration with --kubelet-config", named)
			}
			if i == 0 {
				k.config = ""
			}
			continue
		}
		var c kubeletSettings
		if err := yaml.Unmarshal([]byte(text), &c); err != nil {
			return k, fmt.Errorf("read %s: it is not a configuration of a kubelet: %w; correct it, or name another file with --kubelet-config", f, err)
		}
		if c.Kind != "" && c.Kind != "KubeletConfiguration" {
			return k, fmt.Errorf("read %s: its kind is %s, and not KubeletConfiguration; name the kubelet's configuration with --kubelet-config", f, c.Kind)
		}
		k.there = true
		k.texts[f] = text
		k.settings = append(k.settings, f)
		if c.ContainerRuntimeEndpoint != "" && f != kubeadmInstance {
			k.endpoint, k.where = c.ContainerRuntimeEndpoint, f
		}
		k.driver = cmp.Or(c.CgroupDriver, k.driver)
		if c.HealthzPort != nil {
			k.healthz = *c.HealthzPort
		}
	}
	for _, f := range k.flags {
		if v := flagOf(k.texts[f], endpointFlags[0]); v != "" {
			k.endpoint, k.where = v, f
		}
	}
	k.driver = cmp.Or(driver, k.driver)
	return k, nil
}

// edits are the files of the kubelet's that have to name another socket, with their new texts.
func (k kubelet) edits(socket string) (files []string, texts map[string]string, err error) {
	texts = map[string]string{}
	named := false
	key := func(f, text, key string, add bool) string {
		changed, bad := setKey(text, key, socket, add)
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("change %s: %w", f, bad))
		}
		return changed
	}
	change := func(f, text string) {
		if text != k.texts[f] && texts[f] == "" {
			files = append(files, f)
		}
		if text != k.texts[f] {
			texts[f] = text
		}
	}
	for _, f := range k.flags {
		text := k.texts[f]
		for _, name := range endpointFlags {
			if flagOf(text, name) != "" {
				text = setFlag(text, name, socket)
				named = named || name == endpointFlags[0]
			}
		}
		change(f, text)
	}
	for _, f := range k.settings {
		text := k.texts[f]
		for _, name := range endpointKeys {
			text = key(f, text, name, false)
		}
		var top map[string]any
		_ = yaml.Unmarshal([]byte(text), &top) // if it cannot be read, key has the error
		named = named || top[endpointKeys[0]] == socket && f != kubeadmInstance
		change(f, text)
	}
	if !named && k.config != "" {
		change(k.config, key(k.config, cmp.Or(texts[k.config], k.texts[k.config]), endpointKeys[0], true))
	}
	return files, texts, err
}

// unit returns the files of a unit: the one that counts, and its drop-in files.
func (n *node) unit(name string) (files []string, err error) {
	for _, dir := range unitDirs {
		f := path.Join(dir, name)
		_, ok, err := n.text(f)
		if err != nil {
			return nil, err
		}
		if ok {
			files = append(files, f)
			break
		}
	}
	var dropIns []string
	seen := map[string]bool{}
	for _, dir := range unitDirs {
		more, err := n.files(path.Join(dir, name+".d"), ".conf")
		if err != nil {
			return nil, err
		}
		for _, f := range more {
			if base := filepath.Base(f); !seen[base] {
				seen[base] = true
				dropIns = append(dropIns, f)
			}
		}
	}
	slices.SortFunc(dropIns, func(a, b string) int { return cmp.Compare(filepath.Base(a), filepath.Base(b)) })
	return append(files, dropIns...), nil
}
