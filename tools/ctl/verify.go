// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
)

// verified is the result for an image.
type verified struct {
	Image string     `json:"image"`
	Parts []document `json:"parts"`

	parts []*berthv1.Part
}

// The outcomes of parts that the command tells apart.
const (
	partWhole   = "whole"
	partWrong   = "wrong"
	partUnknown = "unknown"
)

// verifyImage compares an image with its sources, and repairs it if repair is set.
func verifyImage(ctx context.Context, c *client.Client, name string, repair bool) ([]*berthv1.Part, error) {
	if repair {
		resp, err := c.Control.RepairImage(ctx, &berthv1.RepairImageRequest{Image: name})
		return resp.GetParts(), err
	}
	resp, err := c.Node.VerifyImage(ctx, &berthv1.VerifyImageRequest{Image: name})
	return resp.GetParts(), err
}

// verifyCommand compares images on the disk with their content in the store, one after the other.
func verifyCommand(svc *service, pr *printer) *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use:               "verify [IMAGE]...",
		Short:             "Compare the files of images with what they were made from",
		Long:              "Compare the blobs of images with their digests, and each file of their layers with the index that was\nwritten when the layer was unpacked. Without an image, all images are verified, and the seccomp profiles\nfrom registries; such a profile is named by its reference or digest.",
		ValidArgsFunction: svc.complete(images),
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "unpack wrong layers again from what is on this node, write wrong profiles again, and remove wrong blobs")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			if len(args) == 0 {
				list, err := c.Node.Images(ctx, &berthv1.ImagesRequest{})
				if err != nil {
					return err
				}
				for _, i := range list.GetImages() {
					args = append(args, append(append(i.GetRepoTags(), i.GetRepoDigests()...), i.GetId())[0])
				}
				for _, p := range list.GetProfiles() {
					args = append(args, append(p.GetRefs(), p.GetDigest())[0])
				}
			}
			var all []verified
			wrong := 0
			for n, arg := range args {
				done := progress(fmt.Sprintf("verifying %s, %d of %d", arg, n+1, len(args)))
				parts, err := verifyImage(ctx, c, arg, repair)
				done()
				if err != nil {
					return err
				}
				all = append(all, verified{arg, documents(parts), parts})
				for _, p := range parts {
					if p.GetOutcome() == partWrong || p.GetOutcome() == partUnknown {
						wrong++
					}
				}
			}
			if err := pr.print(cmd.OutOrStdout(), all, func(w *tabwriter.Writer) { printVerified(w, all) }); err != nil {
				return err
			}
			if wrong > 0 && !repair {
				return fmt.Errorf("%d layers or blobs are not known to be right; repair them with --repair", wrong)
			}
			if wrong > 0 {
				return fmt.Errorf("%d layers or blobs could not be repaired; pull the images again", wrong)
			}
			return nil
		})
	}
	return cmd
}

// printVerified writes a line for each image, and one for each part of it that is damaged.
func printVerified(w *tabwriter.Writer, all []verified) {
	fmt.Fprintln(w, "IMAGE\tPART\tOUTCOME\tDETAIL")
	for _, v := range all {
		whole := 0
		for _, p := range v.parts {
			if p.GetOutcome() == partWhole {
				whole++
				continue
			}
			fmt.Fprintf(w, "%s\t%s %s\t%s\t%s\n", Visible(v.Image), p.GetKind(), short(p.GetId()), p.GetOutcome(), Visible(p.GetDetail()))
		}
		fmt.Fprintf(w, "%s\t%d of %d\t%s\t\n", Visible(v.Image), whole, len(v.parts), partWhole)
	}
}
