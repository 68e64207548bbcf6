// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

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

// common has the fields that both containers and pods of a list have. docs/api.md lists them.
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
	svc    *service
	pr     *printer
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
	items        func(ctx context.Context, c *client.Client, labels map[string]string, used map[string]uint64) ([]item, error)
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
		return l.svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			if l.watch {
				return l.follow(ctx, c, cmd.OutOrStdout(), cmd.ErrOrStderr(), labels)
			}
			items, err := l.list(ctx, c, labels)
			if err != nil {
				return err
			}
			if err := l.print(ctx, cmd.OutOrStdout(), items); err != nil || l.pr.format != "table" && l.pr.format != "wide" || l.quiet {
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
	case l.pr.format == "name":
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
	if l.pr.format != "table" {
		return l.pr.print(w, list{rows}, nil)
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
	if l.pr.format == "wide" {
		l.pr.format, l.header = "table", l.wide
	}
	if l.sort == "memory" {
		l.header = append(slices.Clone(l.header), "MEMORY")
	}
	return labels, nil
}

// known returns everything that has the labels and is in the namespace, sorted.
func (l *lister) known(ctx context.Context, c *client.Client, labels map[string]string) ([]item, error) {
	used, err := l.memory(ctx, c)
	if err != nil {
		return nil, err
	}
	items, err := l.items(ctx, c, labels, used)
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
			switch l.pr.format {
			case "table":
				lines = append(lines, l.line(i))
				continue
			case "name":
				_, err = fmt.Fprintln(w, i.name())
			default:
				err = l.pr.print(w, i.row, nil)
			}
			if err != nil {
				return err
			}
		}
		if l.pr.format == "table" {
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
		if l.pr.format == "table" {
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
