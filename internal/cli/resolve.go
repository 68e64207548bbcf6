// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
)

// object is a container or a pod that a person named.
type object struct {
	id, name    string
	path        string // NAMESPACE/POD, or POD/CONTAINER
	pod         bool
	old         bool // an earlier attempt: it has its ID alone
	annotations map[string]string
}

func (o object) is(what string) bool { return !o.old && (o.name == what || o.path == what) }

// resolve finds the one container or pod that a name, or the beginning of an ID, means. A container may also be
// POD/NAME, a pod NAMESPACE/NAME. Of the attempts of one container, the name means the latest.
func resolve(ctx context.Context, c *cri.Client, what string, pods, containers bool) (object, error) {
	if what == "" {
		return object{}, errors.New("a name or ID is empty; give one")
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
			all = append(all, object{p.GetId(), m.GetName(), m.GetNamespace() + "/" + m.GetName(), true, false, p.GetAnnotations()})
		}
	}
	if !containers {
		return all, nil
	}
	list, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	// Latest attempt first; pick takes the first of one container's.
	cts := slices.Clone(list.GetContainers())
	slices.SortStableFunc(cts, func(a, b *runtimeapi.Container) int {
		return int(b.GetMetadata().GetAttempt()) - int(a.GetMetadata().GetAttempt())
	})
	named := map[string]bool{}
	for _, ct := range cts {
		o := object{ct.GetId(), ct.GetMetadata().GetName(), podName[ct.GetPodSandboxId()] + "/" + ct.GetMetadata().GetName(), false, false, ct.GetAnnotations()}
		key := ct.GetPodSandboxId() + "/" + o.name
		o.old, named[key] = named[key], true
		all = append(all, o)
	}
	return all, nil
}

// pick chooses: a whole ID before all else, a name before the beginning of an ID.
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
		return object{}, fmt.Errorf("nothing here has the name, or an ID that begins with, %q; `berth ps -a` and `berth pods` list what there is", what)
	}
	var names []string
	for _, o := range found {
		kind := "container"
		if o.pod {
			kind = "pod"
		}
		names = append(names, fmt.Sprintf("%s %s (%s)", kind, short(o.id), o.path))
	}
	slices.Sort(names)
	return object{}, fmt.Errorf("%q means several: %s; give an ID", what, strings.Join(names, ", "))
}
