// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
	facts      map[string]fact // by the ID of a pod or of a container that has ended
	disk       *berthv1.DiskResponse
	diskAt     time.Time
}

// fact is an answer that does not change, and is asked for once.
type fact struct {
	ip     string
	code   int32
	reason string
}

// diskEvery is how often the disk is measured.
const diskEvery = 30 * time.Second

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
	l := &page.Live{At: time.Now(), Node: machine("/proc"), Pods: []page.PodUse{}, Held: []page.Held{}}
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
	known := c.facts
	c.facts = map[string]fact{}
	once := func(id string, ask func() (fact, error)) (f fact, ok bool) {
		if f, ok = known[id]; !ok {
			var err error
			f, err = ask()
			ok = err == nil
		}
		if ok {
			c.facts[id] = f
		}
		return f, ok
	}
	pods, rowOf := map[string]*page.PodUse{}, map[string]string{} // by row; by the ID of a sandbox
	ask("The list of pods", func(ctx context.Context) error {
		list, err := c.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		for _, p := range list.GetItems() {
			name := p.GetMetadata().GetNamespace() + "/" + p.GetMetadata().GetName()
			rowOf[p.GetId()] = name
			ready := p.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
			if pods[name] == nil {
				pods[name] = &page.PodUse{Row: name}
			}
			use := pods[name]
			if use.ID == "" || ready {
				use.ID, use.Created = p.GetId(), time.Unix(0, p.GetCreatedAt())
			}
			if ready {
				use.Ready = true
				l.Node.PodsReady++
				f, _ := once(p.GetId(), func() (fact, error) {
					st, err := c.client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.GetId()})
					return fact{ip: st.GetStatus().GetNetwork().GetIp()}, err
				})
				use.IP = f.ip
			}
		}
		return err
	})
	c.containers(ask, once, pods, rowOf, l)
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
	if time.Since(c.diskAt) > diskEvery {
		c.diskAt = time.Now()
		ask("The disk", func(ctx context.Context) (err error) {
			c.disk, err = c.client.Node.Disk(ctx, &berthv1.DiskRequest{})
			if client.IsUnimplemented(err) { // another runtime
				return nil
			}
			return err
		})
	}
	l.Node.DiskTotal, l.Node.DiskFree = c.disk.GetTotal(), c.disk.GetFree()
	return l
}

// containers asks for the state of containers, and for their resource use. Of those with one name
// in a pod it takes the latest.
func (c *collector) containers(
	ask func(string, func(context.Context) error),
	once func(string, func() (fact, error)) (fact, bool),
	pods map[string]*page.PodUse,
	rowOf map[string]string,
	l *page.Live,
) {
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
			if i >= 0 && ct.GetCreatedAt() < newest[key] {
				continue
			}
			use := page.ContainerUse{Name: name, ID: ct.GetId(), State: state, Restarts: ct.GetMetadata().GetAttempt()}
			use.Image = cmp.Or(ct.GetImage().GetUserSpecifiedImage(), ct.GetImage().GetImage())
			if ct.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
				f, ok := once(ct.GetId(), func() (fact, error) {
					st, err := c.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: ct.GetId()})
					return fact{code: st.GetStatus().GetExitCode(), reason: st.GetStatus().GetReason()}, err
				})
				if ok {
					use.Code, use.Reason = &f.code, f.reason
				}
			}
			if i < 0 {
				i = len(p.Containers)
				p.Containers = append(p.Containers, use)
			}
			p.Containers[i] = use
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

// machine reads the kernel's figures of the machine that the socket is on, from /proc. Unknown ones
// are 0.
func machine(proc string) (n page.NodeUse) {
	n.CPUs = runtime.NumCPU()
	fields := func(name, line string) []string { // of the line that begins with a word, or of the first
		b, _ := os.ReadFile(filepath.Join(proc, name)) // an older kernel lacks some
		for l := range strings.Lines(string(b)) {
			if f := strings.Fields(l); len(f) > 1 && (line == "" || f[0] == line) {
				return f
			}
		}
		return []string{"", ""}
	}
	n.Load1, _ = strconv.ParseFloat(fields("loadavg", "")[0], 64)
	kib := func(line string) uint64 {
		v, _ := strconv.ParseUint(fields("meminfo", line)[1], 10, 64)
		return v << 10
	}
	n.MemTotal, n.MemFree = kib("MemTotal:"), kib("MemAvailable:")
	for _, what := range []string{"cpu", "memory", "io"} {
		f := fields("pressure/"+what, "some")
		if v, err := strconv.ParseFloat(strings.TrimPrefix(f[min(2, len(f)-1)], "avg60="), 64); err == nil {
			if n.Pressure == nil {
				n.Pressure = map[string]float64{}
			}
			n.Pressure[what] = v
		}
	}
	return n
}

// whyOf asks for the answer of `berth why` about a pod, in sentences.
func whyOf(c *client.Client) func(ctx context.Context, row string) ([]string, error) {
	return func(ctx context.Context, row string) ([]string, error) {
		r, err := c.Node.Why(ctx, &berthv1.WhyRequest{Id: row})
		if err != nil {
			return nil, client.Explain(err)
		}
		said := []string{readable(r.GetWhat()), readable(r.GetWhy()), readable(r.GetBefore())}
		if now := readable(r.GetNow()); now != "" {
			said = append(said, "Now: "+now+".")
		}
		return slices.DeleteFunc(said, func(s string) bool { return s == "" }), nil
	}
}

// explainRows adds the answers of `berth why`, as far as they come in time.
func explainRows(ctx context.Context, c *client.Client, m *page.Model) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	ask := whyOf(c)
	for i, r := range m.Rows {
		m.Rows[i].Why, _ = ask(ctx, r.Name) // a report without is complete, too
	}
}

// logLines is how many lines of a log are shown before those that follow.
const logLines = 500

// logOf writes the end of the log of a container, and follows it until the container ends.
func logOf(c *client.Client) func(ctx context.Context, id string, w io.Writer) error {
	return func(ctx context.Context, id string, w io.Writer) error {
		o := logOptions{follow: true, stamps: true, tail: logLines, out: w, err: w}
		if err := containerLog(ctx, c, object{id: id, name: short(id)}, o); err != nil {
			return client.Explain(err)
		}
		return nil
	}
}
