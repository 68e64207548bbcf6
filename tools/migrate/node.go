// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"berth/internal/base/config"
)

// Runtimes that a node can be moved from.
const (
	Containerd = "containerd"
	CRIO       = "cri-o"
)

// Where selects the files to read. The zero value is this machine, as its kubelet describes it.
type Where struct {
	Root             string // the directory below which the node's files are; "" is /
	From             string // Containerd or CRIO; "" is the one that the kubelet uses
	Beside           bool   // keep containerd, without its CRI plug-in
	ContainerdConfig string // "" is /etc/containerd/config.toml
	// "" is /etc/crio/crio.conf; its drop-in files are in the directory of that name with .d
	CRIOConfig string
	// "" is the file in the kubelet's flags, or /var/lib/kubelet/config.yaml
	KubeletConfig string
}

// node is the data read of a node.
type node struct {
	Where
	read     []string // the files that were read, in order
	kubelet  kubelet
	old      *translation
	version  int64         // of containerd's configuration
	config   string        // of the old runtime
	socket   string        // that the kubelet uses
	berth    config.Loaded // the settings of berth that are there already
	link     string        // containerd.link of berth
	moved    bool          // the kubelet uses berth
	k3s      bool
	texts    map[string]string
	combined tree // of the old runtime
}

// on is where a file of the node is for this process.
func (n *node) on(p string) string { return filepath.Join(n.Root, p) }

// text reads a file of the node. ok is false if there is none.
func (n *node) text(p string) (text string, ok bool, err error) {
	b, err := os.ReadFile(n.on(p))
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		return "", false, nil
	case err != nil:
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return "", false, fmt.Errorf("read %s: %w; run this as root, or name another file", p, err)
	}
	if !slices.Contains(n.read, p) {
		n.read = append(n.read, p)
	}
	return string(b), true, nil
}

// files are the files of a directory with a suffix, sorted. A directory that is not there has none.
func (n *node) files(dir, suffix string) (files []string, err error) {
	entries, err := os.ReadDir(n.on(dir))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the directory %s: %w; run this as root", dir, err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), suffix) && !e.IsDir() {
			files = append(files, path.Join(dir, e.Name()))
		}
	}
	return files, nil
}

func (n *node) there(p string) bool {
	_, err := os.Stat(n.on(p))
	return err == nil
}

// searchPath is where programs are looked for.
var searchPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/libexec/crio"}

// facts are the facts about the node for the translations.
func (n *node) facts() facts {
	return facts{
		Beside:  n.Beside,
		SELinux: n.there("/sys/fs/selinux/enforce"),
		which: func(program string) string {
			for _, dir := range searchPath {
				if p := path.Join(dir, program); n.there(p) {
					return p
				}
			}
			return ""
		},
		read: func(file string) ([]byte, error) {
			text, ok, err := n.text(file)
			if !ok && err == nil {
				err = fs.ErrNotExist
			}
			return []byte(text), err
		},
		full: func(dir string) bool {
			entries, err := os.ReadDir(n.on(dir))
			return err == nil && len(entries) > 0
		},
	}
}

// trim is the path of an endpoint. /var/run is /run.
func trim(endpoint string) string {
	p := path.Clean(strings.TrimPrefix(endpoint, "unix://"))
	if rest, ok := strings.CutPrefix(p, "/var/run/"); ok {
		return "/run/" + rest
	}
	return p
}

const k3sContainerd = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"

func read(w Where) (*node, error) {
	if w.Root == "" {
		w.Root = "/"
	}
	n := &node{Where: w, texts: map[string]string{}}
	if st, err := os.Stat(w.Root); err != nil || !st.IsDir() {
		return nil, fmt.Errorf("%s is not a directory; name the root of a node with --root", w.Root)
	}
	var err error
	if n.berth, err = config.LoadIfThere(n.on("/etc/berth/config.toml")); err != nil {
		return nil, fmt.Errorf("the settings of berth that are there already cannot be used: %w; correct them, or take them away", err)
	}
	if n.kubelet, err = n.readKubelet(w.KubeletConfig); err != nil {
		return nil, err
	}
	n.k3s = n.there("/etc/rancher/k3s") || n.there(k3sContainerd)
	n.socket = trim(n.kubelet.endpoint)
	if n.kubelet.endpoint != "" && n.socket == trim(n.berth.Address) {
		n.moved = true
		return n, nil
	}
	if n.From == "" {
		if n.From, err = n.guess(); err != nil {
			return nil, err
		}
	}
	switch n.From {
	case Containerd:
		err = n.readContainerd()
	case CRIO:
		if n.Beside {
			return nil, errors.New("--beside keeps containerd, and this node has CRI-O; leave it out")
		}
		err = n.readCRIO()
	default:
		return nil, fmt.Errorf("--from %q is neither %s nor %s", n.From, Containerd, CRIO)
	}
	return n, err
}

