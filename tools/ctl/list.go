// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
)

// listEvery is how often --watch looks again. The lists are served from memory.
const listEvery = 500 * time.Millisecond

// item is a line of ps or pods.
type item struct {
	common
	row      any // for programs: containerRow or podRow
	restarts uint32
	running  int // containers of a pod
	memory   uint64
	colour   func() string
	cells    func() map[string]string // by the names of the columns
	// asked of the service, for this item alone; it depends on the state
	complete func(ctx context.Context)
}

// name is the name by which commands take the item.
func (i item) name() string { return i.of + i.common.Name }

// common is what containers and pods of a list have in common. docs/api.md has the fields of both.
type common struct {
	ID          string            `json:"id"`
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	State       string            `json:"state"`
	CreatedAt   time.Time         `json:"createdAt,omitzero"`
	AgeSeconds  int64             `json:"ageSeconds"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`

	of      string // before the name: NAMESPACE/ or NAMESPACE/POD/
	created int64
}

// containerRow is a container of ps.
type containerRow struct {
	*common
	Pod              string    `json:"pod"`
	PodID            string    `json:"podId"`
	Image            string    `json:"image"`
	ImageID          string    `json:"imageId"`
	Restarts         uint32    `json:"restarts"`
	StartedAt        time.Time `json:"startedAt,omitzero"`
	FinishedAt       time.Time `json:"finishedAt,omitzero"`
	ExitCode         *int32    `json:"exitCode,omitempty"` // of one that has ended
	Reason           string    `json:"reason,omitempty"`
	Message          string    `json:"message,omitempty"`
	OOMKillsSurvived int       `json:"oomKillsSurvived"`
	OnRecord         bool      `json:"onRecord"` // false while the state is ENDED
	MemoryBytes      uint64    `json:"memoryBytes,omitempty"`
}

// podRow is a pod of pods.
type podRow struct {
	*common
	UID         string   `json:"uid"`
	Attempt     uint32   `json:"attempt"`
	Runtime     string   `json:"runtime"`
	IPs         []string `json:"ips"`
	Running     int      `json:"running"`
	Containers  int      `json:"containers"` // by their names: attempts count once
	Restarts    uint32   `json:"restarts"`
	OnRecord    bool     `json:"onRecord"`
	MemoryBytes uint64   `json:"memoryBytes,omitempty"`
}

// list is a list for programs.
type list struct {
	Items any `json:"items"`
}

func newCommon(id, namespace, name, of, state string, created int64, labels, annotations map[string]string) common {
	return common{
		ID:          id,
		Namespace:   namespace,
		Name:        name,
		State:       state,
		CreatedAt:   instant(created),
		AgeSeconds:  int64(time.Since(time.Unix(0, created)).Seconds()),
		Labels:      labels,
		Annotations: annotations,
		of:          of,
		created:     created,
	}
}

