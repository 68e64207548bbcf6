// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"

	"berth/internal/base/ops"
	"berth/internal/base/retry"
	"berth/internal/host/namespace"
)

// ifName is the name of a pod's interface, within the pod.
const ifName = "eth0"

// Config contains the directories and programs that CNI needs. All paths are absolute.
type Config struct {
	ConfDir  string   // of *.conf, *.conflist, *.json
	Name     string   // of the network whose configuration is used; "" for the first one
	Prefer   string   // ipv4 or ipv6: the kind of a pod's first address; others: the plug-ins' order
	BinDirs  []string // of the plug-ins
	CacheDir string   // CNI's cache of results, this berth's own
	Default  *Bridge  // nil: no network without a configuration
	// runtime handlers by name, and the directory of each that has one of its own
	Handlers map[string]string
	// nil if processes that a call leaves cannot be found, and so are not ended
	Groups Groups
	Logger *slog.Logger
	// Ops lists the calls of plug-ins; nil: a list that nothing else knows.
	Ops *ops.List
}

// Pod is a pod that is connected.
type Pod struct {
	ID, Name, Namespace, UID string
	Handler                  string // runtime handler; "" for the default one
	NetNS                    string // path of the pin
	Annotations              map[string]string
	Ports                    []PortMapping
	CgroupParent             string
	Bandwidth                Bandwidth
	DNS                      DNS
}

// DNS is how a pod asks for names, as it wants it. It is empty if the pod leaves that to the host.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// Bandwidth limits the traffic of a pod, in bits a second; 0 for no limit.
type Bandwidth struct {
	Ingress uint64
	Egress  uint64
}

// PortMapping publishes a port of the pod on the host.
type PortMapping struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"` // tcp, udp, sctp
	HostIP        string `json:"hostIP,omitempty"`
}

// Result is the outcome of Setup.
type Result struct {
	IPs  []string        // without prefix length, in the plug-ins' order, the preferred kind first
	Raw  json.RawMessage // CNI's result
	Conf json.RawMessage // the configuration list that was used
	// Firewall is the one that the host's iptables wrote into; "" if there was no iptables, or if an
	// earlier berth connected the pod.
	Firewall string
}

// Network connects pods. Its methods may be called from any goroutine.
type Network struct {
	cfg   Config
	cni   *libcni.CNIConfig
	exec  *plugins
	watch func() (watcher, error) // newWatcher but in tests
	// ask asks the plug-ins of a network whether they are ready; askPlugins but in tests.
	ask     func(ctx context.Context, list *libcni.NetworkConfigList, own bool) error
	changed retry.Wake // another network is active
	// handlers are the networks of runtime handlers that have a directory of their own.
	handlers  map[string]*Network
	published published
	iptables  iptablesVersion

	mu struct {
		sync.RWMutex
		active *libcni.NetworkConfigList
		why    error // why active is nil
		source string
		own    bool // active is the default
		answer answer
	}
}

// New reads the configuration directory once. A missing or invalid configuration is not an error
// here: Status reports it.
func New(cfg Config) (*Network, error) {
	// The library would make this with the first call, without a lock, and calls come side by side.
	if err := os.MkdirAll(cfg.CacheDir, 0o755); err != nil {
		return nil, fmt.Errorf("make network directory: %w", err)
	}
	if cfg.Ops == nil {
		cfg.Ops = &ops.List{}
	}
	run := &plugins{groups: cfg.Groups, log: cfg.Logger, list: cfg.Ops}
	n := &Network{
		cfg:   cfg,
		cni:   libcni.NewCNIConfigWithCacheDir(cfg.BinDirs, cfg.CacheDir, run),
		exec:  run,
		watch: newWatcher,

		changed: retry.NewWake(),
	}
	n.ask = n.askPlugins
	n.reload()
	n.handlers = map[string]*Network{}
	for handler, dir := range cfg.Handlers {
		own := cfg
		own.ConfDir, own.Default, own.Handlers, own.Name = dir, nil, nil, ""
		own.Logger = cfg.Logger.With("handler", handler)
		var err error
		if n.handlers[handler], err = New(own); err != nil {
			return nil, fmt.Errorf("runtime handler %s: %w", handler, err)
		}
	}
	return n, nil
}

// sweep kills processes that calls of an earlier berth left, and removes empty groups.
func (n *Network) sweep() {
	if n.cfg.Groups == nil {
		return
	}
	if err := n.cfg.Groups.Sweep(); err != nil {
		n.cfg.Logger.Warn("cgroups of CNI plug-ins not swept", "err", err)
	}
}

