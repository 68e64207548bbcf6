// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
)

func imagesCommand(svc *service, pr *printer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "images",
		Short: "List images, with what uses them and what their removal frees; remove or prune them",
		Long: "List images. SIZE is what the image has in its registry, DISK what it takes here together with what it shares with\n" +
			"others, and FREES what its removal gives back. An artifact is not run, but mounted by containers as a volume, and from a checkpoint a container is restored. A pinned image is left by the kubelet's garbage collection and by prune.",
		Args: cobra.NoArgs,
	}
	var quiet, whole bool
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print IDs alone, whole ones")
	cmd.Flags().BoolVar(&whole, "no-trunc", false, "print whole IDs, and all users")
	cmd.Flags().BoolP("all", "a", false, "all images are listed also without it")
	_ = cmd.Flags().MarkHidden("all") // the habit of docker and podman
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		id, users := short, few
		if whole || pr.format == "wide" {
			users = func(all []string) string { return cmp.Or(strings.Join(all, ", "), "-") }
		}
		if whole {
			id = func(id string) string { return id }
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			resp, err := c.Node.Images(ctx, &berthv1.ImagesRequest{})
			if client.IsUnimplemented(err) {
				return plainImages(ctx, pr, cmd, c)
			}
			if err != nil {
				return err
			}
			switch {
			case quiet:
				for _, i := range resp.GetImages() {
					fmt.Fprintln(cmd.OutOrStdout(), i.GetId())
				}
				return nil
			case pr.format == "name":
				for _, i := range resp.GetImages() {
					fmt.Fprintln(cmd.OutOrStdout(), strings.Join(namesOf(i.GetRepoTags(), append(i.GetRepoDigests(), i.GetId())), "\n"))
				}
				return nil
			}
			return pr.print(cmd.OutOrStdout(), items{document{resp}, "images"}, func(w *tabwriter.Writer) {
				fmt.Fprintln(w, "IMAGE\tNAME\tKIND\tSIZE\tDISK\tFREES\tAGE\tPINNED\tUSED BY")
				for _, i := range resp.GetImages() {
					for _, n := range namesOf(i.GetRepoTags(), i.GetRepoDigests()) {
						fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
							id(i.GetId()),
							n,
							kind(i),
							size(i.GetSize()),
							amount(i.GetDisk()),
							amount(i.GetFrees()),
							age(i.GetCreated().AsTime().UnixNano()),
							cmp.Or(strings.Join(i.GetPins(), ", "), "-"),
							users(i.GetUsers()))
					}
				}
			})
		})
	}
	cmd.AddCommand(imagesRmCommand(svc, pr), imagesPruneCommand(svc, pr), imagesAllowedCommand(pr), verifyCommand(svc, pr))
	return cmd
}

// plainImages lists images as CRI has them, for a runtime that is not berth or an earlier one.
func plainImages(ctx context.Context, pr *printer, cmd *cobra.Command, c *client.Client) error {
	list, err := c.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return err
	}
	return pr.print(cmd.OutOrStdout(), items{document{list}, "images"}, func(w *tabwriter.Writer) {
		fmt.Fprintln(w, "IMAGE\tNAME\tSIZE")
		for _, i := range list.GetImages() {
			for _, n := range namesOf(i.GetRepoTags(), i.GetRepoDigests()) {
				fmt.Fprintf(w, "%s\t%s\t%s\n", short(i.GetId()), n, size(i.GetSize()))
			}
		}
	})
}

// namesOf returns the names under which an image is listed: its tags, or else a digest.
func namesOf(tags, digests []string) []string {
	if len(tags) > 0 {
		return tags
	}
	return append(slices.Clone(digests), "<none>")[:1]
}

// kind tells whether an image is one to run, an artifact to mount, or a checkpoint to restore.
func kind(i *berthv1.Image) string {
	switch {
	case i.GetArtifact() != "":
		return "artifact"
	case i.GetCheckpoint():
		return "checkpoint"
	}
	return "image"
}

// amount is size for a number of bytes that cannot be negative.
func amount(n int64) string { return size(uint64(max(n, 0))) }

// few names the first two of many.
func few(all []string) string {
	const most = 2
	switch {
	case len(all) == 0:
		return "-"
	case len(all) > most:
		return oneLine(fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most))
	}
	return oneLine(strings.Join(all, ", "))
}

