// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/fsnotify/fsnotify"
)

const (
	ifName    = "eth0"
	ownSource = "berth's default bridge "
)

// Config says where things are. All paths are absolute.
type Config struct {
	ConfDir  string   // of *.conf, *.conflist, *.json
	BinDirs  []string // of the plug-ins
	NetNSDir string   // where namespaces are pinned
	Owner    string   // this berth's ID, part of the pins' names
	CacheDir string   // CNI's cache of results, this berth's own
	Default  *Bridge  // nil: no network without a configuration
	Logger   *slog.Logger
}

// Pod is who is plumbed.
type Pod struct {
	ID, Name, Namespace, UID string
	NetNS                    string // path of the pin
	Annotations              map[string]string
	Ports                    []PortMapping
	CgroupParent             string
}

// PortMapping publishes a port of the pod on the host.
type PortMapping struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"` // tcp, udp, sctp
	HostIP        string `json:"hostIP,omitempty"`
}

// Result is what Setup achieved.
type Result struct {
	IPs  []string        // without prefix length, in the plug-ins' order
	Raw  json.RawMessage // CNI's result
	Conf json.RawMessage // the configuration list that was used
}

// Network plumbs pods. Its methods may be called from any goroutine.
type Network struct {
	cfg Config
	cni *libcni.CNIConfig

	mu struct {
		sync.RWMutex
		active *libcni.NetworkConfigList
		why    error // why active is nil
		source string
		own    bool // active is the default
	}
}

// New reads the configuration directory once. What is missing or invalid there is no error: Status tells.
func New(cfg Config) (*Network, error) {
	for _, d := range []string{cfg.NetNSDir, cfg.CacheDir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, fmt.Errorf("make network directory: %w", err)
		}
	}
	// The library would make its caller of plug-ins with the first call, and calls come side by side.
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}
	n := &Network{cfg: cfg, cni: libcni.NewCNIConfigWithCacheDir(cfg.BinDirs, cfg.CacheDir, exec)}
	n.reload()
	return n, nil
}

// Status is nil when pods can be plumbed; else it says what is missing and where it was looked for.
func (n *Network) Status() error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.mu.why
}

// Active is the name and the source of the configuration in use, and the list itself.
func (n *Network) Active() (name, source string, conf json.RawMessage) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.mu.active == nil {
		return "", "", nil
	}
	return n.mu.active.Name, n.mu.source, n.mu.active.Bytes
}

// Run follows the configuration directory until ctx ends. It returns an error if the directory cannot be
// watched, for example because the host has no inotify instance left; it has read the directory then, so
// that a caller who runs it again and again follows it, too.
func (n *Network) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		n.reload()
		return fmt.Errorf("follow %s: %w", n.cfg.ConfDir, err)
	}
	defer w.Close()
	settle := time.NewTimer(0) // files are often written in several steps
	defer settle.Stop()
	watched := ""
	for {
		// The directory may not exist yet, or be made anew: then its nearest parent is watched.
		if dir := nearest(n.cfg.ConfDir); dir != watched {
			if watched != "" {
				_ = w.Remove(watched)
			}
			if err := w.Add(dir); err != nil {
				n.reload()
				return fmt.Errorf("follow %s: %w", dir, err)
			}
			watched = dir
			settle.Reset(0)
		}
		select {
		case <-ctx.Done():
			return nil
		case ev := <-w.Events:
			if ev.Has(fsnotify.Remove) && ev.Name == watched {
				watched = ""
			}
			settle.Reset(100 * time.Millisecond)
		case err := <-w.Errors:
			n.cfg.Logger.Warn("network configuration: events lost, reading anew", "err", err)
			settle.Reset(0)
		case <-settle.C:
			n.reload()
		}
	}
}

