// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
)

// object is a container or a pod that a person may name.
type object struct {
	id          string
	name        string
	path        string // NAMESPACE/NAME of a pod, POD/NAME of a container
	pod         bool
	old         bool // an earlier attempt of a container, which only its ID means
	running     bool // READY or RUNNING
	annotations map[string]string
}

func (o object) is(what string) bool { return !o.old && (o.name == what || o.path == what) }

func (o object) kind() string {
	if o.pod {
		return "pod"
	}
	return "container"
}

// resolve finds the one container or pod that a name, or the beginning of an ID, means. A container
// may also be named POD/NAME, and a pod NAMESPACE/NAME. Of several attempts of one container, the
// name means the latest.
func resolve(ctx context.Context, c *cri.Client, what string, pods, containers bool) (object, error) {
	if what == "" {
		return object{}, errors.New("the name or ID is empty")
	}
	all, err := objects(ctx, c, pods, containers)
	if err != nil {
		return object{}, err
	}
	return pick(all, what)
}

func objects(ctx context.Context, c *cri.Client, pods, containers bool) ([]object, error) {
	var all []object
	sandboxes, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	podName := map[string]string{}
	for _, p := range sandboxes.GetItems() {
		m := p.GetMetadata()
		podName[p.GetId()] = m.GetName()
		if pods {
			all = append(all, object{
				id:          p.GetId(),
				name:        m.GetName(),
				path:        m.GetNamespace() + "/" + m.GetName(),
				pod:         true,
				running:     p.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY,
				annotations: p.GetAnnotations(),
			})
		}
	}
	if !containers {
		return all, nil
	}
	list, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	cts := slices.Clone(list.GetContainers())
	slices.SortStableFunc(cts, func(a, b *runtimeapi.Container) int { // the latest attempt first
		return cmp.Compare(b.GetMetadata().GetAttempt(), a.GetMetadata().GetAttempt())
	})
	named := map[string]bool{}
	for _, ct := range cts {
		name := ct.GetMetadata().GetName()
		key := ct.GetPodSandboxId() + "/" + name
		all = append(all, object{
			id:          ct.GetId(),
			name:        name,
			path:        podName[ct.GetPodSandboxId()] + "/" + name,
			old:         named[key],
			running:     ct.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING,
			annotations: ct.GetAnnotations(),
		})
		named[key] = true
	}
	return all, nil
}

// pick chooses among the objects. A whole ID takes precedence over a name, and a name over the
// beginning of an ID.
func pick(all []object, what string) (object, error) {
	var found []object
	for _, match := range []func(o object) bool{
		func(o object) bool { return o.id == what },
		func(o object) bool { return o.is(what) },
		func(o object) bool { return strings.HasPrefix(o.id, what) },
	} {
		for _, o := range all {
			if match(o) {
				found = append(found, o)
			}
		}
		if len(found) > 0 {
			break
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return object{}, fmt.Errorf("no container or pod is named %q or has an ID that begins with it; `berth ps -a` and `berth pods` list them", what)
	}
	var names []string
	for _, o := range found {
		names = append(names, fmt.Sprintf("%s %s (%s)", o.kind(), short(o.id), o.path))
	}
	slices.Sort(names)
	return object{}, fmt.Errorf("%q is ambiguous: it may be %s; use an ID", what, strings.Join(names, ", "))
}
