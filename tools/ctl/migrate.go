// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/internal/base/config"
	"berth/tools/migrate"
)

type migrateFlags struct {
	where             migrate.Where
	plan, apply, undo bool
	podsMayEnd        bool
	within            time.Duration
}

func migrateCommand(pr *printer) *cobra.Command {
	var f migrateFlags
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Move this node from containerd's CRI or CRI-O to berth, and back",
		Long: "Read the settings of containerd or CRI-O and of the kubelet, and print what berth's would be, what has no counterpart and what that\n" +
			"means for the pods, and the steps. This changes nothing.\n\n" +
			"With --apply, carry the steps out. Each is noted before it is done, with the originals of the files that it changes, in\n" +
			"/var/lib/berth/migrate. If a step fails, or berth or the node is not ready in time, everything is taken back. With --undo, take\n" +
			"back a migration that was applied, or one that was cut off.\n\n" +
			"No pod moves: drain the node first. While pods run that would be ended, --apply and --undo are refused without --pods-may-end;\n" +
			"pods of DaemonSets and static pods are left by every drain. `berth adopt` takes over the pods of containerd while they run.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runMigrate(pr, cmd, f) },
	}
	cmd.Flags().BoolVar(&f.plan, "plan", false, "print the plan, as without any of these")
	cmd.Flags().BoolVar(&f.apply, "apply", false, "carry the plan out")
	cmd.Flags().BoolVar(&f.undo, "undo", false, "take the migration back")
	cmd.Flags().BoolVar(&f.podsMayEnd, "pods-may-end", false, "end the pods that run, which the kubelet then makes again")
	cmd.Flags().BoolVar(&f.where.Beside, "beside", false, "keep the node's containerd, without its CRI plug-in, instead of the one inside berth")
	cmd.Flags().StringVar(&f.where.From, "from", "", "containerd or cri-o (default: what the kubelet uses)")
	cmd.Flags().StringVar(&f.where.Root, "root", "", "read the files of a node below this directory, for a plan (default /)")
	cmd.Flags().StringVar(&f.where.ContainerdConfig, "containerd-config", "", "configuration file of containerd (default /etc/containerd/config.toml)")
	cmd.Flags().StringVar(&f.where.CRIOConfig, "crio-config", "", "configuration file of CRI-O (default /etc/crio/crio.conf)")
	cmd.Flags().StringVar(&f.where.KubeletConfig, "kubelet-config", "", "configuration file of the kubelet (default: what its unit says, or /var/lib/kubelet/config.yaml)")
	cmd.Flags().DurationVar(&f.within, "within", 2*time.Minute, "how long berth, and then the node, may take to be ready")
	cmd.MarkFlagsMutuallyExclusive("plan", "apply", "undo")
	_ = cmd.RegisterFlagCompletionFunc("from", oneOf([]string{migrate.Containerd, migrate.CRIO}))
	_ = cmd.MarkFlagDirname("root")
	return cmd
}

func runMigrate(pr *printer, cmd *cobra.Command, f migrateFlags) error {
	here := f.where.Root == "" || filepath.Clean(f.where.Root) == "/"
	if (f.apply || f.undo) && !here {
		return errors.New("--root is for a plan: a migration is applied and taken back on the node itself")
	}
	if f.within < time.Second {
		return fmt.Errorf("--within %s is too short; give it a second at least", f.within)
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second one ends the process, which --undo makes good
	o := migrate.Options{
		Host:       nodeHost{},
		PodsMayEnd: f.podsMayEnd,
		Within:     f.within,
		Out:        cmd.OutOrStdout(),
	}
	if f.undo {
		loaded, err := config.LoadIfThere(defaultConfig)
		if err != nil {
			loaded.Root = config.Default().Root // the way back needs no settings that are right
		}
		return migrate.Undo(ctx, "/", loaded.Root, o)
	}
	var host migrate.Host
	if here {
		host = o.Host
	}
	plan, err := migrate.Make(ctx, f.where, host)
	if err != nil {
		return err
	}
	if f.apply {
		if err := migrate.Apply(ctx, plan, o); err != nil {
			return err
		}
		for _, c := range plan.After {
			fmt.Fprintf(o.Out, "Now run: %s\n", c)
		}
		return nil
	}
	return pr.print(cmd.OutOrStdout(), plan, func(w *tabwriter.Writer) {
		var b strings.Builder
		plan.Write(&b)
		_, _ = io.WriteString(w, b.String())
	})
}

// nodeHost is this machine.
type nodeHost struct{}

// askWithin is how long a runtime, or a kubelet, may take to answer one question.
const askWithin = 10 * time.Second

func (nodeHost) Systemctl(ctx context.Context, args ...string) (string, error) {
	return systemctl(ctx, args...)
}

// runtime connects to a socket of CRI that somebody serves.
func (nodeHost) runtime(ctx context.Context, endpoint string, f func(ctx context.Context, c *client.Client) error) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", strings.TrimPrefix(endpoint, "unix://"))
	if err != nil {
		return err
	}
	conn.Close()
	c, err := client.Dial(endpoint)
	if err != nil {
		return err
	}
	defer c.Close()
	return client.Explain(f(ctx, c))
}

