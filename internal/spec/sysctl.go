// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"math"
	"strings"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sysctls checks that each is one setting (CVE-2022-0811), and of a namespace that the pod has of
// its own.
func sysctls(h Host, cfg *runtimeapi.PodSandboxConfig, ns *runtimeapi.NamespaceOption) (map[string]string, error) {
	out := map[string]string{}
	if ns.GetNetwork() != onNode {
		// In a network of its own a pod needs no privilege for low ports and ping.
		out["net.ipv4.ip_unprivileged_port_start"] = "0"
		groups := h.groups() // groups that the user namespace does not have are refused
		if ids, ok := UserNamespace(cfg); ok {
			groups = ids.GIDs
		}
		out["net.ipv4.ping_group_range"] = fmt.Sprintf("0 %d", min(groups-1, math.MaxInt32))
	}
	for k, v := range cfg.GetLinux().GetSysctls() {
		name := strings.ReplaceAll(k, "/", ".")
		if name == "" || strings.Contains(name, "..") || strings.ContainsAny(k, "+=, \t\r\n\x00") {
			return nil, fmt.Errorf("sysctls: %q is not the name of a setting: %w", k, errdefs.ErrInvalidArgument)
		}
		if strings.ContainsAny(v, "+\r\n\x00") {
			return nil, fmt.Errorf("sysctls: %s: %q is more than one value: %w", k, v, errdefs.ErrInvalidArgument)
		}
		switch {
		case strings.HasPrefix(name, "net."):
			if ns.GetNetwork() == onNode {
				return nil, fmt.Errorf("sysctls: %s would change the host: the pod uses host networking: %w", k, errdefs.ErrInvalidArgument)
			}
		case strings.HasPrefix(name, "kernel.shm"), strings.HasPrefix(name, "kernel.msg"), name == "kernel.sem", strings.HasPrefix(name, "fs.mqueue."):
			if ns.GetIpc() == onNode {
				return nil, fmt.Errorf("sysctls: %s would change the host: the pod uses the host's IPC namespace: %w", k, errdefs.ErrInvalidArgument)
			}
		default:
			return nil, fmt.Errorf("sysctls: %s is not of a namespace and would change the host: %w", k, errdefs.ErrInvalidArgument)
		}
		out[name] = v
	}
	return out, nil
}
