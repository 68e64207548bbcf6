// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
)

const (
	// rulesInterval is how often the kernel is asked whether the rules of the host have changed.
	rulesInterval = 5 * time.Second
	// checkInterval is the time between two checks of other programs' networks, whose plug-ins start
	// several programs for each pod: kube-proxy and its like change rules all the time.
	checkInterval = time.Minute
	// mendTimeout is how long the plug-ins of one pod may take.
	mendTimeout = 30 * time.Second
)

// Notes receives the changes of pods' host ports.
type Notes interface {
	// HostPortsRestored is called once rules are there again that another program had removed.
	HostPortsRestored(podID string)
	// HostPortsLost is called if rules are gone and berth cannot add them.
	HostPortsLost(podID string, err error)
}

// published are the connected pods that have host ports.
type published struct {
	mu   sync.Mutex
	pods map[string]*publication
	// unknown is set if a pod was restored whose rules were not looked for since.
	unknown bool
	// unchecked is set if a pod came whose network was not checked since.
	unchecked bool
	// shared are the rules that all pods of berth's own bridge need, once one was published.
	shared ruleSet
}

// publication is one of these pods. Its lock is held while its rules are made or removed, so that
// none are made for a pod that is being disconnected: they would lead to the pod that gets its
// address next.
type publication struct {
	mu     sync.Mutex
	pod    Pod
	result Result
	rules  ruleSet // those of the pod on berth's own bridge; nil if they are not known
	ended  bool    // the pod is being disconnected
	sound  bool    // the last CHECK of another program's network found the rules
}

// Restore takes a pod that an earlier berth connected, so that its host ports are looked after. It
// is called before any other call for that pod.
func (n *Network) Restore(p Pod, connected Result) {
	if own := n.handlers[p.Handler]; own != nil {
		n = own
	}
	if len(p.Ports) > 0 {
		n.published.add(&publication{pod: p, result: connected}, true)
	}
}

// publish takes a pod with host ports that was just connected, by berth's own bridge or not.
func (n *Network) publish(ctx context.Context, p Pod, connected Result, own bool) {
	pub := &publication{pod: p, result: connected}
	if own {
		if err := n.noteRules(ctx, []*publication{pub}); err != nil {
			n.cfg.Logger.Warn("rules of host ports not read, they are added again at the next look", "pod", p.ID, "err", err)
		}
	}
	n.published.add(pub, false)
}

func (p *published) add(pub *publication, restored bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pods == nil {
		p.pods = map[string]*publication{}
	}
	p.pods[pub.pod.ID] = pub
	p.unknown = p.unknown || restored
	p.unchecked = true
}

// withdraw ends the care for the host ports of a pod. Once it returns no rules are made for it.
func (n *Network) withdraw(id string) {
	n.published.mu.Lock()
	p := n.published.pods[id]
	delete(n.published.pods, id)
	n.published.mu.Unlock()
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}

// take reports whether a flag of p is set, and clears it.
func (p *published) take(flag *bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := *flag
	*flag = false
	return was
}

// sharedRules returns the rules that all pods need.
func (p *published) sharedRules() ruleSet {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.shared)
}

// all returns the publications in the order of the IDs.
func (p *published) all() (list []*publication) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(p.pods)) {
		list = append(list, p.pods[id])
	}
	return list
}

