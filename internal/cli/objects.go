// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"berth/internal/cri"
	"berth/internal/manifest"
)

func (a *app) psCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{Use: "ps", Short: "List containers", Args: cobra.NoArgs}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also those that do not run")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			f := &runtimeapi.ContainerFilter{}
			if !all {
				f.State = &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
			}
			list, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: f})
			if err != nil {
				return err
			}
			pods, err := podNames(ctx, c)
			if err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), list, func(w *tabwriter.Writer) {
				fmt.Fprintln(w, "CONTAINER\tNAME\tPOD\tIMAGE\tSTATE\tCREATED\tEXIT")
				for _, ct := range list.GetContainers() {
					exit := ""
					if ct.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
						if st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: ct.GetId()}); err == nil {
							exit = fmt.Sprintf("%d %s, %s", st.GetStatus().GetExitCode(), st.GetStatus().GetReason(), age(st.GetStatus().GetFinishedAt()))
						}
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", short(ct.GetId()), ct.GetMetadata().GetName(), pods[ct.GetPodSandboxId()],
						ct.GetImage().GetImage(), word(ct.GetState().String()), age(ct.GetCreatedAt()), exit)
				}
			})
		})
	}
	return cmd
}

// word is a CRI state without its prefix.
func word(s string) string {
	_, w, _ := strings.Cut(s, "_")
	return w
}

func podNames(ctx context.Context, c *cri.Client) (map[string]string, error) {
	list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	names := map[string]string{}
	for _, p := range list.GetItems() {
		names[p.GetId()] = p.GetMetadata().GetNamespace() + "/" + p.GetMetadata().GetName()
	}
	return names, err
}

func (a *app) podsCommand() *cobra.Command {
	return &cobra.Command{Use: "pods", Short: "List pods", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
			if err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), list, func(w *tabwriter.Writer) {
				fmt.Fprintln(w, "POD\tNAMESPACE\tNAME\tSTATE\tCREATED\tRUNTIME\tIP")
				for _, p := range list.GetItems() {
					ip := ""
					if st, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.GetId()}); err == nil {
						ip = st.GetStatus().GetNetwork().GetIp()
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", short(p.GetId()), p.GetMetadata().GetNamespace(), p.GetMetadata().GetName(),
						word(p.GetState().String()), age(p.GetCreatedAt()), p.GetRuntimeHandler(), ip)
				}
			})
		})
	}}
}

func (a *app) stopCommand() *cobra.Command {
	var timeout int64
	cmd := &cobra.Command{Use: "stop NAME|ID...", Short: "Stop containers or pods", Args: cobra.MinimumNArgs(1)}
	cmd.Flags().Int64VarP(&timeout, "timeout", "t", 10, "seconds until a container is killed; by default what its pod says, or 10")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		wait := func(annotations map[string]string) int64 {
			if n, err := strconv.ParseInt(annotations[manifest.AnnotationGrace], 10, 64); err == nil && !cmd.Flags().Changed("timeout") {
				return n
			}
			return timeout
		}
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			return each(cmd.OutOrStdout(), args, func(arg string) error {
				o, err := resolve(ctx, c, arg, true, true)
				if err != nil {
					return err
				}
				if !o.pod {
					_, err = c.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: o.id, Timeout: wait(o.annotations)})
					return err
				}
				return stopPod(ctx, c, o.id, wait)
			})
		})
	}
	return cmd
}

// stopPod stops a pod's containers as the kubelet does, then the pod. timeout is in seconds, by a container's annotations.
func stopPod(ctx context.Context, c *cri.Client, id string, timeout func(map[string]string) int64) error {
	list, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: id}})
	if err != nil {
		return err
	}
	errs := make(chan error)
	for _, ct := range list.GetContainers() {
		go func() {
			_, err := c.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: ct.GetId(), Timeout: timeout(ct.GetAnnotations())})
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

func each(w io.Writer, args []string, f func(string) error) error {
	var errs []error
	for _, arg := range args {
		if err := f(arg); err != nil {
			errs = append(errs, cri.Explain(err))
			continue
		}
		fmt.Fprintln(w, arg)
	}
	return errors.Join(errs...)
}

