// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
)

func (a *app) playCommand() *cobra.Command {
	var o PlayOptions
	var wait, rm bool
	cmd := &cobra.Command{
		Use: "play POD.yaml", Short: "Run a pod from a Kubernetes manifest", Args: cobra.ExactArgs(1),
		Long: "Run a v1 Pod. Init containers run in order, each to its end; then the containers are started, once: restartPolicy is\nthe kubelet's. What cannot be honoured is an error that names the field.",
	}
	cmd.Flags().StringVar(&o.LogDir, "log-dir", "/var/log/pods", "directory of pods' logs")
	cmd.Flags().StringVar(&o.VolumeDir, "volume-dir", "/var/lib/berth-play", "directory of emptyDir volumes")
	cmd.Flags().BoolVar(&o.IgnoreUnsupported, "ignore-unsupported", false, "leave out what cannot be honoured, and say so")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until all containers have ended; the exit code is the first one that is not 0")
	cmd.Flags().BoolVar(&rm, "rm", false, "with --wait: remove the pod afterwards")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		b, err := readFile(args[0])
		if err != nil {
			return err
		}
		pod, err := ParsePod(b)
		if err != nil {
			return err
		}
		o.UID = newUID()
		plan, err := Translate(pod, o)
		if err != nil {
			return err
		}
		errOut := cmd.ErrOrStderr()
		for _, f := range plan.Ignored {
			fmt.Fprintln(errOut, "left out:", f)
		}
		if p := pod.Spec.RestartPolicy; p != "" && p != corev1.RestartPolicyNever {
			fmt.Fprintf(errOut, "note: restartPolicy %s is for the kubelet; containers are started once\n", p)
		}
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			played, err := Play(ctx, c, plan, cmd.OutOrStdout())
			if err != nil || !wait {
				return err
			}
			code, err := played.wait(ctx, c, cmd.OutOrStdout())
			if rm {
				_, rerr := c.RemovePodSandbox(context.WithoutCancel(ctx), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: played.PodID})
				err = errors.Join(err, rerr)
			}
			if err == nil && code != 0 {
				return exitError{int(code), fmt.Errorf("a container of pod %s ended with %d", plan.Name, code)}
			}
			return err
		})
	}
	return cmd
}

func readFile(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(name)
}

func newUID() types.UID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}

// Played is a pod that runs.
type Played struct {
	PodID      string
	Containers map[string]string // ID by name
	order      []string
}

// Play runs a plan: the sandbox, the init containers one after the other, then the containers. When it fails, the
// pod stays, stopped, for a person to look at.
func Play(ctx context.Context, c *cri.Client, p *Plan, out io.Writer) (*Played, error) {
	for _, d := range p.Dirs {
		if err := os.MkdirAll(d, 0o777); err != nil {
			return nil, fmt.Errorf("make volume: %w", err)
		}
	}
	resp, err := c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: p.Sandbox, RuntimeHandler: p.Handler})
	if err != nil {
		return nil, err
	}
	played := &Played{PodID: resp.GetPodSandboxId(), Containers: map[string]string{}}
	fmt.Fprintf(out, "pod %s  %s\n", short(played.PodID), p.Name)
	fail := func(err error) (*Played, error) {
		_, serr := c.StopPodSandbox(context.WithoutCancel(ctx), &runtimeapi.StopPodSandboxRequest{PodSandboxId: played.PodID})
		return nil, errors.Join(err, serr)
	}
	for _, init := range p.Init {
		id, err := played.start(ctx, c, p, init, out)
		if err != nil {
			return fail(err)
		}
		st, err := ended(ctx, c, id)
		if err != nil {
			return fail(err)
		}
		if st.GetExitCode() != 0 {
			return fail(fmt.Errorf("init container %s ended with %d (%s); its log is %s", init.GetMetadata().GetName(), st.GetExitCode(), st.GetReason(), st.GetLogPath()))
		}
	}
	for _, cfg := range p.Containers {
		id, err := played.start(ctx, c, p, cfg, out)
		if err != nil {
			return fail(err)
		}
		played.Containers[cfg.GetMetadata().GetName()] = id
		played.order = append(played.order, cfg.GetMetadata().GetName())
	}
	return played, nil
}

func (pl *Played) start(ctx context.Context, c *cri.Client, p *Plan, cfg *runtimeapi.ContainerConfig, out io.Writer) (string, error) {
	if err := needImage(ctx, c, cfg.GetImage().GetImage()); err != nil {
		return "", err
	}
	resp, err := c.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pl.PodID, Config: cfg, SandboxConfig: p.Sandbox})
	if err != nil {
		return "", err
	}
	id := resp.GetContainerId()
	if _, err := c.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		return "", err
	}
	fmt.Fprintf(out, "container %s  %s\n", short(id), cfg.GetMetadata().GetName())
	return id, nil
}

// needImage pulls an image that is not on the node.
func needImage(ctx context.Context, c *cri.Client, ref string) error {
	spec := &runtimeapi.ImageSpec{Image: ref}
	st, err := c.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil || st.GetImage() != nil {
		return err
	}
	_, err = c.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec})
	return err
}

// ended waits for a container's end.
func ended(ctx context.Context, c *cri.Client, id string) (*runtimeapi.ContainerStatus, error) {
	t := time.NewTicker(20 * time.Millisecond) // the answer comes from memory
	defer t.Stop()
	for {
		st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err != nil || st.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return st.GetStatus(), err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-t.C:
		}
	}
}

// wait waits for all containers and returns the first code that is not 0, in the manifest's order.
func (pl *Played) wait(ctx context.Context, c *cri.Client, out io.Writer) (int32, error) {
	var code int32
	for _, name := range pl.order {
		st, err := ended(ctx, c, pl.Containers[name])
		if err != nil {
			return 0, err
		}
		fmt.Fprintf(out, "container %s  %s ended with %d, %s\n", short(st.GetId()), name, st.GetExitCode(), st.GetReason())
		if code == 0 {
			code = st.GetExitCode()
		}
	}
	return code, nil
}