// watchRules asks the kernel at intervals whether the rules of the host have changed, and then
// looks for those of berth's own bridge and of pods with host ports, until ctx ends. The first look
// is at once, because rules may have been removed while berth was away.
func (n *Network) watchRules(ctx context.Context, notes Notes) {
	t := time.NewTicker(rulesInterval)
	defer t.Stop()
	var last looks
	reported := false
	for {
		mark, err := firewallMark()
		if err != nil && !reported {
			n.cfg.Logger.Warn("changes of the host's firewall not noticed, retrying", "err", err)
		}
		reported = err != nil
		if err == nil {
			n.look(ctx, mark, &last, notes)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// looks are the marks of the firewall at the last looks that need not be repeated.
type looks struct {
	mended, checked string
	checkedAt       time.Time
}

// look mends the rules and checks the networks if they may have changed since the last look. mark
// is the present mark of the firewall.
func (n *Network) look(ctx context.Context, mark string, last *looks, notes Notes) {
	if n.published.take(&n.published.unknown) || mark != last.mended {
		last.mended = mark
		if !n.mend(ctx, notes) {
			last.mended = "" // it is tried again
		}
	}
	if time.Since(last.checkedAt) >= checkInterval && (n.published.take(&n.published.unchecked) || mark != last.checked) {
		asked, answered := n.check(ctx, notes)
		if asked {
			last.checkedAt = time.Now()
		}
		if last.checked = mark; !answered {
			last.checked = ""
		}
	}
}

// mend adds the rules of berth's own bridge that are missing, those of host ports included. It
// returns false if it has to be called again, because an attempt failed.
func (n *Network) mend(ctx context.Context, notes Notes) bool {
	b := n.cfg.Default
	if b == nil || !b.exists() {
		return true
	}
	err := errors.Join(b.masquerade(ctx), b.guardAgain(ctx))
	if pods := n.published.all(); len(pods) > 0 {
		now, listErr := portRules(ctx)
		err = errors.Join(err, listErr)
		if listErr == nil {
			again := !now.has(n.published.sharedRules())
			var added []*publication
			for _, p := range pods {
				is, perr := n.publishAgain(ctx, p, now, again, notes)
				if is {
					added = append(added, p)
				}
				err = errors.Join(err, perr)
			}
			err = errors.Join(err, n.noteRules(ctx, added))
		}
	}
	if err != nil && ctx.Err() == nil {
		n.cfg.Logger.Warn("rules of the bridge not restored, retrying", "bridge", b.Name, "err", err)
	}
	return err == nil
}

// publishAgain has the portmap plug-in add the rules of a pod if some are missing, or if it is told
// that some are that all pods need. It does nothing for a pod of another program's network. The
// other plug-ins are not called, because the pod has its interface. It reports whether there may be
// other rules of the pod now: see noteRules.
func (n *Network) publishAgain(ctx context.Context, p *publication, now ruleSet, again bool, notes Notes) (added bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list, err := libcni.NetworkConfFromBytes(p.result.Conf)
	if p.ended || err != nil || !n.cfg.Default.made(list) {
		return false, nil //nolint:nilerr // the network of another program: see check
	}
	missing := again || p.rules != nil && !now.has(p.rules)
	if p.rules != nil && !missing {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, mendTimeout)
	defer cancel()
	if !missing { // an earlier berth published it
		missing = n.portmap(ctx, "CHECK", list, p) != nil
	}
	if err := n.portmap(ctx, "ADD", list, p); err != nil {
		if ctx.Err() == nil {
			notes.HostPortsLost(p.pod.ID, err)
		}
		return false, fmt.Errorf("pod %s: %w", p.pod.ID, err)
	}
	if missing {
		notes.HostPortsRestored(p.pod.ID)
	}
	return true, nil
}

// noteRules takes note of the rules of pods that were just published. If a pod has none, another
// program has removed them meanwhile, and they are to be added again.
func (n *Network) noteRules(ctx context.Context, pods []*publication) (err error) {
	if len(pods) == 0 {
		return nil
	}
	now, err := portRules(ctx)
	if err != nil {
		return err
	}
	for _, p := range pods {
		p.mu.Lock()
		if p.rules = now.of(p.pod.ID); len(p.rules) == 0 && !p.ended {
			p.rules = nil
			err = errors.Join(err, fmt.Errorf("pod %s: the rules of its host ports are gone again", p.pod.ID))
		}
		p.mu.Unlock()
	}
	n.published.mu.Lock()
	defer n.published.mu.Unlock()
	if n.published.shared == nil {
		n.published.shared = ruleSet{}
	}
	maps.Copy(n.published.shared, now.shared())
	return err
}

// portmap calls the portmap plug-in of a list for a connected pod.
func (n *Network) portmap(ctx context.Context, verb string, list *libcni.NetworkConfigList, p *publication) error {
	rt, err := runtimeConf(p.pod)
	if err != nil {
		return err
	}
	for _, plugin := range list.Plugins {
		if plugin.Network.Type != portmap {
			continue
		}
		conf, err := libcni.InjectConf(plugin, map[string]any{
			"name":          list.Name,
			"cniVersion":    list.CNIVersion,
			"prevResult":    p.result.Raw,
			"runtimeConfig": map[string]any{capabilityPorts: rt.CapabilityArgs[capabilityPorts]},
		})
		if err != nil {
			return err
		}
		path, err := n.exec.FindInPath(portmap, n.cfg.BinDirs)
		if err != nil {
			return err
		}
		args := &invoke.Args{
			Command:     verb,
			ContainerID: rt.ContainerID,
			NetNS:       rt.NetNS,
			IfName:      rt.IfName,
			PluginArgs:  rt.Args,
			Path:        strings.Join(n.cfg.BinDirs, ":"),
		}
		if verb == "ADD" {
			_, err = invoke.ExecPluginWithResult(ctx, path, conf.Bytes, args, n.exec)
		} else {
			err = invoke.ExecPluginWithoutResult(ctx, path, conf.Bytes, args, n.exec)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// check asks the plug-ins of other programs' networks whether the pods with host ports are still
// connected as they were (CHECK), and reports a pod that is not any more. berth cannot connect it
// again, because only its network knows how. A pod whose plug-ins have never found it sound is not
// reported, because some fail at any CHECK. asked is false if there was no pod to check, and
// answered if a check was cut off.
func (n *Network) check(ctx context.Context, notes Notes) (asked, answered bool) {
	answered = true
	for _, p := range n.published.all() {
		list, err := libcni.NetworkConfFromBytes(p.result.Conf)
		if err != nil || n.cfg.Default != nil && n.cfg.Default.made(list) {
			continue
		}
		asked = true
		answered = n.checkPod(ctx, list, p, notes) && answered
	}
	return asked, answered
}

func (n *Network) checkPod(ctx context.Context, list *libcni.NetworkConfigList, p *publication, notes Notes) (answered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	rt, err := runtimeConf(p.pod)
	if p.ended || err != nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, mendTimeout)
	defer cancel()
	err = n.cni.CheckNetworkList(ctx, needed(list, p.pod), rt)
	if err != nil && (ctx.Err() != nil || unread(err)) {
		return false // it could not be asked
	}
	if err != nil && p.sound {
		notes.HostPortsLost(p.pod.ID, err)
	}
	p.sound = err == nil
	return true
}
