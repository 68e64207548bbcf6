// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
)

// object is a container or a pod that a person may name.
type object struct {
	id          string
	name        string
	path        string // NAMESPACE/NAME of a pod, POD/NAME of a container
	full        string // NAMESPACE/POD/NAME of a container, and the path of a pod
	podID       string // of the pod of a container, and of a pod itself
	pod         bool
	attempt     uint32
	old         bool // an earlier attempt of a container or of a pod, which only its ID means
	running     bool // READY or RUNNING
	createdAt   int64
	created     bool // a container that was not started yet
	annotations map[string]string
}

func (o object) is(what string) bool {
	return !o.old && (o.name == what || o.path == what || o.full == what)
}

func (o object) kind() string {
	if o.pod {
		return "pod"
	}
	return "container"
}

// resolve finds the one container or pod that a name, or the beginning of an ID, means. A container
// may also be named POD/NAME or NAMESPACE/POD/NAME, and a pod NAMESPACE/NAME. Of several attempts
// of one container or pod, the name means the latest. Where pods are not asked for, a pod stands
// for its container, if it has one alone, or one alone that runs.
func resolve(ctx context.Context, c *client.Client, what string, pods, containers bool) (object, error) {
	if what == "" {
		return object{}, errors.New("the name or ID is empty")
	}
	all, err := objects(ctx, c, containers)
	if err != nil {
		return object{}, err
	}
	return pick(all, what, pods)
}

// resolveIn finds a container by its name, or by the name of its pod and its own.
func resolveIn(ctx context.Context, c *client.Client, what, container string) (object, error) {
	if container == "" {
		return resolve(ctx, c, what, false, true)
	}
	pod, err := resolve(ctx, c, what, true, false)
	if err != nil {
		return object{}, err
	}
	all, err := objects(ctx, c, true)
	if err != nil {
		return object{}, err
	}
	for _, o := range containersOf(all, pod.id) {
		if o.name == container {
			return o, nil
		}
	}
	return object{}, fmt.Errorf("pod %s has no container %s; `berth ps -a` lists those that it has", pod.path, container)
}

// resolveRunning is resolveIn for a command in a container. Of a pod with several containers that
// run it takes the first one that was made, as kubectl does, and says so.
func resolveRunning(ctx context.Context, c *client.Client, what, container string, w io.Writer) (object, error) {
	o, err := resolveIn(ctx, c, what, container)
	if err == nil || container != "" {
		return o, err
	}
	pod, perr := resolve(ctx, c, what, true, false)
	all, aerr := objects(ctx, c, true)
	if perr != nil || aerr != nil {
		return o, err
	}
	cts := slices.DeleteFunc(containersOf(all, pod.id), func(o object) bool { return !o.running })
	if len(cts) == 0 {
		return o, err
	}
	first := slices.MinFunc(cts, func(a, b object) int { return cmp.Compare(a.createdAt, b.createdAt) })
	names := make([]string, 0, len(cts))
	for _, ct := range cts {
		names = append(names, ct.name)
	}
	slices.Sort(names)
	fmt.Fprintf(w, "container %s, the first of %s; -c names another one\n", first.name, strings.Join(names, ", "))
	return first, nil
}

