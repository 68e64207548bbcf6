// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
	"berth/internal/nri"
	"berth/internal/pod"
	"berth/internal/spec"
	"berth/internal/version"
)

// openNRI makes the service of NRI plug-ins, if they are configured, before the controller whose
// hooks it is.
func (d *daemon) openNRI() error {
	c := d.cfg.NRI
	if !c.Enable {
		return nil
	}
	var err error
	d.nri, err = nri.New(nri.Config{
		Socket:              c.Socket,
		PluginDir:           c.PluginDir,
		PluginConfigDir:     c.PluginConfigDir,
		RequestTimeout:      time.Duration(c.RequestTimeout),
		RegistrationTimeout: time.Duration(c.RegistrationTimeout),
		Version:             version.String(),
		Pods:                extended{d},
		Spec:                d.ctrd.Spec,
		Update:              extended{d}.update,
		InjectCDI:           d.devices.Inject,
		Logger:              d.log.Logger,
	})
	return err
}

// specsPatience is how long plug-ins are not served because containerd, which has the specifications
// of the containers that they are synchronised with, is away.
const specsPatience = 10 * time.Second

// runNRI serves plug-ins once the records are restored, and closes d.admitted.
func (d *daemon) runNRI(ctx context.Context, g *group, restored <-chan struct{}) {
	if d.nri == nil {
		close(d.admitted)
		return
	}
	begun := make(chan struct{})
	g.Go("NRI plug-ins", func() error {
		select {
		case <-ctx.Done():
			close(begun)
			return nil
		case <-restored:
		}
		patience, cancel := context.WithTimeout(ctx, specsPatience)
		if err := d.core.Await(patience); err != nil && ctx.Err() == nil {
			d.log.Warn("NRI plug-ins learn of containers what their records say, since containerd is away", "err", err)
		}
		cancel()
		close(begun)
		persist(ctx, d.log, "serve NRI plug-ins", d.nri.Run)
		return nil
	})
	g.Go("registration of NRI plug-ins", func() error {
		defer close(d.admitted)
		<-begun
		if d.cfg.NRI.PluginDir != "" {
			awaitPlugins(ctx, d.nri.PluginsStarted(), d.log.Logger)
		}
		return nil
	})
}

// hooks are those of the controller; nil for none.
func (d *daemon) hooks() pod.Hooks {
	if d.nri == nil {
		return nil // a nil *nri.Service would not be a nil interface
	}
	return d.nri
}

// pluginsTimeout is how long the first pods wait for the NRI plug-ins that berth starts.
const pluginsTimeout = 3 * time.Second

// awaitPlugins waits until the NRI plug-ins that berth starts take part, so that no container is
// made past them. A plug-in that hangs does not keep pods from being made: the wait is bounded.
func awaitPlugins(ctx context.Context, started <-chan struct{}, log *slog.Logger) {
	t := time.NewTimer(pluginsTimeout)
	defer t.Stop()
	select {
	case <-started:
	case <-ctx.Done():
	case <-t.C:
		log.Warn("the NRI plug-ins that berth starts are not registered yet; containers may be made without them", "waited", pluginsTimeout)
	}
}

// extended is the controller as plug-ins work on it. It is made after them.
type extended struct{ d *daemon }

func (e extended) ListPodSandbox(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	return e.d.core.Pods.ListPodSandbox(f)
}

func (e extended) ListContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	return e.d.core.Pods.ListContainers(f)
}

func (e extended) Target(id string) (pod.Target, error) { return e.d.core.Pods.Target(id) }

func (e extended) StopContainer(ctx context.Context, id string, timeout time.Duration) error {
	return e.d.core.Pods.StopContainer(ctx, id, timeout)
}

func (e extended) update(ctx context.Context, id string, r *runtimeapi.LinuxContainerResources) error {
	return e.d.core.Pods.UpdateContainerResources(ctx, id, r)
}

// pods is the controller as CRI calls it: updates of resources go past the plug-ins first.
func (d *daemon) pods() cri.Pods {
	if d.nri == nil {
		return served{d.core.Pods, d}
	}
	return relaying{served{d.core.Pods, d}, d.nri}
}

// relaying is a controller in whose updates plug-ins take part.
type relaying struct {
	served
	plugins *nri.Service
}

// UpdateContainerResources changes what a container may use, as plug-ins have adjusted it.
func (r relaying) UpdateContainerResources(ctx context.Context, id string, asked *runtimeapi.LinuxContainerResources) error {
	t, err := r.Target(id)
	if err != nil || t.ID == t.PodID || spec.CheckResources(asked) != nil {
		return r.Controller.UpdateContainerResources(ctx, id, asked) // it says what is wrong
	}
	adjusted, err := r.plugins.Updating(ctx, t, asked)
	if err != nil {
		return fmt.Errorf("update container %s: %w", t.ID, err)
	}
	if err := r.Controller.UpdateContainerResources(ctx, t.ID, adjusted); err != nil {
		return err
	}
	r.plugins.Updated(ctx, t, adjusted)
	return nil
}

// UpdatePodSandboxResources records the resources of a pod, which plug-ins may refuse.
func (r relaying) UpdatePodSandboxResources(ctx context.Context, id string, overhead, resources *runtimeapi.LinuxContainerResources) error {
	t, err := r.Target(id)
	if err != nil || t.ID != t.PodID || !t.Running {
		return r.Controller.UpdatePodSandboxResources(ctx, id, overhead, resources) // it says what is wrong
	}
	if err := r.plugins.UpdatingPod(ctx, t, overhead, resources); err != nil {
		return fmt.Errorf("update sandbox %s: %w", t.ID, err)
	}
	if err := r.Controller.UpdatePodSandboxResources(ctx, t.ID, overhead, resources); err != nil {
		return err
	}
	if t, err = r.Target(t.ID); err == nil { // it may have been removed meanwhile
		r.plugins.UpdatedPod(ctx, t)
	}
	return nil
}

// removed passes on that the record of something was deleted.
func (d *daemon) removed(id string) {
	if d.nri != nil {
		d.nri.Removed(id)
	}
}