// Running asks the runtime. If the socket is not served, processes of pods may live on without it,
// so their absence is checked.
func (h nodeHost) Running(ctx context.Context, endpoint string) (pods []migrate.Pod, err error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	err = h.runtime(ctx, endpoint, func(ctx context.Context, c *client.Client) error {
		all, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		cts, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		if err != nil {
			return err
		}
		run := map[string][]string{}
		for _, ct := range cts.GetContainers() {
			if ct.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
				run[ct.GetPodSandboxId()] = append(run[ct.GetPodSandboxId()], ct.GetMetadata().GetName())
			}
		}
		for _, p := range all.GetItems() {
			if p.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY && len(run[p.GetId()]) == 0 {
				continue
			}
			pods = append(pods, migrate.Pod{
				ID:         p.GetId(),
				Namespace:  p.GetMetadata().GetNamespace(),
				Name:       p.GetMetadata().GetName(),
				Containers: run[p.GetId()],
			})
		}
		return nil
	})
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		names, look := podProcesses("/proc")
		switch {
		case look != nil:
			return nil, look
		case len(names) > 0:
			return nil, fmt.Errorf("nobody serves %s, and %d processes of pods run, such as %s", endpoint, len(names), names[0])
		}
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s for its pods: %w", endpoint, err)
	}
	return pods, nil
}

// podProcesses are the processes that keep containers, of any runtime.
func podProcesses(proc string) (names []string, err error) {
	all, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("look for processes of pods: %w", err)
	}
	for _, p := range all {
		b, err := os.ReadFile(filepath.Join(proc, p.Name(), "comm"))
		if err != nil {
			continue // it is not a process, or it has ended
		}
		name := strings.TrimSpace(string(b)) // 15 bytes at most
		if strings.HasPrefix(name, "containerd-shim") || strings.HasPrefix(name, "conmon") {
			names = append(names, name+" ("+p.Name()+")")
		}
	}
	return names, nil
}

// podGrace is how many seconds the containers of a pod get to end.
const podGrace = 30

func (h nodeHost) Remove(ctx context.Context, endpoint string, pod migrate.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, 4*podGrace*time.Second)
	defer cancel()
	return h.runtime(ctx, endpoint, func(ctx context.Context, c *client.Client) error {
		if err := stopPod(ctx, c, pod.ID, func(map[string]string) int64 { return podGrace }); err != nil {
			return err
		}
		_, err := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod.ID})
		return err
	})
}

func (h nodeHost) RuntimeReady(ctx context.Context, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	return h.runtime(ctx, endpoint, func(ctx context.Context, c *client.Client) error {
		st, err := c.RuntimeServiceClient.Status(ctx, &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		for _, cond := range st.GetStatus().GetConditions() {
			if cond.GetType() == runtimeapi.RuntimeReady && !cond.GetStatus() {
				return fmt.Errorf("RuntimeReady is false: %s", cmp.Or(cond.GetMessage(), cond.GetReason()))
			}
		}
		return nil
	})
}

// kubeletClient is the kubelet's credentials for the cluster, on nodes of kubeadm's. With it a node
// may read itself.
const kubeletClient = "/etc/kubernetes/kubelet.conf"

func (h nodeHost) NodeReady(ctx context.Context, endpoint string, healthz int) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if state, err := h.Systemctl(ctx, "is-active", "kubelet"); strings.TrimSpace(state) != "active" {
		return fmt.Errorf("the kubelet is %s: %w", strings.TrimSpace(state), err)
	}
	if healthz > 0 {
		if err := well(ctx, fmt.Sprintf("http://127.0.0.1:%d/healthz", healthz)); err != nil {
			return err
		}
	}
	kubectl, err := exec.LookPath("kubectl")
	if _, missing := os.Stat(kubeletClient); err != nil || missing != nil {
		return nil // the cluster cannot be asked from here
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, kubectl, "--kubeconfig", kubeletClient, "get", "node", strings.ToLower(name), "-o",
		`jsonpath={.status.nodeInfo.containerRuntimeVersion} {.status.conditions[?(@.type=="Ready")].status}`).Output()
	if err != nil {
		return nil // a cluster that does not answer, or knows the node by another name, is no fault of the node
	}
	want := ""
	if loaded, err := config.LoadIfThere(defaultConfig); err == nil && endpoint == "unix://"+loaded.Address {
		want = loaded.CRI.RuntimeName
	}
	return nodeSays(string(out), want)
}

// nodeSays returns the faults in a node's report of its runtime, which must have a name unless want
// is "", and of its readiness.
func nodeSays(report, want string) error {
	runtime, ready, _ := strings.Cut(report, " ")
	if name, _, _ := strings.Cut(runtime, "://"); want != "" && name != want {
		return fmt.Errorf("the node reports %s as its runtime, and not yet %s", runtime, want)
	}
	if ready != "True" {
		return fmt.Errorf("the node is not Ready: its condition is %s", ready)
	}
	return nil
}

// well asks the kubelet how it is.
func well(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask the kubelet how it is: %w", err)
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(answer.Body, 512)) // it only explains
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the kubelet is not well: %s: %s", answer.Status, strings.TrimSpace(string(body)))
	}
	return nil
}