func (n *node) guess() (string, error) {
	switch s := n.socket; {
	case n.kubelet.endpoint == "":
	case strings.Contains(s, "crio"):
		return CRIO, nil
	case strings.Contains(s, "containerd"):
		return Containerd, nil
	case strings.Contains(s, "dockerd") || strings.Contains(s, "dockershim"):
		return "", fmt.Errorf("%s says that the kubelet uses Docker, by %s: only nodes of containerd and CRI-O are migrated; docs/migrate.md has the steps by hand", n.kubelet.where, n.kubelet.endpoint)
	default:
		return "", fmt.Errorf("%s says that the kubelet uses %s, which may be any runtime; name it with --from %s or --from %s", n.kubelet.where, n.kubelet.endpoint, Containerd, CRIO)
	}
	ctrd := n.ContainerdConfig != "" || n.there("/etc/containerd/config.toml") || n.there(k3sContainerd)
	crio := n.CRIOConfig != "" || n.there("/etc/crio")
	switch {
	case ctrd && crio:
		return "", fmt.Errorf("the node has configurations of containerd and of CRI-O, and nothing says which one the kubelet uses; name it with --from %s or --from %s", Containerd, CRIO)
	case ctrd:
		return Containerd, nil
	case crio:
		return CRIO, nil
	}
	return "", errors.New("there is neither a configuration of containerd (/etc/containerd/config.toml) nor one of CRI-O (/etc/crio), and no kubelet that names its runtime; " +
		"name the runtime with --from, or the file with --containerd-config or --crio-config")
}

// readContainerd reads containerd's configuration with its imports. Without a file containerd has
// its defaults.
func (n *node) readContainerd() error {
	n.config = n.ContainerdConfig
	switch {
	case n.config != "":
		if !n.there(n.config) {
			return fmt.Errorf("read %s: there is no such file; name containerd's configuration with --containerd-config", n.config)
		}
	case n.k3s && n.there(k3sContainerd):
		n.config = k3sContainerd
	default:
		n.config = "/etc/containerd/config.toml"
	}
	n.combined = tree{}
	n.version = 2
	seen := map[string]bool{}
	for pending := []string{n.config}; len(pending) > 0; pending = pending[1:] {
		file := pending[0]
		if seen[file] {
			continue
		}
		seen[file] = true
		text, ok, err := n.text(file)
		if err != nil {
			return err
		}
		if !ok && file == n.config {
			n.version = 3 // the version of a current containerd
			continue
		}
		if !ok {
			return fmt.Errorf("read %s: there is no such file, and %s imports it; correct imports there", file, n.config)
		}
		n.texts[file] = text
		t, version, err := containerdTree(file, []byte(text))
		if err != nil {
			return err
		}
		patterns, err := imports(t, file)
		if err != nil {
			return err
		}
		delete(t, "imports")
		n.combined.merge(t, true)
		n.version = max(n.version, version)
		for _, p := range patterns {
			if !strings.Contains(p, "*") {
				pending = append(pending, p)
				continue
			}
			found, err := filepath.Glob(n.on(p))
			if err != nil {
				return fmt.Errorf("read %s: imports has %q, which is not a pattern; correct it", file, p)
			}
			for _, f := range found {
				pending = append(pending, "/"+strings.TrimPrefix(strings.TrimPrefix(f, filepath.Clean(n.Root)), "/"))
			}
		}
	}
	t, err := fromContainerd(n.combined, n.version, n.facts())
	n.old = t
	return err
}

// readCRIO reads CRI-O's configuration with its drop-in files, and registries.conf with its own.
func (n *node) readCRIO() error {
	n.config = n.CRIOConfig
	if n.config == "" {
		n.config = "/etc/crio/crio.conf"
	} else if !n.there(n.config) {
		return fmt.Errorf("read %s: there is no such file; name CRI-O's configuration with --crio-config", n.config)
	}
	var err error
	if n.combined, err = n.layered(n.config, n.config+".d", ""); err != nil {
		return err
	}
	registries, err := n.layered("/etc/containers/registries.conf", "/etc/containers/registries.conf.d", ".conf")
	if err != nil {
		return err
	}
	t, err := fromCRIO(n.combined, registries, n.facts())
	n.old = t
	return err
}

// layered reads a file and the drop-in files of a directory, of which a later one counts more.
func (n *node) layered(file, dir, suffix string) (tree, error) {
	more, err := n.files(dir, suffix)
	if err != nil {
		return nil, err
	}
	all := tree{}
	for _, f := range append([]string{file}, more...) {
		text, ok, err := n.text(f)
		if err != nil {
			return nil, err
		}
		if !ok || strings.HasPrefix(filepath.Base(f), ".") {
			continue
		}
		n.texts[f] = text
		t, err := parseTOML(f, []byte(text))
		if err != nil {
			return nil, err
		}
		// lists of registries are joined, and a later file comes first
		if l, ok := t["registry"].(*leaf); ok {
			own, _ := l.value.([]any)
			for _, v := range own {
				if m, ok := v.(map[string]any); ok {
					m[fileKey] = f
				}
			}
			if have, ok := all["registry"].(*leaf); ok {
				more, _ := have.value.([]any)
				l.value = append(slices.Clone(own), more...)
			}
		}
		all.merge(t, false)
	}
	return all, nil
}
