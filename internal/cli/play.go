// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
	"berth/internal/manifest"
)

func (a *app) playCommand() *cobra.Command {
	var o manifest.Options
	var wait, rm bool
	cmd := &cobra.Command{
		Use: "play POD.yaml", Short: "Run a pod from a Kubernetes manifest", Args: cobra.ExactArgs(1),
		Long: "Run a v1 Pod. Init containers run in order, each to its end; then the containers are started, once: restartPolicy is\nthe kubelet's. What cannot be honoured is an error that names the field.",
	}
	cmd.Flags().StringVar(&o.LogDir, "log-dir", manifest.DefaultLogDir, "directory of pods' logs")
	cmd.Flags().StringVar(&o.VolumeDir, "volume-dir", manifest.DefaultVolumeDir, "directory of emptyDir volumes")
	cmd.Flags().BoolVar(&o.IgnoreUnsupported, "ignore-unsupported", false, "leave out what cannot be honoured, and say so")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until all containers have ended; the exit code is the first one that is not 0")
	cmd.Flags().BoolVar(&rm, "rm", false, "with --wait: remove the pod afterwards")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		b, err := readFile(args[0])
		if err != nil {
			return err
		}
		pod, err := manifest.Parse(b)
		if err != nil {
			return err
		}
		o.UID, o.HostIP, o.HostDNS = manifest.NewUID(), manifest.HostIP(), manifest.HostDNS()
		plan, err := manifest.Translate(pod, o)
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
				if rerr == nil {
					rerr = manifest.RemoveVolumes(o.VolumeDir, plan.Sandbox.GetMetadata().GetUid())
				}
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

// Played is a pod that runs.
type Played struct {
	PodID      string
	Containers map[string]string // ID by name
	order      []string
	ip         string
}

// Play runs a plan: the sandbox, the init containers one after the other, then the containers. When it fails, the
// pod stays, stopped, for a person to look at.
func Play(ctx context.Context, c *cri.Client, p *manifest.Plan, out io.Writer) (*Played, error) {
	for _, v := range p.Volumes {
		if err := v.Prepare(); err != nil {
			return nil, err
		}
	}
	all := append(slices.Clone(p.Init), p.Containers...)
	for _, pc := range all { // before anything runs, so that what cannot be had leaves nothing behind
		if err := needImage(ctx, c, pc); err != nil {
			return nil, err
		}
	}
	resp, err := c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: p.Sandbox, RuntimeHandler: p.Handler})
	if err != nil {
		return nil, err
	}
	played := &Played{PodID: resp.GetPodSandboxId(), Containers: map[string]string{}, ip: p.HostIP}
	fmt.Fprintf(out, "pod %s  %s\n", short(played.PodID), p.Name)
	fail := func(err error) (*Played, error) {
		_, serr := c.StopPodSandbox(context.WithoutCancel(ctx), &runtimeapi.StopPodSandboxRequest{PodSandboxId: played.PodID})
		return nil, errors.Join(err, serr)
	}
	st, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: played.PodID})
	if err != nil {
		return fail(err)
	}
	if ip := st.GetStatus().GetNetwork().GetIp(); ip != "" {
		played.ip = ip
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
			return fail(fmt.Errorf("init container %s ended with %d (%s); its log is %s", init.Config.GetMetadata().GetName(), st.GetExitCode(), st.GetReason(), st.GetLogPath()))
		}
	}
	for _, pc := range p.Containers {
		id, err := played.start(ctx, c, p, pc, out)
		if err != nil {
			return fail(err)
		}
		name := pc.Config.GetMetadata().GetName()
		played.Containers[name] = id
		played.order = append(played.order, name)
	}
	return played, nil
}

func (pl *Played) start(ctx context.Context, c *cri.Client, p *manifest.Plan, pc manifest.Container, out io.Writer) (string, error) {
	cfg := pc.WithPodIP(pl.ip)
	name := cfg.GetMetadata().GetName()
	resp, err := c.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pl.PodID, Config: cfg, SandboxConfig: p.Sandbox})
	if err != nil {
		return "", fmt.Errorf("create container %s: %w", name, err)
	}
	id := resp.GetContainerId()
	if _, err := c.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		return "", fmt.Errorf("start container %s: %w", name, err)
	}
	fmt.Fprintf(out, "container %s  %s\n", short(id), name)
	return id, nil
}

// needImage pulls an image that is not on the node, or that is to be pulled always, and checks its user.
func needImage(ctx context.Context, c *cri.Client, pc manifest.Container) error {
	spec := &runtimeapi.ImageSpec{Image: pc.Config.GetImage().GetImage()}
	name := pc.Config.GetMetadata().GetName()
	st, err := c.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil {
		return err
	}
	switch {
	case pc.PullPolicy == string(corev1.PullNever) && st.GetImage() == nil:
		return fmt.Errorf("container %s: image %s is not on the node, and imagePullPolicy is Never; `berth import` or `berth pull` it", name, spec.GetImage())
	case pc.PullPolicy == string(corev1.PullAlways), st.GetImage() == nil:
		if _, err := c.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec}); err != nil {
			return fmt.Errorf("container %s: pull image %s: %w", name, spec.GetImage(), err)
		}
		if st, err = c.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec}); err != nil {
			return err
		}
	}
	if uid := st.GetImage().GetUid(); pc.NonRoot && uid.GetValue() == 0 {
		return fmt.Errorf("container %s: runAsNonRoot is set, and image %s names no user by a number other than 0; give runAsUser", name, spec.GetImage())
	}
	return nil
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