func (a *app) rmCommand() *cobra.Command {
	var force, all bool
	cmd := &cobra.Command{Use: "rm NAME|ID...", Short: "Remove containers or pods"}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also what runs")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all pods")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			if all {
				list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
				if err != nil {
					return err
				}
				for _, p := range list.GetItems() {
					args = append(args, p.GetId())
				}
			} else if len(args) == 0 {
				return errors.New("name what to remove, or give --all")
			}
			return each(cmd.OutOrStdout(), args, func(arg string) error {
				o, err := resolve(ctx, c, arg, true, true)
				if err != nil {
					return err
				}
				return remove(ctx, c, o, force)
			})
		})
	}
	return cmd
}

func remove(ctx context.Context, c *cri.Client, o object, force bool) error {
	if o.pod {
		st, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: o.id})
		if err != nil {
			return err
		}
		if st.GetStatus().GetState() == runtimeapi.PodSandboxState_SANDBOX_READY && !force {
			return fmt.Errorf("pod %s is READY; stop it first, or give --force", o.name)
		}
		if _, err = c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: o.id}); err != nil {
			return err
		}
		return manifest.RemoveVolumes(manifest.DefaultVolumeDir, st.GetStatus().GetMetadata().GetUid())
	}
	st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: o.id})
	if err != nil {
		return err
	}
	if st.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING && !force {
		return fmt.Errorf("container %s is RUNNING; stop it first, or give --force", o.name)
	}
	_, err = c.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: o.id})
	return err
}

func (a *app) inspectCommand() *cobra.Command {
	return &cobra.Command{Use: "inspect NAME|ID|IMAGE", Short: "Show all that is known of a container, pod or image, as JSON", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			o, err := resolve(ctx, c, args[0], true, true)
			var status any
			var info map[string]string
			switch {
			case err != nil:
				st, ierr := c.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: args[0]}, Verbose: true})
				if ierr != nil || st.GetImage() == nil {
					return err
				}
				status, info = st.GetImage(), st.GetInfo()
			case o.pod:
				st, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: o.id, Verbose: true})
				if err != nil {
					return err
				}
				status, info = st.GetStatus(), st.GetInfo()
			default:
				st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: o.id, Verbose: true})
				if err != nil {
					return err
				}
				status, info = st.GetStatus(), st.GetInfo()
			}
			b, err := marshal(status)
			if err != nil {
				return err
			}
			out := map[string]any{"status": json.RawMessage(b)}
			for k, v := range info {
				out[k] = json.RawMessage(v)
			}
			return a.document(cmd.OutOrStdout(), out)
		})
	}}
}

// document writes JSON, or YAML if that was asked for.
func (a *app) document(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err == nil && a.output == "yaml" {
		b, err = yaml.JSONToYAML(b)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, strings.TrimRight(string(b), "\n"))
	return err
}

func (a *app) eventsCommand() *cobra.Command {
	return &cobra.Command{Use: "events", Short: "Follow container events", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
			if err != nil {
				return err
			}
			for {
				ev, err := stream.Recv()
				if ctx.Err() != nil || errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				if a.output != "table" {
					if err := a.print(cmd.OutOrStdout(), ev, nil); err != nil {
						return err
					}
					continue
				}
				m := ev.GetPodSandboxStatus().GetMetadata()
				name, extra := "(sandbox)", ""
				for _, st := range ev.GetContainersStatuses() {
					if st.GetId() == ev.GetContainerId() {
						name = st.GetMetadata().GetName()
						if ev.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
							extra = fmt.Sprintf("  code %d %s", st.GetExitCode(), st.GetReason())
						}
					}
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s  %-8s %s  %s/%s/%s%s\n", time.Unix(0, ev.GetCreatedAt()).Format("15:04:05.000000"),
					strings.TrimSuffix(word(ev.GetContainerEventType().String()), "_EVENT"), short(ev.GetContainerId()), m.GetNamespace(), m.GetName(), name, extra)
			}
		})
	}}
}
