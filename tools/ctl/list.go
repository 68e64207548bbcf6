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
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
)

// listEvery is how often --watch looks again. The lists are served from memory.
const listEvery = 500 * time.Millisecond

// item is a line of ps or pods.
type item struct {
	id        string
	namespace string
	name      string // with the namespace, and with the pod of a container
	state     string
	created   int64
	restarts  uint32
	running   int // containers of a pod
	memory    uint64
	message   any // for programs
	cells     func(detail string) []string
	// asked of the service, for this item alone; it depends on the state
	detail func(ctx context.Context) string
}

// lister is the common part of ps and pods.
type lister struct {
	app     *app
	header  []string
	states  []string // that --state takes
	usual   []string // the states of those that are listed without --all; none for all
	all     bool
	sort    string
	labels  []string
	space   string
	state   string
	watch   bool
	message func(items []item) any
	items   func(ctx context.Context, c *client.Client, labels map[string]string) ([]item, error)
}

// sorts are the orders of --sort. Equal items are in the order of names.
var sorts = map[string]func(a, b item) int{
	"name":     func(item, item) int { return 0 },
	"age":      func(a, b item) int { return cmp.Compare(b.created, a.created) },
	"state":    func(a, b item) int { return strings.Compare(a.state, b.state) },
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
			return l.app.print(cmd.OutOrStdout(), l.message(items), func(w *tabwriter.Writer) {
				fmt.Fprintln(w, strings.Join(l.header, "\t"))
				for _, i := range items {
					fmt.Fprintln(w, strings.Join(i.cells(i.detail(ctx)), "\t"))
				}
			})
		})
	}
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
	items = slices.DeleteFunc(items, func(i item) bool { return l.space != "" && i.namespace != l.space })
	if by := sorts[l.sort]; by != nil {
		slices.SortStableFunc(items, func(a, b item) int { return cmp.Or(by(a, b), strings.Compare(a.name, b.name)) })
	}
	return items, nil
}

