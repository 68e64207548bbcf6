// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/namespace"
)

// NetSysctls returns the sysctls of a pod's network, which are set when its plug-ins have made it.
// The values are for a process of the host: in a user namespace of the pod's own, group IDs become
// those of the host. On the host's network there are none.
func NetSysctls(h Host, cfg *runtimeapi.PodSandboxConfig) (map[string]string, error) {
	out, _, err := sysctls(h, cfg)
	if err != nil {
		return nil, err
	}
	ids, own := UserNamespace(cfg)
	asked, pings := out[pingGroups]
	if !own || !pings {
		return out, nil
	}
	var low, high uint32
	if _, err := fmt.Sscanf(asked+"\n", "%d %d\n", &low, &high); err != nil || low >= ids.GIDs || high >= ids.GIDs {
		return nil, fmt.Errorf("sysctls: %s: %q are not two groups of the pod's user namespace: %w", pingGroups, asked, errdefs.ErrInvalidArgument)
	}
	out[pingGroups] = fmt.Sprint(uint64(ids.GID)+uint64(low), uint64(ids.GID)+uint64(high))
	return out, nil
}

const pingGroups = "net.ipv4.ping_group_range"

// sysctls checks that each is one setting (CVE-2022-0811), and that it belongs to a namespace that
// the pod does not share with the host. It returns those of the network and those of other
// namespaces, with dots between the parts of their names.
func sysctls(h Host, cfg *runtimeapi.PodSandboxConfig) (net, others map[string]string, err error) {
	net, others = map[string]string{}, map[string]string{}
	ns := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if ns.GetNetwork() != onNode {
		// In a network of its own a pod needs no privilege for low ports and ping.
		net["net.ipv4.ip_unprivileged_port_start"] = "0"
		ids, own := UserNamespace(cfg)
		if !own {
			ids.GIDs = h.groups() // groups that the user namespace does not have are refused
		}
		// On this host the kernel takes no group above. The groups of the pod may all be above.
		if last := min(ids.GIDs-1, math.MaxInt32); uint64(ids.GID)+uint64(last) <= math.MaxInt32 {
			net[pingGroups] = fmt.Sprintf("0 %d", last)
		}
	}
	asked := map[string]string{}
	for k, v := range cfg.GetLinux().GetSysctls() {
		path := namespace.SysctlPath(k)
		if filepath.Clean(path) != path || !filepath.IsLocal(path) || strings.ContainsAny(k, "+=, \t\r\n\x00") {
			return nil, nil, fmt.Errorf("sysctls: %q is not the name of a setting: %w", k, errdefs.ErrInvalidArgument)
		}
		if strings.ContainsAny(v, "+\r\n\x00") {
			return nil, nil, fmt.Errorf("sysctls: %s: %q is more than one value: %w", k, v, errdefs.ErrInvalidArgument)
		}
		if was, twice := asked[path]; twice && was != v {
			return nil, nil, fmt.Errorf("sysctls: %s is asked to be %q and %q: %w", k, was, v, errdefs.ErrInvalidArgument)
		}
		asked[path] = v
		name := strings.NewReplacer(".", "/", "/", ".").Replace(path)
		switch {
		case strings.HasPrefix(name, "net."):
			if ns.GetNetwork() == onNode {
				return nil, nil, fmt.Errorf("sysctls: %s would change the host: the pod uses host networking: %w", k, errdefs.ErrInvalidArgument)
			}
			net[name] = v
		case strings.HasPrefix(name, "kernel.shm"), strings.HasPrefix(name, "kernel.msg"), name == "kernel.sem", strings.HasPrefix(name, "fs.mqueue."):
			if ns.GetIpc() == onNode {
				return nil, nil, fmt.Errorf("sysctls: %s would change the host: the pod uses the host's IPC namespace: %w", k, errdefs.ErrInvalidArgument)
			}
			others[name] = v
		default:
			return nil, nil, fmt.Errorf("sysctls: %s is not of a namespace and would change the host: %w", k, errdefs.ErrInvalidArgument)
		}
	}
	return net, others, nil
}
