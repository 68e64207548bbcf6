// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/base/exit"
)

// nodePort is the port of the Service web.
const nodePort = 30080

// row holds a user's observations of one action on the cluster.
type row struct {
	what             string
	took             time.Duration
	requests, failed int           // of the Service web
	slowest          time.Duration // of those that were answered
	calls, refused   int           // of the API server
	execs, broken    int           // of kubectl exec
	restarts         int           // of containers, as kubectl counts them
	ended            int           // that many of them came after an end; others had not begun to run
	unready          []string      // the pods that were Ready and then were not
	longest          time.Duration // that one of them was not
	replaced         int           // pods that were there at the beginning, and are gone or have to go
	away             []string      // nodes that were not Ready
	problems         []string
}

// user calls the Service web through nodes, each time with a connection of its own, and looks at
// the pods and nodes, until he is done.
type user struct {
	c      *cluster
	begin  time.Time
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	row   row
	pods  map[types.UID]*sighting
	first []types.UID // the pods that were there at the beginning
}

// sighting is a user's observation of a pod.
type sighting struct {
	name             string
	before, restarts int
	doomed           bool // it was being deleted when it was first seen
	wasReady         bool
	since            time.Time // since when it is not Ready; zero if it is, or never was
}

// watch begins to use the cluster through some nodes. It returns once all of them have answered.
func (c *cluster) watch(what string, through ...*member) *user {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	u := &user{c: c, cancel: cancel, row: row{what: what}, pods: map[types.UID]*sighting{}}
	for _, m := range through {
		c.until("the Service answers through "+m.name, func() error {
			_, err := u.call(ctx, m)
			return err
		})
	}
	u.begin = time.Now()
	u.look()
	for uid, s := range u.pods {
		if !s.doomed {
			u.first = append(u.first, uid)
		}
	}
	for _, m := range through {
		u.wg.Go(func() { u.every(ctx, 100*time.Millisecond, func() { u.visit(ctx, m) }) })
	}
	u.wg.Go(func() { u.every(ctx, 300*time.Millisecond, u.look) })
	u.wg.Go(func() { u.every(ctx, time.Second, func() { u.exec(ctx) }) })
	c.t.Cleanup(func() { // where the test ends early
		cancel()
		u.wg.Wait()
	})
	return u
}

// done ends the use, and puts the user's observations into the table.
func (u *user) done() row {
	u.c.t.Helper()
	u.cancel()
	u.wg.Wait()
	u.row.took = time.Since(u.begin)
	for _, s := range u.pods {
		u.row.restarts += s.restarts - s.before
		if !s.since.IsZero() {
			u.row.longest = max(u.row.longest, time.Since(s.since))
		}
	}
	pods, err := u.c.pods("", "")
	if err != nil {
		u.c.t.Error(err)
	}
	for _, uid := range u.first {
		if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.UID == uid && p.DeletionTimestamp == nil }) {
			u.row.replaced++
		}
	}
	u.c.table = append(u.c.table, u.row)
	for _, p := range u.row.problems {
		u.c.t.Log(p)
	}
	return u.row
}

// enough waits until the user has called the Service that many times more.
func (u *user) enough(more int) {
	u.c.t.Helper()
	u.mu.Lock()
	before := u.row.requests
	u.mu.Unlock()
	u.c.until(fmt.Sprintf("the user has called %d times", more), func() error {
		u.mu.Lock()
		defer u.mu.Unlock()
		if n := u.row.requests - before; n < more {
			return fmt.Errorf("%d calls", n)
		}
		return nil
	})
}

func (u *user) every(ctx context.Context, d time.Duration, do func()) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// call asks the Service through a node.
func (u *user) call(ctx context.Context, m *member) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:%d/", m.host.Address, nodePort), http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := once.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("answered %s", resp.Status)
	}
	return string(b), err
}

