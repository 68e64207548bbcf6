// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
	"berth/internal/base/version"
)

func statusCommand(svc *service, pr *printer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show in one screen how the service and the node are",
		Long: "Show whether the runtime and the network are ready, which berth and containerd run, what the node has, what is under way\n" +
			"and for what it waits, and warnings, such as of a runc with known holes. The exit code is 0 if runtime and network are ready, 3 if one\n" +
			"is not, and 1 if the service does not answer.",
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			st, err := c.RuntimeServiceClient.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
			if err != nil {
				return err
			}
			r, err := report(ctx, c, svc.endpoint, st)
			if err != nil {
				return err
			}
			if err := pr.print(cmd.OutOrStdout(), r, func(w *tabwriter.Writer) { r.table(w, st) }); err != nil {
				return err
			}
			return notReady(st.GetStatus().GetConditions())
		})
	}
	return cmd
}

// reportTimeout is how long status waits for information beyond CRI's Status.
const reportTimeout = 2500 * time.Millisecond

// statusReport is the output of status: for programs it is added to CRI's answer.
type statusReport struct {
	answer map[string]json.RawMessage // CRI's, and below the rest

	Endpoint   string          `json:"endpoint"`
	Client     string          `json:"client"`
	Service    json.RawMessage `json:"service,omitempty"`
	Pods       map[string]int  `json:"pods,omitempty"`       // by state
	Containers map[string]int  `json:"containers,omitempty"` // by state
	Images     *imageCount     `json:"images,omitempty"`
	UnderWay   []document      `json:"underWay,omitempty"`
	Unknown    []string        `json:"unknown,omitempty"`

	service *runtimeapi.VersionResponse
	under   underWay
}

type imageCount struct {
	Count int    `json:"count"`
	Bytes uint64 `json:"bytes"`
}