// objects lists the pods, and the containers if they are wanted, too.
func objects(ctx context.Context, c *client.Client, containers bool) ([]object, error) {
	sandboxes, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	items := slices.Clone(sandboxes.GetItems())
	// running ones first, and then the latest
	slices.SortStableFunc(items, func(a, b *runtimeapi.PodSandbox) int {
		return cmp.Or(
			cmp.Compare(a.GetState(), b.GetState()), // READY is 0
			cmp.Compare(b.GetCreatedAt(), a.GetCreatedAt()),
			cmp.Compare(b.GetMetadata().GetAttempt(), a.GetMetadata().GetAttempt()))
	})
	var all []object
	podOf, named := map[string]object{}, map[string]bool{}
	for _, p := range items {
		m := p.GetMetadata()
		path := m.GetNamespace() + "/" + m.GetName()
		ready := p.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
		o := object{
			id:          p.GetId(),
			name:        m.GetName(),
			path:        path,
			full:        path,
			podID:       p.GetId(),
			pod:         true,
			old:         named[path] && !ready, // two that are READY are ambiguous
			running:     ready,
			annotations: p.GetAnnotations(),
		}
		named[path], podOf[o.id] = true, o
		all = append(all, o)
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
	for _, ct := range cts {
		p, name := podOf[ct.GetPodSandboxId()], ct.GetMetadata().GetName()
		key := ct.GetPodSandboxId() + "/" + name
		all = append(all, object{
			id:          ct.GetId(),
			name:        name,
			path:        p.name + "/" + name,
			full:        p.path + "/" + name,
			podID:       ct.GetPodSandboxId(),
			attempt:     ct.GetMetadata().GetAttempt(),
			createdAt:   ct.GetCreatedAt(),
			created:     ct.GetState() == runtimeapi.ContainerState_CONTAINER_CREATED,
			old:         named[key] || p.old,
			running:     ct.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING,
			annotations: ct.GetAnnotations(),
		})
		named[key] = true
	}
	return all, nil
}

// pick chooses among the objects. A whole ID takes precedence over a name, and a name over the
// beginning of an ID. Without pods, a pod stands for its container.
func pick(all []object, what string, pods bool) (object, error) {
	var found []object
	var several []object // pods in which the container is ambiguous
	for _, match := range []func(o object) bool{
		func(o object) bool { return o.id == what },
		func(o object) bool { return o.is(what) },
		func(o object) bool { return strings.HasPrefix(o.id, what) },
	} {
		for _, o := range all {
			switch {
			case !match(o):
			case !o.pod || pods:
				found = append(found, o)
			default:
				if ct, ok := only(all, o.id); ok {
					found = append(found, ct)
				} else {
					several = append(several, o)
				}
			}
		}
		if len(found)+len(several) > 0 {
			break
		}
	}
	slices.SortFunc(found, func(a, b object) int { return cmp.Or(strings.Compare(a.full, b.full), strings.Compare(a.id, b.id)) })
	found = slices.CompactFunc(found, func(a, b object) bool { return a.id == b.id })
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return object{}, fmt.Errorf("%q is ambiguous: it may be %s; use a longer name or an ID", what, listed(found))
	case len(several) > 0:
		return object{}, severalContainers(all, several[0])
	}
	return object{}, fmt.Errorf("no container or pod is named %q or has an ID that begins with it; `berth ps -a` and `berth pods` list them", what)
}

// only returns the container that a pod stands for: the one that runs, or else the only one.
func only(all []object, pod string) (object, bool) {
	cts := containersOf(all, pod)
	if run := slices.DeleteFunc(slices.Clone(cts), func(o object) bool { return !o.running }); len(run) > 0 {
		cts = run
	}
	if len(cts) != 1 {
		return object{}, false
	}
	return cts[0], true
}

// containersOf returns the latest attempts of the containers of a pod.
func containersOf(all []object, pod string) []object {
	var cts []object
	named := map[string]bool{}
	for _, o := range all { // the latest attempt of each comes first
		if !o.pod && o.podID == pod && !named[o.name] {
			named[o.name] = true
			cts = append(cts, o)
		}
	}
	return cts
}

// severalContainers is the error for a pod that does not stand for one container.
func severalContainers(all []object, pod object) error {
	cts := containersOf(all, pod.id)
	if len(cts) == 0 {
		return fmt.Errorf("pod %s has no container", pod.path)
	}
	return fmt.Errorf("pod %s has %d containers: %s; name one", pod.path, len(cts), listed(cts))
}

// listed names objects in one line.
func listed(list []object) string {
	names := make([]string, 0, len(list))
	for _, o := range list {
		names = append(names, fmt.Sprintf("%s %s (%s)", o.kind(), short(o.id), o.full))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
