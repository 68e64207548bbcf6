// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"berth/api/client"
)

func inspectCommand(svc *service, pr *printer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect NAME|ID|IMAGE",
		Short: "Show everything that is known about a container, pod or image, as JSON",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: svc.complete(pods, containers, images, one),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			status, info, err := inspect(ctx, c, args[0])
			if err != nil {
				return err
			}
			b, err := marshal(status)
			if err != nil {
				return err
			}
			out := map[string]any{"status": json.RawMessage(b)}
			if row, err := summary(ctx, c, status); err != nil {
				return err
			} else if row != nil {
				out["summary"] = row
			}
			for k, v := range info {
				out[k] = json.RawMessage(v)
			}
			return pr.document(cmd.OutOrStdout(), out)
		})
	}
	return cmd
}

// summary returns a container or pod as ps and pods list it, nil for an image.
func summary(ctx context.Context, c *client.Client, status proto.Message) (row any, err error) {
	var all []item
	var id string
	switch st := status.(type) {
	case *runtimeapi.ContainerStatus:
		id = st.GetId()
		all, err = containerItems(ctx, c, nil, nil)
	case *runtimeapi.PodSandboxStatus:
		id = st.GetId()
		all, err = podItems(ctx, c, nil, nil)
	}
	for _, i := range all {
		if i.ID == id {
			i.complete(ctx)
			row = i.row
		}
	}
	return row, err
}

// inspect returns the status of a container, pod or image, and the JSON documents that come with
// it.
func inspect(ctx context.Context, c *client.Client, what string) (proto.Message, map[string]string, error) {
	o, err := resolve(ctx, c, what, true, true)
	switch {
	case err != nil:
		st, ierr := c.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: what}, Verbose: true})
		if ierr != nil || st.GetImage() == nil {
			return nil, nil, err
		}
		return st.GetImage(), st.GetInfo(), nil
	case o.pod:
		st, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: o.id, Verbose: true})
		return st.GetStatus(), st.GetInfo(), err
	default:
		st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: o.id, Verbose: true})
		return st.GetStatus(), st.GetInfo(), err
	}
}

// document prints JSON, or YAML if that was asked for.
func (pr *printer) document(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err == nil && pr.format == "yaml" {
		b, err = yaml.JSONToYAML(b)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, strings.TrimRight(string(b), "\n"))
	return err
}
