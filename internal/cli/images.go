// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
)

func (a *app) imagesCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "images", Short: "List or remove images", Args: cobra.NoArgs}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			list, err := c.ListImages(ctx, &runtimeapi.ListImagesRequest{})
			if err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), list, func(w *tabwriter.Writer) {
				fmt.Fprintln(w, "IMAGE\tNAME\tSIZE")
				for _, i := range list.GetImages() {
					names := i.GetRepoTags()
					if len(names) == 0 {
						names = append(i.GetRepoDigests(), "<none>")[:1]
					}
					for _, n := range names {
						fmt.Fprintf(w, "%s\t%s\t%s\n", short(i.GetId()), n, size(i.GetSize()))
					}
				}
			})
		})
	}
	rm := &cobra.Command{Use: "rm IMAGE...", Short: "Remove images", Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.complete(images)}
	rm.RunE = func(cmd *cobra.Command, args []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			return each(ctx, cmd.OutOrStdout(), args, func(arg string) error {
				_, err := c.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: arg}})
				return err
			})
		})
	}
	cmd.AddCommand(rm, a.verifyCommand())
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

func (a *app) pullCommand() *cobra.Command {
	var creds string
	cmd := &cobra.Command{Use: "pull IMAGE", Short: "Pull an image from its registry", Args: cobra.ExactArgs(1)}
	cmd.Flags().StringVar(&creds, "creds", "", "USER:PASSWORD for the registry")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var auth *runtimeapi.AuthConfig
		if creds != "" {
			user, pass, ok := strings.Cut(creds, ":")
			if !ok {
				return errors.New("--creds is not USER:PASSWORD")
			}
			auth = &runtimeapi.AuthConfig{Username: user, Password: pass}
		}
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
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

func (a *app) importCommand() *cobra.Command {
	var ref string
	cmd := &cobra.Command{Use: "import FILE", Short: "Import images from an OCI or docker archive", Args: cobra.ExactArgs(1)}
	cmd.Flags().StringVar(&ref, "ref", "", "name for an image that has none in the archive")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := filepath.Abs(args[0])
		if err != nil {
			return err
		}
		what := "importing " + args[0]
		if st, err := os.Stat(path); err == nil { // if not, the service says why
			what += ", " + size(uint64(st.Size())) //nolint:gosec // not negative
		}
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			defer importProgress(ctx, c, what, path)()
			names, err := c.Import(ctx, path, ref)
			for _, n := range names {
				fmt.Fprintln(cmd.OutOrStdout(), n)
			}
			return err
		})
	}
	return cmd
}