func nearest(dir string) string {
	for {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

func (n *Network) reload() {
	list, source, err := n.choose()
	n.mu.Lock()
	changed := n.mu.source != source || (list != nil && n.mu.active != nil && string(list.Bytes) != string(n.mu.active.Bytes))
	n.mu.active, n.mu.source, n.mu.why, n.mu.own = list, source, err, strings.HasPrefix(source, ownSource)
	n.mu.Unlock()
	switch {
	case err != nil:
		n.cfg.Logger.Warn("pods cannot be networked", "err", err)
	case changed:
		n.cfg.Logger.Info("network configuration", "name", list.Name, "from", source)
	}
}

// choose finds the configuration to use.
func (n *Network) choose() (*libcni.NetworkConfigList, string, error) {
	files, err := libcni.ConfFiles(n.cfg.ConfDir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, "", fmt.Errorf("read network configuration: %w", err)
	}
	slices.Sort(files)
	for _, f := range files {
		list, err := loadFile(f)
		if err == nil {
			_, err = n.cni.ValidateNetworkList(context.Background(), list)
		}
		if err != nil {
			n.cfg.Logger.Warn("network configuration skipped", "file", f, "err", err)
			continue
		}
		return list, f, nil
	}
	if n.cfg.Default == nil {
		return nil, "", fmt.Errorf("no valid CNI configuration in %s: put one there, or allow berth's default bridge: %w", n.cfg.ConfDir, errdefs.ErrUnavailable)
	}
	list, err := libcni.NetworkConfFromBytes(n.cfg.Default.conf())
	if err != nil {
		return nil, "", fmt.Errorf("default bridge: %w", err)
	}
	return list, ownSource + n.cfg.Default.Name, nil
}

func loadFile(f string) (*libcni.NetworkConfigList, error) {
	if strings.HasSuffix(f, ".conflist") {
		return libcni.NetworkConfFromFile(f)
	}
	conf, err := libcni.ConfFromFile(f) //nolint:staticcheck // single-plug-in files are still written
	if err != nil {
		return nil, err
	}
	if conf.Network.Type == "" {
		return nil, errors.New("no type: a list belongs into a .conflist file")
	}
	return libcni.ConfListFromConf(conf) //nolint:staticcheck // as above
}

// Setup plumbs a pod's namespace, which must exist. What was added before an error is taken back.
func (n *Network) Setup(ctx context.Context, p Pod) (Result, error) {
	n.mu.RLock()
	list, why, own := n.mu.active, n.mu.why, n.mu.own
	n.mu.RUnlock()
	if list == nil {
		return Result{}, why
	}
	if own {
		if err := n.cfg.Default.masquerade(ctx); err != nil {
			return Result{}, fmt.Errorf("plumb pod %s: %w", p.ID, err)
		}
	}
	rt, err := runtimeConf(p)
	if err != nil {
		return Result{}, err
	}
	res, err := n.cni.AddNetworkList(ctx, list, rt)
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return Result{}, errors.Join(fmt.Errorf("plumb pod %s with network %s: %w", p.ID, list.Name, err), n.cni.DelNetworkList(undo, list, rt))
	}
	r, err := current.NewResultFromResult(res)
	if err != nil {
		return Result{}, fmt.Errorf("plumb pod %s: read result: %w", p.ID, err)
	}
	out := Result{Conf: list.Bytes}
	for _, ip := range r.IPs {
		// Addresses of interfaces on the host's side are not the pod's.
		if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(r.Interfaces) || r.Interfaces[*ip.Interface].Sandbox != "" {
			out.IPs = append(out.IPs, ip.Address.IP.String())
		}
	}
	if out.Raw, err = json.Marshal(r); err != nil {
		return Result{}, fmt.Errorf("plumb pod %s: keep result: %w", p.ID, err)
	}
	return out, nil
}

// Teardown takes the pod off its network with the configuration that Setup recorded; without one
// (a crash came before) with the active one. The namespace may be gone. It is idempotent.
func (n *Network) Teardown(ctx context.Context, p Pod, recorded Result) error {
	list, err := n.listFor(recorded)
	if err != nil || list == nil {
		return err
	}
	if err := endPlugins(ctx, p.ID); err != nil {
		return err
	}
	if _, err := os.Stat(p.NetNS); errors.Is(err, os.ErrNotExist) || !isPinned(p.NetNS) {
		p.NetNS = "" // CNI: DEL without a namespace frees what is outside of it
	}
	rt, err := runtimeConf(p)
	if err != nil {
		return err
	}
	if err := n.cni.DelNetworkList(ctx, list, rt); err != nil {
		return fmt.Errorf("take pod %s off network %s: %w", p.ID, list.Name, err)
	}
	return nil
}

func (n *Network) listFor(recorded Result) (*libcni.NetworkConfigList, error) {
	if len(recorded.Conf) > 0 {
		list, err := libcni.NetworkConfFromBytes(recorded.Conf)
		if err != nil {
			return nil, fmt.Errorf("read recorded network configuration: %w", err)
		}
		return list, nil
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.mu.active, nil
}

func runtimeConf(p Pod) (*libcni.RuntimeConf, error) {
	for what, s := range map[string]string{"name": p.Name, "namespace": p.Namespace, "uid": p.UID} {
		if strings.ContainsAny(s, ";=\n") { // separators of CNI_ARGS
			return nil, fmt.Errorf("pod %s: %s %q has a character that CNI arguments cannot carry: %w", p.ID, what, s, errdefs.ErrInvalidArgument)
		}
	}
	rt := &libcni.RuntimeConf{
		ContainerID: p.ID, NetNS: p.NetNS, IfName: ifName,
		Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", p.ID}, {"K8S_POD_UID", p.UID},
		},
		CapabilityArgs: map[string]any{},
	}
	if len(p.Ports) > 0 {
		ports := make([]PortMapping, len(p.Ports))
		for i, pm := range p.Ports {
			pm.Protocol = strings.ToLower(pm.Protocol)
			ports[i] = pm
		}
		rt.CapabilityArgs["portMappings"] = ports
	}
	if len(p.Annotations) > 0 {
		rt.CapabilityArgs["io.kubernetes.cri.pod-annotations"] = p.Annotations
	}
	if p.CgroupParent != "" {
		rt.CapabilityArgs["cgroupPath"] = p.CgroupParent
	}
	return rt, nil
}
