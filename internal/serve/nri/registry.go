// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"sync"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
)

// registry holds the pods and containers that plug-ins know: the list with which a new one is
// synchronised. The messages that it returns are not changed any more.
type registry struct {
	mu struct {
		sync.Mutex
		pods       map[string]*podEntry
		containers map[string]*api.Container
	}
}

type podEntry struct {
	pod   *api.PodSandbox
	ended bool
}

func newRegistry() *registry {
	r := &registry{}
	r.mu.pods, r.mu.containers = map[string]*podEntry{}, map[string]*api.Container{}
	return r
}

func (r *registry) addPod(p *api.PodSandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.pods[p.GetId()] = &podEntry{pod: p}
}

func (r *registry) pod(id string) *api.PodSandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.mu.pods[id]; e != nil {
		return e.pod
	}
	return nil
}

// changePod replaces a pod by a changed copy. One that is not known is left alone.
func (r *registry) changePod(id string, f func(*api.PodSandbox)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.mu.pods[id]; e != nil {
		e.pod = proto.Clone(e.pod).(*api.PodSandbox)
		f(e.pod)
	}
}

// endPod notes that a pod has ended. It returns nil if that was noted before, or if the pod is not
// known.
func (r *registry) endPod(id string) *api.PodSandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.mu.pods[id]
	if e == nil || e.ended {
		return nil
	}
	e.ended = true
	return e.pod
}

func (r *registry) addContainer(c *api.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.containers[c.GetId()] = c
}

// container returns a container; one that is not known has its ID alone.
func (r *registry) container(id string) *api.Container {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.mu.containers[id]; c != nil {
		return c
	}
	return &api.Container{Id: id}
}

// restored adds a container that an earlier berth has left, unless it is known.
func (r *registry) restored(c *api.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.containers[c.GetId()] == nil {
		r.mu.containers[c.GetId()] = c
	}
}

// change replaces a container by a changed copy, which it returns. One that is not known has its ID
// alone, and is not known afterwards either.
func (r *registry) change(id string, f func(*api.Container)) (c *api.Container, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c = &api.Container{Id: id}
	old := r.mu.containers[id]
	if old != nil {
		c = proto.Clone(old).(*api.Container)
		r.mu.containers[id] = c
	}
	f(c)
	return c, old != nil
}

// remove forgets a pod, or a container, which it returns with its pod. An unknown one is nil.
func (r *registry) remove(id string) (*api.PodSandbox, *api.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.mu.containers[id]; c != nil {
		delete(r.mu.containers, id)
		if e := r.mu.pods[c.GetPodSandboxId()]; e != nil {
			return e.pod, c
		}
		return &api.PodSandbox{Id: c.GetPodSandboxId()}, c
	}
	if e := r.mu.pods[id]; e != nil {
		delete(r.mu.pods, id)
		return e.pod, nil
	}
	return nil, nil
}

// all returns everything that has not ended.
func (r *registry) all() ([]*api.PodSandbox, []*api.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var pods []*api.PodSandbox
	var containers []*api.Container
	for _, e := range r.mu.pods {
		if !e.ended {
			pods = append(pods, e.pod)
		}
	}
	for _, c := range r.mu.containers {
		if c.GetState() != api.ContainerState_CONTAINER_STOPPED {
			containers = append(containers, c)
		}
	}
	return pods, containers
}