func imagesRmCommand(svc *service, pr *printer) *cobra.Command {
	var req berthv1.RemoveImageRequest
	rm := &cobra.Command{
		Use:   "rm IMAGE...",
		Short: "Take names of images away, and remove the images that have no other, also pinned ones",
		Long: "Take names of images away. An image is removed with the last of its names; the digest under which it came goes with\n" +
			"the last tag of its repository. An ID stands for all names of its image. An image that a container uses, in whatever\n" +
			"state, and an ID that stands for several tags need --force.",
		Args: cobra.MinimumNArgs(1),

		ValidArgsFunction: svc.complete(images),
	}
	rm.Flags().BoolVarP(&req.Force, "force", "f", false, "also remove an image that containers use, or with all tags by its ID")
	rm.Flags().BoolVar(&req.DryRun, "dry-run", false, "remove nothing, and print what would be removed")
	rm.RunE = func(cmd *cobra.Command, args []string) error {
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			return eachSilently(ctx, args, func(arg string) error {
				req.Image = arg
				r, err := c.Control.RemoveImage(ctx, &req)
				if client.IsUnimplemented(err) {
					return removeWhole(ctx, cmd.OutOrStdout(), c, &req)
				}
				if err != nil {
					return err
				}
				return pr.print(cmd.OutOrStdout(), r, func(w *tabwriter.Writer) { saysRemoved(w, r, req.DryRun) })
			})
		})
	}
	return rm
}

// saysRemoved prints the effect of the removal of a name.
func saysRemoved(w io.Writer, r *berthv1.RemoveImageResponse, dryRun bool) {
	removed, stays, freed := "removed", "stays", "are freed"
	if dryRun {
		removed, stays, freed = "would remove", "would stay", "would be freed"
	}
	for _, n := range r.GetNames() {
		fmt.Fprintf(w, "%s the name %s\n", removed, n)
	}
	if len(r.GetLeft()) > 0 {
		fmt.Fprintf(w, "the image %s %s, as %s\n", short(r.GetId()), stays, strings.Join(r.GetLeft(), ", "))
		return
	}
	notes := ""
	if r.GetPinned() {
		notes += "; it was pinned against garbage collection"
	}
	if len(r.GetUsers()) > 0 {
		notes += "; it is used by " + few(r.GetUsers())
	}
	fmt.Fprintf(w, "%s the image %s; %s %s%s\n", removed, short(r.GetId()), amount(r.GetBytes()), freed, notes)
}

// removeWhole removes an image of a runtime that is not berth, or of an earlier one: with all its
// names, which are printed, so that an image with further names needs --force.
func removeWhole(ctx context.Context, w io.Writer, c *client.Client, req *berthv1.RemoveImageRequest) error {
	spec := &runtimeapi.ImageSpec{Image: req.GetImage()}
	st, err := c.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil {
		return err
	}
	tags := st.GetImage().GetRepoTags()
	switch {
	case st.GetImage() == nil:
		return fmt.Errorf("image %s is not on this node", req.GetImage())
	case len(tags) > 1 && !req.GetForce():
		return fmt.Errorf("image %s: this service removes an image with all its names, which are %s; use --force for that",
			req.GetImage(), strings.Join(tags, ", "))
	case !req.GetDryRun():
		if _, err := c.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec}); err != nil {
			return err
		}
	}
	saysRemoved(w, &berthv1.RemoveImageResponse{Id: st.GetImage().GetId(), Names: tags, Pinned: st.GetImage().GetPinned()}, req.GetDryRun())
	return nil
}

func imagesPruneCommand(svc *service, pr *printer) *cobra.Command {
	var dryRun bool
	var olderThan time.Duration
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove all images that no container uses",
		Long: "Remove all images that no container uses, in whatever state it is, that are not pinned, not being pulled, and that came\n" +
			"to this node longer ago than --older-than: as the kubelet's garbage collection does when the disk is full. What pulls\n" +
			"that were cut off have left for the next ones is removed as well.",
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "remove nothing, and print what would be removed")
	cmd.Flags().DurationVar(&olderThan, "older-than", 2*time.Minute, "leave images that came to this node since; a pod may be about to use them")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if olderThan < 0 {
			return fmt.Errorf("--older-than %s is less than 0", olderThan)
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			p, err := c.Control.PruneImages(ctx, &berthv1.PruneImagesRequest{DryRun: dryRun, OlderThan: durationpb.New(olderThan)})
			if err != nil {
				return err
			}
			err = pr.print(cmd.OutOrStdout(), items{document{p}, "images"}, func(w *tabwriter.Writer) {
				fmt.Fprintln(w, "IMAGE\tNAME\tFREES")
				for _, i := range p.GetImages() {
					if i.GetError() == "" {
						fmt.Fprintf(w, "%s\t%s\t%s\n", short(i.GetId()), namesOf(i.GetNames(), nil)[0], amount(i.GetBytes()))
					}
				}
				verb := "were freed"
				if dryRun {
					verb = "would be freed"
				}
				if p.GetKept() > 0 {
					fmt.Fprintf(w, "-\twhat pulls that were cut off have left\t%s\n", amount(p.GetKept()))
				}
				fmt.Fprintf(w, "%s %s; %d images are used, %d pinned, %d too young\n", amount(p.GetBytes()), verb, p.GetUsed(), p.GetPinned(), p.GetYoung())
			})
			for _, i := range p.GetImages() {
				if i.GetError() != "" {
					err = errors.Join(err, fmt.Errorf("image %s: %s", namesOf(i.GetNames(), []string{i.GetId()})[0], i.GetError()))
				}
			}
			return err
		})
	}
	return cmd
}