// instant returns the time of a number of nanoseconds since 1970; 0 is none.
func instant(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// lister is the common part of ps and pods.
type lister struct {
	app    *app
	header []string
	wide   []string // the columns of -o wide
	states []string // that --state takes
	usual  []string // the states of those that are listed without --all; none for all
	all    bool
	quiet  bool
	whole  bool // IDs and names are not cut
	sort   string
	labels []string
	space  string
	state  string
	watch  bool
	// ofContainers is set if it lists containers, and not pods
	ofContainers bool
	items        func(ctx context.Context, c *client.Client, labels map[string]string) ([]item, error)
}

// sorts are the orders of --sort. Equal items are in the order of names.
var sorts = map[string]func(a, b item) int{
	"name":     func(item, item) int { return 0 },
	"age":      func(a, b item) int { return cmp.Compare(b.created, a.created) },
	"state":    func(a, b item) int { return strings.Compare(a.State, b.State) },
	"restarts": func(a, b item) int { return cmp.Compare(b.restarts, a.restarts) },
	"memory":   func(a, b item) int { return cmp.Compare(b.memory, a.memory) },
}

func oneOf(words []string) cobra.CompletionFunc {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

func (l *lister) flags(cmd *cobra.Command) {
	orders := slices.Sorted(maps.Keys(sorts))
	states := strings.Join(l.states, ", ")
	cmd.Flags().StringVar(&l.sort, "sort", "", "sort by "+strings.Join(orders, ", ")+"; the youngest and the greatest first")
	cmd.Flags().StringSliceVarP(&l.labels, "label", "l", nil, "list only what has this label, KEY=VALUE; several must all be there")
	cmd.Flags().StringVarP(&l.space, "namespace", "n", "", "list only what is in this namespace")
	cmd.Flags().StringVar(&l.state, "state", "", "list only what is in this state: "+states)
	cmd.Flags().BoolVarP(&l.watch, "watch", "w", false, "go on, and print a line whenever something changes, until Ctrl-C")
	cmd.Flags().BoolVarP(&l.quiet, "quiet", "q", false, "print IDs alone, whole ones")
	cmd.Flags().BoolVar(&l.whole, "no-trunc", false, "cut neither IDs nor names")
	cmd.Flags().BoolP("all-namespaces", "A", false, "list all namespaces, as without --namespace")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	cmd.MarkFlagsMutuallyExclusive("quiet", "watch")
	_ = cmd.RegisterFlagCompletionFunc("sort", oneOf(orders))
	_ = cmd.RegisterFlagCompletionFunc("state", oneOf(l.states))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		labels, err := l.check()
		if err != nil {
			return err
		}
		return l.app.client(cmd, func(ctx context.Context, c *client.Client) error {
			if l.watch {
				return l.follow(ctx, c, cmd.OutOrStdout(), cmd.ErrOrStderr(), labels)
			}
			items, err := l.list(ctx, c, labels)
			if err != nil {
				return err
			}
			if err := l.print(ctx, cmd.OutOrStdout(), items); err != nil || l.app.output != "table" && l.app.output != "wide" || l.quiet {
				return err
			}
			under, _ := askUnderWay(ctx, c) // the list is complete without
			for _, s := range under.of(l.ofContainers).summary(underWayLines) {
				fmt.Fprintln(cmd.OutOrStdout(), oneLine(s))
			}
			return nil
		})
	}
}

// print prints items as the person asked.
func (l *lister) print(ctx context.Context, w io.Writer, items []item) error {
	switch {
	case l.quiet:
		for _, i := range items {
			fmt.Fprintln(w, i.ID)
		}
		return nil
	case l.app.output == "name":
		for _, i := range items {
			fmt.Fprintln(w, i.name())
		}
		return nil
	}
	rows := make([]any, 0, len(items))
	for _, i := range items {
		i.complete(ctx)
		rows = append(rows, i.row)
	}
	if l.app.output != "table" {
		return l.app.print(w, list{rows}, nil)
	}
	lines := []gridLine{{cells: l.header}}
	for _, i := range items {
		lines = append(lines, l.line(i))
	}
	return l.write(w, newGrid(w, l.header, l.names(), l.whole), lines)
}

// names are the columns that are cut on a narrow terminal.
func (l *lister) names() []string { return []string{"NAME", "POD", "IMAGE"} }

// line returns the line of an item.
func (l *lister) line(i item) gridLine {
	cells := i.cells()
	if !l.whole {
		for _, h := range []string{"CONTAINER", "POD ID", "IMAGE ID"} {
			if v, ok := cells[h]; ok {
				cells[h] = short(v)
			}
		}
	}
	out := gridLine{colour: i.colour()}
	for _, h := range l.header {
		out.cells = append(out.cells, cells[h])
	}
	return out
}

// write writes lines, which a grid has made visible ones, with their colours.
func (l *lister) write(w io.Writer, g *grid, lines []gridLine) error {
	_, err := io.WriteString(raw(w), g.format(lines))
	return err
}

// check reads the flags, and returns the labels that are wanted.
func (l *lister) check() (map[string]string, error) {
	labels := map[string]string{}
	for _, s := range l.labels {
		key, value, ok := strings.Cut(s, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("--label %q is not KEY=VALUE", s)
		}
		labels[key] = value
	}
	if l.sort != "" && sorts[l.sort] == nil {
		return nil, fmt.Errorf("--sort %q is not one of %s", l.sort, strings.Join(slices.Sorted(maps.Keys(sorts)), ", "))
	}
	if l.state != "" && !slices.Contains(l.states, strings.ToLower(l.state)) {
		return nil, fmt.Errorf("--state %q is not one of %s", l.state, strings.Join(l.states, ", "))
	}
	if l.app.output == "wide" {
		l.app.output, l.header = "table", l.wide
	}
	if l.sort == "memory" {
		l.header = append(slices.Clone(l.header), "MEMORY")
	}
	return labels, nil
}

// known returns everything that has the labels and is in the namespace, sorted.
func (l *lister) known(ctx context.Context, c *client.Client, labels map[string]string) ([]item, error) {
	items, err := l.items(ctx, c, labels)
	if err != nil {
		return nil, err
	}
	items = slices.DeleteFunc(items, func(i item) bool { return l.space != "" && i.Namespace != l.space })
	if by := sorts[l.sort]; by != nil {
		slices.SortStableFunc(items, func(a, b item) int { return cmp.Or(by(a, b), strings.Compare(a.name(), b.name())) })
	}
	return items, nil
}

// wanted reports whether an item is in a state that is to be listed.
func (l *lister) wanted(i item) bool {
	if l.state != "" {
		return strings.EqualFold(i.State, l.state)
	}
	return l.all || l.usual == nil || slices.Contains(l.usual, i.State)
}

func (l *lister) list(ctx context.Context, c *client.Client, labels map[string]string) ([]item, error) {
	items, err := l.known(ctx, c, labels)
	return slices.DeleteFunc(items, func(i item) bool { return !l.wanted(i) }), err
}

// removed is the state of an item that --watch has listed and that is gone.
const removed = "REMOVED"

// follow prints the listed items, and then every item that becomes listed or changes its state,
// until ctx ends. A listed item is followed to its removal. A service that does not answer is asked
// again: it may be restarted.
func (l *lister) follow(ctx context.Context, c *client.Client, w, errOut io.Writer, labels map[string]string) error {
	columns := newGrid(w, l.header, l.names(), l.whole)
	seen := map[string]item{}
	away := ""
	for first := true; ; first = false {
		items, err := l.known(ctx, c, labels)
		var changed []item
		switch {
		case ctx.Err() != nil:
			return nil // Ctrl-C is how it ends
		case err != nil && first:
			return err
		case err != nil:
			if text := client.Explain(err).Error(); text != away {
				fmt.Fprintf(errOut, "%s; trying again\n", text)
				away = text
			}
		default:
			away = ""
			changed = l.changes(seen, items)
		}
		lines := make([]gridLine, 0, len(changed)+1)
		if first {
			lines = append(lines, gridLine{cells: l.header})
		}
		for _, i := range changed {
			if i.State != removed {
				i.complete(ctx)
			}
			switch l.app.output {
			case "table":
				lines = append(lines, l.line(i))
				continue
			case "name":
				_, err = fmt.Fprintln(w, i.name())
			default:
				err = l.app.print(w, i.row, nil)
			}
			if err != nil {
				return err
			}
		}
		if l.app.output == "table" {
			if err := l.write(w, columns, lines); err != nil {
				return err
			}
		}
		if !pause(ctx, listEvery) {
			return nil
		}
	}
}

// changes returns the items to be printed, and notes them in seen.
func (l *lister) changes(seen map[string]item, items []item) (changed []item) {
	there := map[string]bool{}
	for _, i := range items {
		there[i.ID] = true
		old, was := seen[i.ID]
		if was && (old.State != i.State || old.restarts != i.restarts || old.running != i.running) || !was && l.wanted(i) {
			seen[i.ID] = i
			changed = append(changed, i)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		if there[id] {
			continue
		}
		gone := seen[id]
		delete(seen, id)
		if l.app.output == "table" {
			cells := gone.cells
			gone.State = removed
			gone.cells = func() map[string]string {
				line := cells()
				line["STATE"] = removed
				return line
			}
			changed = append(changed, gone)
		}
	}
	return changed
}

func (a *app) psCommand() *cobra.Command {
	l := &lister{
		app:    a,
		header: []string{"CONTAINER", "NAME", "POD", "STATE", "AGE", "RESTARTS", "EXIT"},
		wide:   []string{"CONTAINER", "NAME", "POD", "STATE", "AGE", "RESTARTS", "EXIT", "IMAGE", "IMAGE ID", "POD ID", "STARTED"},
		states: []string{"created", "running", "ended", "exited", "unknown"},
		usual:  []string{"RUNNING", endedState},
	}
	l.items, l.ofContainers = l.containers, true
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List containers",
		Long: "List the containers that run. RESTARTS is the number of a container's attempt, as its client counts them; EXIT says how\n" +
			"a container ended, or which OOM kills one that runs has survived. A container that is ENDED is RUNNING for CRI until\n" +
			"its end is on record, which takes long only where the disk cannot be written. What is under way of containers follows the\n" +
			"list, also of those that are still being made. --sort memory adds what they use.",
		Example: "  berth ps -a --sort restarts\n  berth ps -n kube-system -l k8s-app=kube-dns\n  berth ps --watch",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVarP(&l.all, "all", "a", false, "also list containers that are not running")
	l.flags(cmd)
	return cmd
}

func (l *lister) containers(ctx context.Context, c *client.Client, labels map[string]string) ([]item, error) {
	ends, err := endsOf(ctx, c)
	if err != nil {
		return nil, err
	}
	list, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: labels}})
	if err != nil {
		return nil, err
	}
	pods, err := podNames(ctx, c)
	if err != nil {
		return nil, err
	}
	used, err := l.memory(ctx, c)
	if err != nil {
		return nil, err
	}
	items := make([]item, 0, len(list.GetContainers()))
	for _, ct := range list.GetContainers() {
		pod := pods[ct.GetPodSandboxId()]
		namespace, podName, _ := strings.Cut(pod, "/")
		of := newCommon(ct.GetId(), namespace, ct.GetMetadata().GetName(), pod+"/", ends.state(ct.GetId(), ct.GetState()),
			ct.GetCreatedAt(), ct.GetLabels(), ct.GetAnnotations())
		row := &containerRow{
			common:      &of,
			Pod:         podName,
			PodID:       ct.GetPodSandboxId(),
			Image:       ct.GetImage().GetImage(),
			ImageID:     ct.GetImageRef(),
			Restarts:    ct.GetMetadata().GetAttempt(),
			OnRecord:    of.State != endedState,
			MemoryBytes: used[ct.GetId()],
		}
		items = append(items, item{
			common:   of,
			row:      row,
			restarts: row.Restarts,
			memory:   row.MemoryBytes,
			complete: func(ctx context.Context) { row.complete(ctx, c, ends[of.ID]) },
			colour:   row.colour,
			cells: func() map[string]string {
				return map[string]string{
					"CONTAINER": of.ID,
					"NAME":      of.Name,
					"POD":       pod,
					"IMAGE":     row.Image,
					"IMAGE ID":  row.ImageID,
					"POD ID":    row.PodID,
					"STATE":     of.State,
					"AGE":       shortAge(of.created),
					"STARTED":   timeOf(row.StartedAt),
					"RESTARTS":  strconv.FormatUint(uint64(row.Restarts), 10),
					"EXIT":      row.exit(),
					"MEMORY":    memoryOf(row.MemoryBytes),
				}
			},
		})
	}
	return items, nil
}

