// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/tools/manifest"
)

func stopCommand(svc *service, patience time.Duration) *cobra.Command {
	var timeout int64
	cmd := &cobra.Command{
		Use:   "stop NAME|ID...",
		Short: "Stop containers or pods",
		Long: "Stop containers or pods, and wait until they have ended. Ctrl-C ends the waiting: what got its stop signal is killed\n" +
			"at the end of its grace period all the same, and of a pod nothing else is stopped.",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: svc.complete(pods, containers, running),
	}
	cmd.Flags().Int64VarP(&timeout, "timeout", "t", 10, "seconds until a container is killed; the default is what its pod says, or else")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if timeout < 0 {
			return fmt.Errorf("--timeout %d is negative: 0 kills at once", timeout)
		}
		grace := func(annotations map[string]string) int64 {
			if n, err := strconv.ParseInt(annotations[manifest.AnnotationGrace], 10, 64); err == nil && !cmd.Flags().Changed("timeout") {
				return n
			}
			return timeout
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			return each(ctx, cmd.OutOrStdout(), args, func(arg string) error {
				o, err := resolve(ctx, c, arg, true, true)
				if err != nil {
					return err
				}
				w := waiter{
					client:      c,
					object:      o,
					out:         cmd.ErrOrStderr(),
					after:       patience,
					interrupted: abandonedStop(o, arg),
				}
				return w.wait(ctx, func() error {
					if o.pod {
						return stopPod(ctx, c, o.id, grace)
					}
					_, err := c.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: o.id, Timeout: grace(o.annotations)})
					return err
				})
			})
		})
	}
	return cmd
}

// abandonedStop explains which work goes on when a person stops waiting for a stop.
func abandonedStop(o object, arg string) string {
	if o.pod {
		return "the containers of pod " + arg + " got their stop signals, and are killed at the end of their grace periods; " +
			"the pod's sandbox and network stay, until `berth stop " + arg + "` is run again"
	}
	return "container " + arg + " got its stop signal, and is killed at the end of its grace period"
}

// stopPod stops the containers of a pod side by side, as the kubelet does, and then the pod. grace
// returns the seconds until a container with these annotations is killed.
func stopPod(ctx context.Context, c *client.Client, id string, grace func(map[string]string) int64) error {
	list, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: id}})
	if err != nil {
		return err
	}
	errs := make(chan error)
	for _, ct := range list.GetContainers() {
		go func() {
			_, err := c.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: ct.GetId(), Timeout: grace(ct.GetAnnotations())})
			errs <- err
		}()
	}
	for range list.GetContainers() {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		return err
	}
	_, err = c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return err
}

// each calls f for each argument, prints those for which f succeeds and returns the errors of the
// others. It ends early when ctx ends.
func each(ctx context.Context, w io.Writer, args []string, f func(string) error) error {
	return eachSilently(ctx, args, func(arg string) error {
		err := f(arg)
		if err == nil {
			fmt.Fprintln(w, arg)
		}
		return err
	})
}

// eachSilently is each for a function that prints its result.
func eachSilently(ctx context.Context, args []string, f func(string) error) error {
	var errs []error
	for i, arg := range args {
		if ctx.Err() != nil {
			errs = append(errs, fmt.Errorf("not reached: %q", args[i:]))
			break
		}
		if err := f(arg); err != nil {
			errs = append(errs, client.Explain(err))
		}
	}
	return errors.Join(errs...)
}

func rmCommand(svc *service, patience time.Duration) *cobra.Command {
	var force, all bool
	var volumes string
	cmd := &cobra.Command{Use: "rm NAME|ID...", Short: "Remove containers or pods", ValidArgsFunction: svc.complete(pods, containers)}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also remove what is running")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "remove all pods")
	volumeDirFlag(cmd, &volumes)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if all && len(args) > 0 {
			return fmt.Errorf("--all removes every pod, and not only %q: leave one of the two out", args)
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			if all {
				list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
				if err != nil {
					return err
				}
				for _, p := range list.GetItems() {
					args = append(args, p.GetId())
				}
			} else if len(args) == 0 {
				return errors.New("nothing to remove: name containers or pods, or use --all")
			}
			return each(ctx, cmd.OutOrStdout(), args, func(arg string) error {
				o, err := resolve(ctx, c, arg, true, true)
				if err != nil {
					return err
				}
				w := waiter{client: c, object: o, out: cmd.ErrOrStderr(), after: patience, interrupted: "the removal of " + o.kind() + " " + arg +
					" goes on by itself; `berth timeline " + o.id + "` shows how far it is"}
				if o.pod {
					return removePod(ctx, c, o, force, volumes, &w)
				}
				return removeContainer(ctx, c, o, force, &w)
			})
		})
	}
	return cmd
}

func removePod(ctx context.Context, c *client.Client, o object, force bool, volumeDir string, w *waiter) error {
	st, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: o.id})
	if err != nil {
		return err
	}
	if st.GetStatus().GetState() == runtimeapi.PodSandboxState_SANDBOX_READY && !force {
		return fmt.Errorf("pod %s is READY; stop it first, or use --force", o.name)
	}
	err = w.wait(ctx, func() error {
		_, err := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: o.id})
		return err
	})
	if err != nil {
		return err
	}
	return removeVolumes(volumeDir, st.GetStatus().GetMetadata().GetUid())
}

func removeContainer(ctx context.Context, c *client.Client, o object, force bool, w *waiter) error {
	st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: o.id})
	if err != nil {
		return err
	}
	if st.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING && !force {
		return fmt.Errorf("container %s is RUNNING; stop it first, or use --force", o.name)
	}
	return w.wait(ctx, func() error {
		_, err := c.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: o.id})
		return err
	})
}