// endCalls ends the remaining processes of a pod's calls that were cut off. A plug-in that goes on
// connecting the pod while it is disconnected would make things that are in no record.
func (n *Network) endCalls(ctx context.Context, podID string) error {
	if n.cfg.Groups == nil {
		return nil
	}
	if err := n.cfg.Groups.End(ctx, podID); err != nil {
		return fmt.Errorf("kill remaining plug-in processes of pod %s: %w", podID, err)
	}
	return nil
}

// Status returns nil when pods can be connected. Otherwise the error names the missing item and the
// places where berth looks for it, or the plug-in that is not ready. It waits for nothing.
func (n *Network) Status() error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return cmp.Or(n.mu.why, n.answerLocked().err)
}

// Active returns the name and the source of the configuration in use, and the list itself.
func (n *Network) Active() (name, source string, conf json.RawMessage) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.mu.active == nil {
		return "", "", nil
	}
	return n.mu.active.Name, n.mu.source, n.mu.active.Bytes
}

// Setup connects a pod's namespace, which must exist. If it returns an error, everything that was
// added before is removed. A network that gives a pod no address by which others reach it has
// failed, because the kubelet would make such a pod anew for ever.
func (n *Network) Setup(ctx context.Context, p Pod) (Result, error) {
	if own := n.handlers[p.Handler]; own != nil {
		r, err := own.Setup(ctx, p)
		if err != nil {
			err = fmt.Errorf("network of runtime handler %s: %w", p.Handler, err)
		}
		return r, err
	}
	n.mu.RLock()
	list, why, own := n.mu.active, n.mu.why, n.mu.own
	n.mu.RUnlock()
	if list == nil {
		return Result{}, why
	}
	if own {
		err := errors.Join(n.cfg.Default.address(), n.cfg.Default.masquerade(ctx))
		if len(p.Ports) > 0 {
			err = errors.Join(err, n.cfg.Default.guard(ctx))
		}
		if err != nil {
			return Result{}, fmt.Errorf("connect pod %s: %w", p.ID, err)
		}
	}
	rt, err := runtimeConf(p)
	if err != nil {
		return Result{}, err
	}
	for _, c := range []string{capabilityBandwidth, capabilityPorts} {
		if rt.CapabilityArgs[c] != nil && !offers(list, c) {
			n.cfg.Logger.Warn("no plug-in of the network has a capability that a pod needs", "pod", p.ID, "network", list.Name, "capability", c)
		}
	}
	list = needed(list, p)
	firewall, err := n.iptables.now(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("connect pod %s: %w", p.ID, err)
	}
	out, err := n.add(ctx, list, rt)
	out.Firewall = firewall
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = fmt.Errorf("connect pod %s to network %s: %w", p.ID, list.Name, err)
		if left := n.endCalls(undo, p.ID); left != nil {
			return Result{}, errors.Join(err, left) // Teardown tries again
		}
		return Result{}, errors.Join(err, n.cni.DelNetworkList(undo, list, rt))
	}
	if len(p.Ports) > 0 {
		n.publish(ctx, p, out, own)
	}
	return out, nil
}

// add calls the plug-ins of a network, and reads their result.
func (n *Network) add(ctx context.Context, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) (Result, error) {
	res, err := n.cni.AddNetworkList(ctx, list, rt)
	if err != nil {
		return Result{}, err
	}
	r, err := current.NewResultFromResult(res)
	if err != nil {
		return Result{}, fmt.Errorf("read result: %w", err)
	}
	out := Result{Conf: list.Bytes, IPs: podAddresses(r)}
	slices.SortStableFunc(out.IPs, func(a, b string) int { return cmp.Compare(n.later(a), n.later(b)) })
	if len(out.IPs) == 0 {
		var types []string
		for _, p := range list.Plugins {
			types = append(types, p.Network.Type)
		}
		return Result{}, fmt.Errorf("its plug-ins (%s) have given the pod no address but those of a loopback, which a pod needs that is not on the host's network: %w",
			strings.Join(types, ", "), errdefs.ErrFailedPrecondition)
	}
	if out.Raw, err = json.Marshal(r); err != nil {
		return Result{}, fmt.Errorf("encode result: %w", err)
	}
	return out, nil
}

// SetSysctls sets sysctls of the network of a pod, values by names, and returns once they are read
// back. It takes the result of Setup because it must run after the plug-ins, which set some of the
// same sysctls, and make the interfaces that others belong to.
func (n *Network) SetSysctls(p Pod, _ Result, values map[string]string) error {
	if err := namespace.InThread(func() error {
		if err := namespace.EnterNetwork(p.NetNS); err != nil {
			return err
		}
		return namespace.SetSysctls(values)
	}); err != nil {
		return fmt.Errorf("network of pod %s: %w", p.ID, err)
	}
	return nil
}

