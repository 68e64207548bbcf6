// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"log/slog"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/asynclog"
	"berth/internal/base/retry"
	"berth/internal/base/version"
	"berth/internal/heart/pod"
	"berth/internal/serve/cri"
	"berth/internal/serve/nri"
)

// plugins are the NRI plug-ins of this node.
type plugins struct {
	*nri.Service               // nil if they are not configured
	starts       bool          // berth starts some of them
	begun        chan struct{} // closed once they are served
	admitted     chan struct{} // closed once those that berth starts take part, or are not waited for
}

// openPlugins makes the service of NRI plug-ins, if they are configured, before the controller
// whose hooks it is.
func openPlugins(b base, h host, e engine, pods *asked) (p plugins, err error) {
	p.begun, p.admitted = make(chan struct{}), make(chan struct{})
	c := b.cfg.NRI
	if !c.Enable {
		return p, nil
	}
	p.starts = c.PluginDir != ""
	p.Service, err = nri.New(nri.Config{
		Socket:              c.Socket,
		PluginDir:           c.PluginDir,
		PluginConfigDir:     c.PluginConfigDir,
		RequestTimeout:      time.Duration(c.RequestTimeout),
		RegistrationTimeout: time.Duration(c.RequestTimeout),
		Version:             version.String(),
		Clock:               b.clock,
		Pods:                func() nri.Pods { return pods },
		Spec:                e.ctrd.Spec,
		InjectCDI:           h.devices.Inject,
		Logger:              b.log.Logger,
	})
	return p, err
}

// specsPatience is how long plug-ins are not served because containerd, which has the
// specifications of the containers that they are synchronised with, is away.
const specsPatience = 10 * time.Second

// run serves plug-ins, once containerd, which link leads to, is there or has not come.
func (p plugins) run(ctx context.Context, link *link, log *asynclog.Log) error {
	if p.Service == nil {
		return nil
	}
	patience, cancel := context.WithTimeout(ctx, specsPatience)
	if err := link.await(patience); err != nil && ctx.Err() == nil {
		log.Warn("NRI plug-ins learn of containers what their records say, since containerd is away", "err", err)
	}
	cancel()
	close(p.begun)
	var watched sync.WaitGroup
	defer watched.Wait()
	watched.Go(func() {
		for was := ""; retry.Sleep(ctx.Done(), socketInterval); {
			text := p.Problem()
			if text != was && text != "" {
				log.Error(text)
			}
			was = text
		}
	})
	persist(ctx, log, "serve NRI plug-ins", p.Run)
	return nil
}

// admit lets pods be made once the plug-ins that berth starts take part.
func (p plugins) admit(ctx context.Context, log *slog.Logger) error {
	defer close(p.admitted)
	if p.Service == nil {
		return nil
	}
	select {
	case <-p.begun:
	case <-ctx.Done():
		return nil
	}
	if p.starts {
		awaitPlugins(ctx, p.PluginsStarted(), log)
	}
	return nil
}

// hooks returns the hooks into the life of pods; nil if there are no plug-ins.
func (p plugins) hooks() pod.Hooks {
	if p.Service == nil {
		return nil // a nil *nri.Service would not be a nil interface
	}
	return p.Service
}

// problem returns the reason why plug-ins are not served; "" if they are.
func (p plugins) problem() string {
	if p.Service == nil {
		return ""
	}
	return p.Problem()
}

// removed passes on that the record of something was deleted.
func (p plugins) removed(id string) {
	if p.Service != nil {
		p.Removed(id)
	}
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

// serve returns the controller as CRI calls it.
func (p plugins) serve(pods served) cri.Pods {
	if p.Service == nil {
		return pods
	}
	return relaying{pods, p.Service}
}

// relaying is a controller in whose updates plug-ins take part.
type relaying struct {
	served
	plugins *nri.Service
}

// UpdateContainerResources implements cri.Pods.
func (r relaying) UpdateContainerResources(ctx context.Context, id string, asked *runtimeapi.LinuxContainerResources) error {
	return r.plugins.UpdateContainer(ctx, id, asked)
}

// UpdatePodSandboxResources implements cri.Pods.
func (r relaying) UpdatePodSandboxResources(ctx context.Context, id string, overhead, resources *runtimeapi.LinuxContainerResources) error {
	return r.plugins.UpdatePod(ctx, id, overhead, resources)
}