// complete asks for the end of a container and for all else that its list lacks.
func (r *containerRow) complete(ctx context.Context, c *client.Client, end *berthv1.Exit) {
	resp, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: r.ID})
	if err != nil {
		return
	}
	st := resp.GetStatus()
	r.StartedAt, r.FinishedAt = instant(st.GetStartedAt()), instant(st.GetFinishedAt())
	r.Reason, r.Message = st.GetReason(), st.GetMessage()
	switch {
	case r.State == endedState:
		r.FinishedAt = end.GetEnded().AsTime()
		if end.GetMeasured() {
			code := int32(end.GetCode()) // of a process: 0 to 255
			r.ExitCode = &code
		}
	case st.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED:
		code := st.GetExitCode()
		r.ExitCode = &code
	default: // the message of one that runs begins with the number
		_, _ = fmt.Sscanf(st.GetMessage(), "%d OOM kill", &r.OOMKillsSurvived)
	}
}

// exit describes the end of a container, or how many OOM kills a running one has survived; "" if
// there is none, or if its status cannot be read.
func (r *containerRow) exit() string {
	switch {
	case r.State == endedState && r.ExitCode == nil:
		return "not on record yet"
	case r.State == endedState:
		return fmt.Sprintf("%d, %s, not on record yet", *r.ExitCode, age(r.FinishedAt.UnixNano()))
	case r.ExitCode != nil:
		return fmt.Sprintf("%d %s, %s", *r.ExitCode, r.Reason, age(r.FinishedAt.UnixNano()))
	}
	survived, _, _ := strings.Cut(r.Message, ",")
	return survived
}

