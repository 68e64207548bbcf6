// SPDX-License-Identifier: Apache-2.0

// Command containerd-shim-runc-v2 is containerd's shim for runc, with a sandbox API: the sandbox of
// a pod is a place in the shim, without a process. It serves the containers of its pods from the
// start of the first pod to the end of the last, and does not end with the last of the containers.
// Until a sandbox is made in it, it behaves like the shim that containerd ships.
//
// A shim has one pod, or as many as name the same group in the annotation io.berth.shim.group of
// their sandboxes, and one address in io.containerd.runc.v2.group, by which containerd's shim finds
// the one that is there. In its arguments it then has the group in the place of an ID: no pod is
// the one that it belongs to, and it stays when the pod goes that it was started for.
//
// The namespaces of such a pod are not the shim's business: the maker of the sandbox names them in
// the specifications of the containers. For each pod one thread of the shim waits in the network
// namespace, if there is one, for those who take the network's figures of a pod from
// /proc/PID/net/dev of a process in it: the cAdvisor in the kubelet does.
//
// With the pins of package pins it is a trick: it relies on containerd's shim being a library, and
// on its sandbox controller, which starts any shim that has a sandbox API. berth's setting
// pod.pause turns it off with always. Delete when containerd's shim for runc has a sandbox API that
// pins the namespaces: https://github.com/containerd/containerd/issues/14106.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task/plugin"
	"github.com/containerd/containerd/v2/pkg/shim"
)

const (
	// capability is the annotation by which the shim declares, in its information, that it can be a
	// sandbox without a process.
	capability = "io.berth.shim.sandbox"
	// groupKey is the annotation by which the shim declares that it can be that for several pods at
	// the same time, and by which the specification of a sandbox names its group. The group's
	// socket has another name, because a shim that ends removes the socket named after its ID,
	// which by then may belong to the next shim of the group.
	groupKey = "io.berth.shim.group"
)

func main() {
	reapsItself := func(c *shim.Config) { c.NoReaper = true } // see commands
	shim.RunShim(context.Background(), informed{manager.NewShimManager("io.containerd.runc.v2")}, reapsItself)
}

// informed is the manager of the shim, which adds this shim's capabilities to the information, and
// names a shim after its group.
type informed struct{ shim.Shim }

// Info describes the shim.
func (i informed) Info(ctx context.Context, options io.Reader) (*types.RuntimeInfo, error) {
	info, err := i.Shim.Info(ctx, options)
	if err != nil {
		return nil, err
	}
	if info.Annotations == nil {
		info.Annotations = map[string]string{}
	}
	info.Annotations[capability] = "true"
	info.Annotations[groupKey] = "true"
	return info, nil
}

// Start starts the shim of the bundle in the working directory, or finds the one that the bundle's
// group has.
func (i informed) Start(ctx context.Context, params *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	group, err := annotation("config.json", groupKey)
	if err != nil {
		return nil, err
	}
	if group != "" {
		params.InstanceID = group
	}
	return i.Shim.Start(ctx, params)
}

// annotation is what the specification in a file has under a key; "" for nothing.
func annotation(path, key string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // the manager reports it
	}
	if err != nil {
		return "", fmt.Errorf("look for %s in the specification of a sandbox: %w", key, err)
	}
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(b, &spec); err != nil {
		return "", fmt.Errorf("look for %s in the specification of a sandbox: decode %s: %w", key, path, err)
	}
	return spec.Annotations[key], nil
}