// once makes a connection for each request.
var once = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func (u *user) visit(ctx context.Context, m *member) {
	begin := time.Now()
	_, err := u.call(ctx, m)
	if ctx.Err() != nil {
		return // cut off by the end
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.row.requests++
	if err != nil {
		u.row.failed++
		u.problem(begin, "through %s: %v", m.name, err)
		return
	}
	u.row.slowest = max(u.row.slowest, time.Since(begin))
}

// problem notes a problem with an action that began at begin.
func (u *user) problem(begin time.Time, format string, args ...any) {
	u.row.problems = append(u.row.problems, begin.Sub(u.begin).Round(100*time.Millisecond).String()+": "+fmt.Sprintf(format, args...))
}

// exec runs a command in the pod client.
func (u *user) exec(ctx context.Context) {
	begin := time.Now()
	out, err := u.c.command(ctx, "exec", "client", "--", "echo", "hello").CombinedOutput()
	if ctx.Err() != nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.row.execs++
	if err != nil || string(out) != "hello\n" {
		u.row.broken++
		u.problem(begin, "kubectl exec: %v: %q", err, out)
	}
}

// look looks at the pods and nodes. Pods of jobs come and go, so they are left out.
func (u *user) look() {
	begin := time.Now()
	pods, err := u.c.pods("", "")
	var nodes corev1.NodeList
	if err == nil {
		err = u.c.get("/api/v1/nodes", &nodes)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.row.calls++
	if err != nil {
		u.row.refused++
		u.problem(begin, "the API server: %v", err)
		return
	}
	for i := range nodes.Items {
		if n := &nodes.Items[i]; !nodeReady(n) && !slices.Contains(u.row.away, n.Name) {
			u.row.away = append(u.row.away, n.Name)
			u.problem(begin, "node %s is not Ready: %+v", n.Name, n.Status.Conditions)
		}
	}
	early := len(u.pods) == 0
	for i := range pods {
		p := &pods[i]
		if slices.ContainsFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Job" }) {
			continue
		}
		restarts := 0
		for j := range p.Status.ContainerStatuses {
			restarts += int(p.Status.ContainerStatuses[j].RestartCount)
		}
		s := u.pods[p.UID]
		if s == nil {
			s = &sighting{name: p.Name, doomed: p.DeletionTimestamp != nil}
			if early {
				s.before = restarts
			}
			u.pods[p.UID] = s
		}
		if restarts > max(s.restarts, s.before) {
			u.restarted(p)
		}
		s.restarts = max(s.restarts, restarts)
		s.saw(&u.row, podReady(p), p.DeletionTimestamp != nil)
	}
}

// restarted notes that a container of a pod was made anew. One that had not begun to run, because
// berth was killed while it was started, has no last state, or one that shows this.
func (u *user) restarted(p *corev1.Pod) {
	last := "it had not begun to run"
	for i := range p.Status.ContainerStatuses {
		if end := p.Status.ContainerStatuses[i].LastTerminationState.Terminated; end != nil && end.Reason != exit.ReasonStartError {
			last = fmt.Sprintf("it had ended with %d, %s", end.ExitCode, end.Reason)
			u.row.ended++
		}
	}
	u.problem(time.Now(), "a container of %s on %s was made anew: %s", p.Name, p.Spec.NodeName, last)
}

// saw notes whether a pod is Ready. One that is being deleted need not be.
func (s *sighting) saw(r *row, ready, deleted bool) {
	switch {
	case ready || deleted:
		if !s.since.IsZero() {
			r.longest = max(r.longest, time.Since(s.since))
		}
		s.since = time.Time{}
		s.wasReady = s.wasReady || ready
	case s.wasReady && s.since.IsZero():
		s.since = time.Now()
		if !slices.Contains(r.unready, s.name) {
			r.unready = append(r.unready, s.name)
			r.problems = append(r.problems, s.since.Format(time.TimeOnly)+": the pod "+s.name+" is not Ready")
		}
	}
}

// print writes the table, also to build/cluster.
func (c *cluster) print(title string) {
	var b strings.Builder
	fmt.Fprintf(&b, "The kubelets know of pods from %s.\n", title)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT A USER NOTICED OF\tTOOK\tREQUESTS\tFAILED\tSLOWEST\tAPI CALLS\tFAILED\tEXECS\tFAILED\tRESTARTS\tOF WHAT RAN\tPODS NOT READY\tFOR\tPODS REPLACED\tNODES NOT READY")
	for i := range c.table {
		r := &c.table[i]
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%d\t%d\n", r.what, r.took.Round(time.Second), r.requests, r.failed, r.slowest.Round(time.Millisecond),
			r.calls, r.refused, r.execs, r.broken, r.restarts, r.ended, len(r.unready), r.longest.Round(100*time.Millisecond), r.replaced, len(r.away))
	}
	if err := w.Flush(); err != nil {
		c.t.Error(err)
	}
	fmt.Print("\n", b.String(), "\n")
	if err := os.WriteFile(c.module+"/build/cluster/noticed-"+title+".txt", []byte(b.String()), 0o644); err != nil {
		c.t.Error(err)
	}
}