// podAddresses returns the addresses that a result gives the pod. Addresses of interfaces on the
// host's side are not the pod's, and those of a loopback cannot be reached by others.
func podAddresses(r *current.Result) (ips []string) {
	for _, ip := range r.IPs {
		inPod := ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(r.Interfaces) || r.Interfaces[*ip.Interface].Sandbox != ""
		if inPod && !ip.Address.IP.IsLoopback() {
			ips = append(ips, ip.Address.IP.String())
		}
	}
	return ips
}

// later is 1 for an address of another kind than the preferred one.
func (n *Network) later(ip string) int {
	four := strings.Contains(ip, ".")
	if n.cfg.Prefer == "ipv4" && !four || n.cfg.Prefer == "ipv6" && four {
		return 1
	}
	return 0
}

// Teardown disconnects the pod with the configuration that Setup recorded. If there is no record
// because berth was killed in between, it uses the active configuration. The namespace may be gone.
// It is idempotent.
func (n *Network) Teardown(ctx context.Context, p Pod, recorded Result) error {
	if own := n.handlers[p.Handler]; own != nil {
		return own.Teardown(ctx, p, recorded)
	}
	list, err := n.listFor(recorded)
	if err != nil || list == nil {
		return err
	}
	n.withdraw(p.ID)
	if err := n.endCalls(ctx, p.ID); err != nil {
		return err
	}
	defer n.sweep()
	switch pinned, err := namespace.IsPinned(p.NetNS); {
	case err != nil:
		return fmt.Errorf("disconnect pod %s: look for its network namespace: %w", p.ID, err)
	case !pinned:
		p.NetNS = "" // CNI: DEL without a namespace releases resources outside of it
	}
	rt, err := runtimeConf(p)
	if err != nil {
		return err
	}
	cni, err := n.cniFor(ctx, p.ID, recorded.Firewall)
	if err != nil {
		return fmt.Errorf("disconnect pod %s: %w", p.ID, err)
	}
	if err := cni.DelNetworkList(ctx, needed(list, p), rt); err != nil {
		return fmt.Errorf("disconnect pod %s from network %s: %w", p.ID, list.Name, err)
	}
	return nil
}

// cniFor returns the library for a pod whose rules are in a firewall. If the host's iptables writes
// into the other one by now, plug-ins find programs in PATH that write into that of the pod:
// otherwise its rules would remain, and lead to the pod that gets its address next.
func (n *Network) cniFor(ctx context.Context, podID, firewall string) (*libcni.CNIConfig, error) {
	if firewall == "" {
		return n.cni, nil
	}
	switch now, err := n.iptables.now(ctx); {
	case err != nil:
		return nil, err
	case now == firewall:
		return n.cni, nil
	}
	if firewall == legacy {
		if has, err := hasLegacyTable("nat"); err != nil || !has {
			return n.cni, err // the rules went with an earlier boot
		}
	}
	programs, err := programsOf(n.cfg.CacheDir, firewall)
	if errors.Is(err, exec.ErrNotFound) {
		n.cfg.Logger.Warn("rules of a pod may remain, because the programs of the firewall that has them are gone", "pod", podID, "firewall", firewall)
		return n.cni, nil
	}
	if err != nil {
		return nil, err
	}
	other := *n.exec
	other.programs = programs
	return libcni.NewCNIConfigWithCacheDir(n.cfg.BinDirs, n.cfg.CacheDir, &other), nil
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
		ContainerID: p.ID,
		NetNS:       p.NetNS,
		IfName:      ifName,
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", p.Namespace},
			{"K8S_POD_NAME", p.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", p.ID},
			{"K8S_POD_UID", p.UID},
		},
		CapabilityArgs: map[string]any{},
	}
	if len(p.Ports) > 0 {
		ports := make([]PortMapping, len(p.Ports))
		for i, pm := range p.Ports {
			pm.Protocol = strings.ToLower(pm.Protocol)
			ports[i] = pm
		}
		rt.CapabilityArgs[capabilityPorts] = ports
	}
	if len(p.Annotations) > 0 {
		rt.CapabilityArgs["io.kubernetes.cri.pod-annotations"] = p.Annotations
	}
	if p.CgroupParent != "" {
		rt.CapabilityArgs["cgroupPath"] = p.CgroupParent
	}
	if len(p.DNS.Servers)+len(p.DNS.Searches)+len(p.DNS.Options) > 0 {
		rt.CapabilityArgs[capabilityDNS] = p.DNS
	}
	if p.Bandwidth != (Bandwidth{}) {
		rt.CapabilityArgs[capabilityBandwidth] = p.Bandwidth.capability()
	}
	return rt, nil
}