// size writes a number of bytes with at most four digits below 10 GiB.
func size(n uint64) string {
	for _, u := range []string{"B", "KiB", "MiB", "GiB"} {
		if n < 10*1024 || u == "GiB" {
			return fmt.Sprintf("%d %s", n, u)
		}
		n /= 1024
	}
	return ""
}

func pullCommand(svc *service) *cobra.Command {
	var creds string
	var stdin bool
	cmd := &cobra.Command{
		Use:   "pull IMAGE",
		Short: "Pull an image from its registry",
		Long: "Pull an image from its registry. Without --creds and --creds-stdin the credentials are those that docker login or\n" +
			"podman login has stored for the registry (~/.docker/config.json), and else those of image.auth.",
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&creds, "creds", "", "USER:PASSWORD for the registry; other users of the host see it while it runs")
	cmd.Flags().BoolVar(&stdin, "creds-stdin", false, "read USER:PASSWORD from the standard input")
	cmd.MarkFlagsMutuallyExclusive("creds", "creds-stdin")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		auth, err := credentials(cmd, args[0], creds, stdin)
		if err != nil {
			return err
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			defer pullProgress(ctx, c, args[0])()
			resp, err := c.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: args[0]}, Auth: auth})
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), resp.GetImageRef())
			return nil
		})
	}
	return cmd
}

// credentials returns those for the registry of an image; nil if there are none here.
func credentials(cmd *cobra.Command, image, creds string, stdin bool) (*runtimeapi.AuthConfig, error) {
	if stdin {
		b, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), 1<<16))
		if err != nil {
			return nil, fmt.Errorf("read the credentials: %w", err)
		}
		creds = strings.TrimRight(string(b), "\r\n")
	}
	if creds != "" || stdin {
		user, pass, ok := strings.Cut(creds, ":")
		if !ok {
			return nil, errors.New("the credentials are not USER:PASSWORD")
		}
		return &runtimeapi.AuthConfig{Username: user, Password: pass}, nil
	}
	ref, err := name.ParseReference(image)
	if err != nil {
		return nil, nil // the service says what is wrong with the name
	}
	auth, err := authn.DefaultKeychain.Resolve(ref.Context())
	var c *authn.AuthConfig
	if err == nil {
		c, err = auth.Authorization()
	}
	switch {
	case err != nil:
		fmt.Fprintf(cmd.ErrOrStderr(), "the credentials of docker login cannot be read; going on without: %v\n", err)
		return nil, nil
	case *c == (authn.AuthConfig{}):
		return nil, nil
	}
	return &runtimeapi.AuthConfig{
		Username:      c.Username,
		Password:      c.Password,
		Auth:          c.Auth,
		IdentityToken: c.IdentityToken,
		RegistryToken: c.RegistryToken,
	}, nil
}

func importCommand(svc *service) *cobra.Command {
	var ref string
	cmd := &cobra.Command{Use: "import FILE", Short: "Import images from an OCI or docker archive", Args: cobra.ExactArgs(1)}
	cmd.Flags().StringVar(&ref, "ref", "", "name for the image that has none in the archive, or for the only one")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := absolute(args[0])
		if err != nil {
			return err
		}
		what := "importing " + args[0]
		if st, err := os.Stat(path); err == nil { // if not, the service returns the reason
			what += ", " + size(uint64(st.Size()))
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			defer importProgress(ctx, c, what, path)()
			in, err := c.Control.ImportImages(ctx, &berthv1.ImportImagesRequest{Path: path, Ref: ref})
			for _, n := range in.GetNames() {
				fmt.Fprintln(cmd.OutOrStdout(), n)
			}
			for _, why := range in.GetLeftOut() {
				fmt.Fprintln(cmd.ErrOrStderr(), "left out:", Visible(why))
			}
			return err
		})
	}
	return cmd
}
