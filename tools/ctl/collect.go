// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
	"berth/internal/base/version"
	"berth/tools/page"
)

// liveTimeout is how long each question about how things are now may take. Unanswered questions are
// left out, and the page notes that.
const liveTimeout = 5 * time.Second

// collector asks the service for the content of the page. It is for one goroutine.
type collector struct {
	client     *client.Client
	since      time.Duration
	history    *page.History
	missing    string // the reason if the history could not be read
	unreadable int
}

func newCollector(c *client.Client, since time.Duration) *collector {
	return &collector{client: c, since: since, history: page.NewHistory()}
}

// model returns the whole model. It asks only for events since the last call.
func (c *collector) model(ctx context.Context) (page.Model, error) {
	from := time.Now().Add(-c.since)
	for {
		b, err := c.client.Node.Records(ctx, &berthv1.RecordsRequest{After: c.history.Last(), Since: timestamppb.New(from)})
		if client.IsUnimplemented(err) {
			return page.Model{}, fmt.Errorf("the service keeps no history that it can be asked for; it is an earlier berth, or another runtime: %w", err)
		}
		if err != nil {
			return page.Model{}, err
		}
		c.missing = b.GetMissing()
		for _, r := range b.GetRecords() {
			if err := c.history.Add(r); err != nil {
				c.unreadable++
			}
		}
		c.history.Seen(b.GetLast())
		if !b.GetMore() {
			break
		}
	}
	c.history.Forget(from)
	live := c.live(ctx)
	if err := ctx.Err(); err != nil {
		return page.Model{}, err
	}
	m := c.history.Model(page.Window{From: from, To: time.Now()}, live)
	m.Version = version.String()
	m.Host, _ = os.Hostname()
	if c.missing != "" {
		m.Missing = append(m.Missing, "The history is not complete: "+c.missing+".")
	}
	if c.unreadable > 0 {
		m.Missing = append(m.Missing, fmt.Sprintf("%d entries of the history could not be read.", c.unreadable))
	}
	return m, nil
}

// live asks how things are now.
func (c *collector) live(ctx context.Context) *page.Live {
	l := &page.Live{At: time.Now(), Pods: []page.PodUse{}, Held: []page.Held{}}
	ask := func(what string, f func(ctx context.Context) error) {
		ctx, cancel := context.WithTimeout(ctx, liveTimeout)
		defer cancel()
		if err := f(ctx); err != nil {
			l.Missing = append(l.Missing, fmt.Sprintf("%s could not be asked for: %v", what, client.Explain(err)))
		}
	}
	ask("Whether the node is ready", func(ctx context.Context) error {
		st, err := c.client.RuntimeServiceClient.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
		for _, cond := range st.GetStatus().GetConditions() {
			l.Conditions = append(l.Conditions, page.Condition{Name: cond.GetType(), Ready: cond.GetStatus(), Why: cond.GetMessage()})
		}
		_ = json.Unmarshal([]byte(st.GetInfo()["warnings"]), &l.Warnings) // another runtime has none
		return err
	})
	pods, rowOf := map[string]*page.PodUse{}, map[string]string{} // by row; by the ID of a sandbox
	ask("The list of pods", func(ctx context.Context) error {
		list, err := c.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		for _, p := range list.GetItems() {
			name := p.GetMetadata().GetNamespace() + "/" + p.GetMetadata().GetName()
			rowOf[p.GetId()] = name
			if pods[name] == nil {
				pods[name] = &page.PodUse{Row: name}
			}
			if p.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
				pods[name].Ready = true
				l.Node.PodsReady++
			}
		}
		return err
	})
	c.containers(ask, pods, rowOf, l)
	ask("What pods use", func(ctx context.Context) error {
		list, err := c.client.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
		for _, s := range list.GetStats() {
			p := pods[rowOf[s.GetAttributes().GetId()]]
			if p == nil {
				continue // it came meanwhile
			}
			p.NanoCores = number(s.GetLinux().GetCpu().GetUsageNanoCores())
			p.Memory = number(s.GetLinux().GetMemory().GetWorkingSetBytes())
			l.Node.NanoCores += s.GetLinux().GetCpu().GetUsageNanoCores().GetValue()
			l.Node.Memory += s.GetLinux().GetMemory().GetWorkingSetBytes().GetValue()
		}
		return err
	})
	ask("What is under way", func(ctx context.Context) error {
		list, err := askUnderWay(ctx, c.client)
		for _, o := range list {
			if o.GetSentence() == "" {
				continue
			}
			held := page.Held{
				ID:    o.GetId(),
				Kind:  o.GetKind(),
				Since: o.GetSince().AsTime(),
				Age:   o.GetAge().AsDuration().Seconds(),
				Tries: int(o.GetTries()),
				Err:   o.GetError(),
				Text:  strings.TrimPrefix(o.GetSentence(), nameOf(o)+" "),
			}
			if of := o.GetOf(); of.GetPod() != "" {
				held.Row, held.Container = of.GetNamespace()+"/"+of.GetPod(), of.GetContainer()
			}
			l.Held = append(l.Held, held)
		}
		return err
	})
	for _, p := range pods {
		l.Pods = append(l.Pods, *p)
	}
	slices.SortFunc(l.Pods, func(x, y page.PodUse) int { return strings.Compare(x.Row, y.Row) })
	machine(&l.Node)
	return l
}