// colour marks a container that has failed, or that is restarted again and again.
func (r *containerRow) colour() string {
	switch {
	case r.ExitCode != nil && *r.ExitCode != 0, r.State == "UNKNOWN":
		return bad
	case r.State == endedState, r.Restarts > 2, r.OOMKillsSurvived > 0:
		return doubtful
	}
	return ""
}

// memory asks for the memory of the containers that run by their IDs, if it is wanted.
func (l *lister) memory(ctx context.Context, c *client.Client) (map[string]uint64, error) {
	used := map[string]uint64{}
	if l.sort != "memory" {
		return used, nil
	}
	resp, err := c.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	for _, st := range resp.GetStats() {
		used[st.GetAttributes().GetId()] = containerUsage{stats: st}.mem()
	}
	return used, err
}

// memoryOf is the memory of a container or pod, if it is known.
func memoryOf(n uint64) string {
	if n == 0 {
		return "-"
	}
	return size(n)
}

// shortAge is age without its "ago".
func shortAge(ns int64) string { return strings.TrimSuffix(age(ns), " ago") }

// timeOf is an instant for a table.
func timeOf(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}

// word returns a CRI state without its prefix.
func word(s string) string {
	_, w, _ := strings.Cut(s, "_")
	return w
}

// podNames returns NAMESPACE/NAME of all pods by ID.
func podNames(ctx context.Context, c *client.Client) (map[string]string, error) {
	list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	names := map[string]string{}
	for _, p := range list.GetItems() {
		names[p.GetId()] = p.GetMetadata().GetNamespace() + "/" + p.GetMetadata().GetName()
	}
	return names, err
}