// wanted reports whether an item is in a state that is to be listed.
func (l *lister) wanted(i item) bool {
	if l.state != "" {
		return strings.EqualFold(i.state, l.state)
	}
	return l.all || l.usual == nil || slices.Contains(l.usual, i.state)
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
	var columns grid
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
		lines := make([][]string, 0, len(changed)+1)
		if first {
			lines = append(lines, l.header)
		}
		for _, i := range changed {
			if l.app.output != "table" {
				if err := l.app.print(w, i.message, nil); err != nil {
					return err
				}
				continue
			}
			detail := ""
			if i.state != removed {
				detail = i.detail(ctx)
			}
			lines = append(lines, i.cells(detail))
		}
		if l.app.output == "table" {
			if _, err := io.WriteString(w, columns.format(lines)); err != nil {
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
		there[i.id] = true
		old, was := seen[i.id]
		if was && (old.state != i.state || old.restarts != i.restarts || old.running != i.running) || !was && l.wanted(i) {
			seen[i.id] = i
			changed = append(changed, i)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		if there[id] {
			continue
		}
		gone := seen[id]
		delete(seen, id)
		if at := slices.Index(l.header, "STATE"); l.app.output == "table" {
			cells := gone.cells
			gone.state = removed
			gone.cells = func(detail string) []string {
				line := cells(detail)
				line[at] = removed
				return line
			}
			changed = append(changed, gone)
		}
	}
	return changed
}

// grid keeps the columns of lines that come one after the other below each other. A column grows
// and does not shrink.
type grid []int

func (c *grid) format(lines [][]string) string {
	for _, line := range lines {
		for i, cell := range line {
			if i == len(*c) {
				*c = append(*c, 0)
			}
			(*c)[i] = max((*c)[i], utf8.RuneCountInString(Visible(cell)))
		}
	}
	var b strings.Builder
	for _, line := range lines {
		var text strings.Builder
		for i, cell := range line {
			cell = Visible(cell)
			text.WriteString(cell)
			text.WriteString(strings.Repeat(" ", (*c)[i]-utf8.RuneCountInString(cell)+2))
		}
		b.WriteString(strings.TrimRight(text.String(), " ") + "\n")
	}
	return b.String()
}

func (a *app) psCommand() *cobra.Command {
	l := &lister{
		app:    a,
		header: []string{"CONTAINER", "NAME", "POD", "IMAGE", "STATE", "CREATED", "RESTARTS", "EXIT"},
		states: []string{"created", "running", "ended", "exited", "unknown"},
		usual:  []string{"RUNNING", endedState},
	}
	l.items = l.containers
	l.message = func(items []item) any {
		var list struct {
			Containers []container `json:"containers,omitempty"`
		}
		for _, i := range items {
			list.Containers = append(list.Containers, i.message.(container))
		}
		return list
	}
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List containers",
		Long: "List the containers that run. RESTARTS is the number of a container's attempt, as its client counts them; EXIT says how\n" +
			"a container ended, or which OOM kills one that runs has survived. A container that is ENDED is RUNNING for CRI until\n" +
			"its end is on record, which takes long only where the disk cannot be written. --sort memory adds what they use.",
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
		i := item{
			id:       ct.GetId(),
			name:     pod + "/" + ct.GetMetadata().GetName(),
			state:    ends.state(ct.GetId(), ct.GetState()),
			created:  ct.GetCreatedAt(),
			restarts: ct.GetMetadata().GetAttempt(),
			memory:   used[ct.GetId()],
			message:  container{Container: ct},
			detail:   func(ctx context.Context) string { return exit(ctx, c, ct) },
		}
		if i.state == endedState {
			i.message = container{Container: ct, ended: ends[i.id]}
			i.detail = func(context.Context) string { return ends.text(i.id) }
		}
		i.namespace, _, _ = strings.Cut(pod, "/")
		i.cells = func(exit string) []string {
			return l.measured([]string{
				short(i.id),
				ct.GetMetadata().GetName(),
				pod,
				ct.GetImage().GetImage(),
				i.state,
				age(i.created),
				strconv.FormatUint(uint64(i.restarts), 10),
				exit,
			}, i.memory)
		}
		items = append(items, i)
	}
	return items, nil
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

// measured adds the column of the memory to a line, if it is wanted.
func (l *lister) measured(cells []string, memory uint64) []string {
	switch {
	case l.sort != "memory":
		return cells
	case memory == 0:
		return append(cells, "-")
	}
	return append(cells, size(memory))
}

// exit describes the end of a container, or how many OOM kills a running one has survived; "" if
// there is none, or if its status cannot be read.
func exit(ctx context.Context, c *client.Client, ct *runtimeapi.Container) string {
	resp, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: ct.GetId()})
	if err != nil {
		return ""
	}
	st := resp.GetStatus()
	if st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		survived, _, _ := strings.Cut(st.GetMessage(), ",")
		return survived
	}
	return fmt.Sprintf("%d %s, %s", st.GetExitCode(), st.GetReason(), age(st.GetFinishedAt()))
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
		header: []string{"POD", "NAMESPACE", "NAME", "STATE", "RUNNING", "RESTARTS", "CREATED", "RUNTIME", "IP"},
		states: []string{"ready", "ended", "notready"},
	}
	l.items = l.pods
	l.message = func(items []item) any {
		list := &runtimeapi.ListPodSandboxResponse{}
		for _, i := range items {
			list.Items = append(list.Items, i.message.(*runtimeapi.PodSandbox))
		}
		return list
	}
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "List pods",
		Long: "List pods: how many of their containers run, and how often those were restarted. --sort memory adds what the\n" +
			"containers use.",
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
		i := item{
			id:        p.GetId(),
			namespace: p.GetMetadata().GetNamespace(),
			name:      p.GetMetadata().GetNamespace() + "/" + p.GetMetadata().GetName(),
			state:     ends.state(p.GetId(), p.GetState()),
			created:   p.GetCreatedAt(),
			running:   s.running,
			memory:    s.memory,
			message:   p,
			detail: func(ctx context.Context) string {
				st, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.GetId()})
				if err != nil {
					return ""
				}
				return st.GetStatus().GetNetwork().GetIp()
			},
		}
		for _, attempt := range s.latest {
			i.restarts += attempt
		}
		i.cells = func(ip string) []string {
			return l.measured([]string{
				short(i.id),
				i.namespace,
				p.GetMetadata().GetName(),
				i.state,
				fmt.Sprintf("%d/%d", i.running, len(s.latest)),
				strconv.FormatUint(uint64(i.restarts), 10),
				age(i.created),
				p.GetRuntimeHandler(),
				ip,
			}, i.memory)
		}
		items = append(items, i)
	}
	return items, nil
}