// containers asks for the state of containers, and for their resource use. Of those with one name
// in a pod it takes the latest.
func (c *collector) containers(ask func(string, func(context.Context) error), pods map[string]*page.PodUse, rowOf map[string]string, l *page.Live) {
	type at struct {
		pod *page.PodUse
		i   int
	}
	byID := map[string]at{}
	ask("The list of containers", func(ctx context.Context) error {
		list, err := c.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		newest := map[string]int64{}
		for _, ct := range list.GetContainers() {
			p := pods[rowOf[ct.GetPodSandboxId()]]
			if p == nil {
				continue
			}
			state := strings.ToLower(strings.TrimPrefix(ct.GetState().String(), "CONTAINER_"))
			if state == "running" {
				l.Node.Running++
			}
			name := ct.GetMetadata().GetName()
			key := p.Row + "/" + name
			i := slices.IndexFunc(p.Containers, func(u page.ContainerUse) bool { return u.Name == name })
			switch {
			case i < 0:
				i = len(p.Containers)
				p.Containers = append(p.Containers, page.ContainerUse{Name: name, State: state})
			case ct.GetCreatedAt() < newest[key]:
				continue
			default:
				p.Containers[i] = page.ContainerUse{Name: name, State: state}
			}
			newest[key] = ct.GetCreatedAt()
			byID[ct.GetId()] = at{p, i}
		}
		return err
	})
	ask("What containers use", func(ctx context.Context) error {
		list, err := c.client.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
		for _, s := range list.GetStats() {
			a, ok := byID[s.GetAttributes().GetId()]
			if !ok || a.pod.Containers[a.i].State != "running" {
				continue
			}
			u := &a.pod.Containers[a.i]
			u.NanoCores = number(s.GetCpu().GetUsageNanoCores())
			u.Memory = number(s.GetMemory().GetWorkingSetBytes())
			u.Disk = number(s.GetWritableLayer().GetUsedBytes())
			if free := s.GetMemory().GetAvailableBytes(); free != nil && u.Memory != nil {
				limit := free.GetValue() + *u.Memory
				u.Limit = &limit
			}
		}
		return err
	})
}

// number returns a number of CRI, nil if it is not known.
func number(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	n := v.GetValue()
	return &n
}

// machine reads the kernel's figures of the machine that the socket is on. Unknown ones are 0.
func machine(n *page.NodeUse) {
	n.CPUs = runtime.NumCPU()
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		if f := strings.Fields(string(b)); len(f) > 0 {
			n.Load1, _ = strconv.ParseFloat(f[0], 64)
		}
	}
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseUint(f[1], 10, 64)
		switch f[0] {
		case "MemTotal:":
			n.MemTotal = kib << 10
		case "MemAvailable:":
			n.MemFree = kib << 10
		}
	}
}