func (a *app) podsCommand() *cobra.Command {
	l := &lister{
		app:    a,
		header: []string{"POD ID", "NAMESPACE", "NAME", "STATE", "RUNNING", "RESTARTS", "AGE", "IP"},
		wide:   []string{"POD ID", "NAMESPACE", "NAME", "STATE", "RUNNING", "RESTARTS", "AGE", "IP", "RUNTIME", "ATTEMPT", "CREATED", "UID"},
		states: []string{"ready", "ended", "notready"},
	}
	l.items = l.pods
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "List pods",
		Long: "List pods: how many of their containers run, and how often those were restarted. What is under way of pods follows\n" +
			"the list, also of those that are still being made. --sort memory adds what the containers use.",
		Example: "  berth pods --sort restarts\n  berth pods -n default --state ready --watch",
		Args:    cobra.NoArgs,
	}
	l.flags(cmd)
	return cmd
}

func (l *lister) pods(ctx context.Context, c *client.Client, labels map[string]string) ([]item, error) {
	ends, err := endsOf(ctx, c)
	if err != nil {
		return nil, err
	}
	list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: labels}})
	if err != nil {
		return nil, err
	}
	cts, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	used, err := l.memory(ctx, c)
	if err != nil {
		return nil, err
	}
	type share struct {
		latest  map[string]uint32 // the attempt, by the name of the container
		running int
		memory  uint64
	}
	of := map[string]*share{}
	for _, ct := range cts.GetContainers() {
		s := of[ct.GetPodSandboxId()]
		if s == nil {
			s = &share{latest: map[string]uint32{}}
			of[ct.GetPodSandboxId()] = s
		}
		name := ct.GetMetadata().GetName()
		s.latest[name] = max(s.latest[name], ct.GetMetadata().GetAttempt())
		s.memory += used[ct.GetId()]
		if ends.runs(ct) {
			s.running++
		}
	}
	items := make([]item, 0, len(list.GetItems()))
	for _, p := range list.GetItems() {
		s := of[p.GetId()]
		if s == nil {
			s = &share{}
		}
		m := p.GetMetadata()
		of := newCommon(p.GetId(), m.GetNamespace(), m.GetName(), m.GetNamespace()+"/", ends.state(p.GetId(), p.GetState()),
			p.GetCreatedAt(), p.GetLabels(), p.GetAnnotations())
		row := &podRow{
			common:      &of,
			UID:         m.GetUid(),
			Attempt:     m.GetAttempt(),
			Runtime:     p.GetRuntimeHandler(),
			IPs:         []string{},
			Running:     s.running,
			Containers:  len(s.latest),
			OnRecord:    of.State != endedState,
			MemoryBytes: s.memory,
		}
		for _, attempt := range s.latest {
			row.Restarts += attempt
		}
		items = append(items, item{
			common:   of,
			row:      row,
			restarts: row.Restarts,
			running:  row.Running,
			memory:   row.MemoryBytes,
			complete: func(ctx context.Context) { row.complete(ctx, c) },
			colour:   row.colour,
			cells: func() map[string]string {
				return map[string]string{
					"POD ID":    of.ID,
					"NAMESPACE": of.Namespace,
					"NAME":      of.Name,
					"STATE":     of.State,
					"RUNNING":   fmt.Sprintf("%d/%d", row.Running, row.Containers),
					"RESTARTS":  strconv.FormatUint(uint64(row.Restarts), 10),
					"AGE":       shortAge(of.created),
					"CREATED":   timeOf(of.CreatedAt),
					"RUNTIME":   row.Runtime,
					"ATTEMPT":   strconv.FormatUint(uint64(row.Attempt), 10),
					"UID":       row.UID,
					"IP":        strings.Join(row.IPs, ","),
					"MEMORY":    memoryOf(row.MemoryBytes),
				}
			},
		})
	}
	return items, nil
}

// complete asks for the addresses of a pod.
func (r *podRow) complete(ctx context.Context, c *client.Client) {
	st, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: r.ID})
	if ip := st.GetStatus().GetNetwork().GetIp(); err == nil && ip != "" {
		r.IPs = []string{ip}
		for _, also := range st.GetStatus().GetNetwork().GetAdditionalIps() {
			r.IPs = append(r.IPs, also.GetIp())
		}
	}
}

// colour marks a pod none of whose containers runs.
func (r *podRow) colour() string {
	if r.State == endedState || r.State == "READY" && r.Running == 0 && r.Containers > 0 {
		return doubtful
	}
	return ""
}