// MarshalJSON writes CRI's answer with everything else beside it.
func (r *statusReport) MarshalJSON() ([]byte, error) {
	type plain statusReport
	b, err := json.Marshal((*plain)(r))
	if err != nil {
		return nil, err
	}
	all := maps.Clone(r.answer)
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// report asks for everything at once. Questions without an answer are named in Unknown, and not
// taken for empty ones.
func report(ctx context.Context, c *client.Client, endpoint string, st *runtimeapi.StatusResponse) (*statusReport, error) {
	b, err := marshal(st)
	if err != nil {
		return nil, err
	}
	r := &statusReport{Endpoint: endpoint, Client: version.String()}
	if err := json.Unmarshal(b, &r.answer); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	questions := []struct {
		what string
		ask  func() error
	}{
		{"the version of the service", func() (err error) {
			r.service, err = c.RuntimeServiceClient.Version(ctx, &runtimeapi.VersionRequest{})
			if err == nil {
				r.Service, err = marshal(r.service)
			}
			return err
		}},
		{"pods", func() error {
			ends, err := endsOf(ctx, c)
			if err != nil {
				return err
			}
			list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
			if err == nil {
				r.Pods = map[string]int{}
			}
			for _, p := range list.GetItems() {
				r.Pods[strings.ToLower(ends.state(p.GetId(), p.GetState()))]++
			}
			return err
		}},
		{"containers", func() error {
			ends, err := endsOf(ctx, c)
			if err != nil {
				return err
			}
			list, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
			if err == nil {
				r.Containers = map[string]int{}
			}
			for _, ct := range list.GetContainers() {
				r.Containers[strings.ToLower(ends.state(ct.GetId(), ct.GetState()))]++
			}
			return err
		}},
		{"images", func() error {
			list, err := c.ListImages(ctx, &runtimeapi.ListImagesRequest{})
			if err == nil {
				r.Images = &imageCount{Count: len(list.GetImages())}
			}
			for _, i := range list.GetImages() {
				r.Images.Bytes += i.GetSize()
			}
			return err
		}},
		{"what is under way", func() (err error) {
			r.under, err = askUnderWay(ctx, c)
			r.UnderWay = documents(r.under)
			return err
		}},
	}
	errs := make([]error, len(questions))
	var wg sync.WaitGroup
	for i, q := range questions {
		wg.Go(func() { errs[i] = q.ask() })
	}
	wg.Wait()
	for i, q := range questions {
		if errs[i] != nil {
			r.Unknown = append(r.Unknown, q.what+": "+client.Explain(errs[i]).Error())
		}
	}
	return r, nil
}

// underWayLines is how many operations are shown. `berth debug underway` has all.
const underWayLines = 8

// table writes the report for a person. Another runtime answers less, and the missing lines are
// left out.
func (r *statusReport) table(w io.Writer, st *runtimeapi.StatusResponse) {
	var info struct {
		process struct {
			PID     int
			Started time.Time
		}
		cni       struct{ Name, Source string }
		where     string
		version   string
		connected *bool
		exact     *bool
		clockSet  struct{ From, To, At time.Time }
		warnings  []string
	}
	for key, v := range map[string]any{
		"process":            &info.process,
		"cni":                &info.cni,
		"containerd":         &info.where,
		"containerdVersion":  &info.version,
		"connected":          &info.connected,
		"kernelWitnessExact": &info.exact,
		"clockSet":           &info.clockSet,
		"warnings":           &info.warnings,
	} {
		_ = json.Unmarshal([]byte(st.GetInfo()[key]), v)
	}
	line := func(what, state, text string) { fmt.Fprintf(w, "%s\t%s\t%s\n", what, oneLine(state), oneLine(text)) }
	for _, cond := range st.GetStatus().GetConditions() {
		line(cond.GetType(), strconv.FormatBool(cond.GetStatus()), cond.GetMessage())
	}
	if r.service != nil {
		text := ""
		if p := info.process; p.PID != 0 {
			text = fmt.Sprintf("process %d, started %s", p.PID, age(p.Started.UnixNano()))
		}
		if r.Client != r.service.GetRuntimeVersion() {
			text = strings.TrimPrefix(text+"; this command is "+r.Client, "; ")
		}
		line("Service", r.service.GetRuntimeName()+" "+r.service.GetRuntimeVersion(), text)
	}
	if info.where != "" {
		text := "connected"
		if info.connected != nil && !*info.connected {
			text = "not connected: the records are served, and nothing can be made"
		}
		if info.version != "" {
			text = info.version + ", " + text
		}
		line("Containerd", info.where, text)
	}
	if info.exact != nil {
		if *info.exact {
			line("Kernel", "exact", "it says how a process ended, whoever reaped it")
		} else {
			line("Kernel", "not exact", "it says when a process ended, and the shim how; Linux 6.15 says both")
		}
	}
	if s := info.clockSet; !s.At.IsZero() {
		line("Clock", "set by "+s.To.Sub(s.From).Round(time.Second).String(),
			fmt.Sprintf("from %s to %s, %s", s.From.UTC().Format(time.RFC3339), s.To.UTC().Format(time.RFC3339), age(s.At.UnixNano())))
	}
	if info.cni.Name != "" {
		line("Network", info.cni.Name, info.cni.Source)
	}
	if r.Pods != nil {
		line("Pods", strconv.Itoa(total(r.Pods)), counted(r.Pods, "ready", "ended", "notready"))
	}
	if r.Containers != nil {
		line("Containers", strconv.Itoa(total(r.Containers)), counted(r.Containers, "running", "created", "ended", "exited", "unknown"))
	}
	if r.Images != nil {
		line("Images", strconv.Itoa(r.Images.Count), size(r.Images.Bytes))
	}
	said := r.under.summary(underWayLines)
	for i, s := range said {
		count := ""
		if i == 0 {
			count = strconv.Itoa(len(r.under.sentences()))
		}
		line("Under way", count, s)
	}
	if len(said) > underWayLines {
		line("", "", "`berth debug underway` lists all")
	}
	for _, text := range r.Unknown {
		line("Unknown", "", text)
	}
	for _, text := range info.warnings {
		line("Warning", "", text)
	}
}

func total(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// counted writes counts by state, in an order, without those that are 0.
func counted(counts map[string]int, order ...string) string {
	var parts []string
	for _, state := range order {
		if n := counts[state]; n > 0 {
			word := cmp.Or(map[string]string{"notready": "not ready", "ended": "ended and not on record yet"}[state], state)
			parts = append(parts, fmt.Sprintf("%d %s", n, word))
		}
	}
	return strings.Join(parts, ", ")
}

// exitNotReady is the exit code of status where the service answers and is not ready.
const exitNotReady = 3

// notReady returns an error that names the conditions that are false.
func notReady(conditions []*runtimeapi.RuntimeCondition) error {
	var names []string
	for _, cond := range conditions {
		if !cond.GetStatus() {
			names = append(names, cond.GetType())
		}
	}
	if len(names) == 0 {
		return nil
	}
	return exitError{exitNotReady, fmt.Errorf("not ready: %s is false", strings.Join(names, " and "))}
}

// oneLine quotes characters that would break a line of a table.
func oneLine(s string) string {
	if strings.ContainsFunc(s, unicode.IsControl) {
		return strconv.Quote(s)
	}
	return s
}

func versionCommand(svc *service, pr *printer) *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Show the versions of this command and of the service", Args: cobra.NoArgs}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			v, err := c.RuntimeServiceClient.Version(ctx, &runtimeapi.VersionRequest{})
			both := map[string]any{"client": version.String()}
			if err == nil {
				both["service"] = v
			}
			return errors.Join(pr.print(cmd.OutOrStdout(), both, func(w *tabwriter.Writer) {
				fmt.Fprintf(w, "berth\t%s\n", version.String())
				if err == nil {
					fmt.Fprintf(w, "service\t%s %s, CRI %s\n", v.GetRuntimeName(), v.GetRuntimeVersion(), v.GetRuntimeApiVersion())
				}
			}), err)
		})
	}
	return cmd
}

func debugCommand(svc *service, pr *printer) *cobra.Command {
	lanes := &cobra.Command{Use: "lanes", Short: "List what is being settled or released, or waits to be tried again", Args: cobra.NoArgs}
	lanes.RunE = func(cmd *cobra.Command, _ []string) error {
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			resp, err := c.Node.Lanes(ctx, &berthv1.LanesRequest{})
			if err != nil {
				return err
			}
			return pr.print(cmd.OutOrStdout(), documents(resp.GetLanes()), func(w *tabwriter.Writer) {
				fmt.Fprintln(w, "ID\tSTEP\tSTATE\tSINCE\tTRY\tWAITING\tERROR")
				for _, l := range resp.GetLanes() {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%s\n",
						short(l.GetId()),
						l.GetHead(),
						l.GetState(),
						age(l.GetSince().AsTime().UnixNano()),
						l.GetTries(),
						l.GetWaiting(),
						oneLine(l.GetError()))
				}
			})
		})
	}
	cmd := &cobra.Command{Use: "debug", Short: "Show the live state of the service"}
	cmd.AddCommand(lanes, underWayCommand(svc, pr))
	return cmd
}
