// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
	"berth/internal/lane"
	"berth/internal/timeline"
	"berth/internal/version"
)

func (a *app) imagesCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "images", Short: "List images", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
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
	}}
	rm := &cobra.Command{Use: "rm IMAGE...", Short: "Remove images", Args: cobra.MinimumNArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			return each(cmd.OutOrStdout(), args, func(arg string) error {
				_, err := c.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: arg}})
				return err
			})
		})
	}}
	cmd.AddCommand(rm)
	return cmd
}

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
	cmd := &cobra.Command{Use: "pull IMAGE", Short: "Pull an image", Args: cobra.ExactArgs(1)}
	cmd.Flags().StringVar(&creds, "creds", "", "USER:PASSWORD for the registry")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var auth *runtimeapi.AuthConfig
		if creds != "" {
			user, pass, ok := strings.Cut(creds, ":")
			if !ok {
				return fmt.Errorf("--creds is not USER:PASSWORD")
			}
			auth = &runtimeapi.AuthConfig{Username: user, Password: pass}
		}
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			defer progress("pulling " + args[0])()
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

// progress shows on a terminal that something goes on. The result ends it.
func progress(what string) func() {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return func() {}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		began := time.Now()
		t := time.NewTicker(200 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-done:
				fmt.Fprint(os.Stderr, "\r\x1b[K")
				return
			case <-t.C:
				fmt.Fprintf(os.Stderr, "\r\x1b[K%s ... %ds", what, int(time.Since(began).Seconds()))
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

func (a *app) importCommand() *cobra.Command {
	var ref string
	cmd := &cobra.Command{Use: "import FILE", Short: "Import images from an OCI or docker archive", Args: cobra.ExactArgs(1)}
	cmd.Flags().StringVar(&ref, "ref", "", "name of an image that has none in the archive")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := filepath.Abs(args[0])
		if err != nil {
			return err
		}
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			defer progress("importing " + args[0])()
			names, err := c.Import(ctx, path, ref)
			for _, n := range names {
				fmt.Fprintln(cmd.OutOrStdout(), n)
			}
			return err
		})
	}
	return cmd
}

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{Use: "status", Short: "Say whether pods can be run", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			st, err := c.RuntimeServiceClient.Status(ctx, &runtimeapi.StatusRequest{Verbose: a.output != "table"})
			if err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), st, func(w *tabwriter.Writer) {
				for _, cond := range st.GetStatus().GetConditions() {
					fmt.Fprintf(w, "%s\t%v\t%s\n", cond.GetType(), cond.GetStatus(), cond.GetMessage())
				}
			})
		})
	}}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Versions of this command and of the service", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			v, err := c.RuntimeServiceClient.Version(ctx, &runtimeapi.VersionRequest{})
			both := map[string]any{"client": version.String()}
			if err == nil {
				both["service"] = v
			}
			return errors.Join(a.print(cmd.OutOrStdout(), both, func(w *tabwriter.Writer) {
				fmt.Fprintf(w, "berth\t%s\n", version.String())
				if err == nil {
					fmt.Fprintf(w, "service\t%s %s, CRI %s\n", v.GetRuntimeName(), v.GetRuntimeVersion(), v.GetRuntimeApiVersion())
				}
			}), err)
		})
	}}
}

func (a *app) timelineCommand() *cobra.Command {
	return &cobra.Command{Use: "timeline NAME|ID", Short: "What happened to a container or pod, and what it waits for", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			id := args[0]
			if o, err := resolve(ctx, c, id, true, true); err == nil {
				id = o.id // one that was removed is known by its ID alone
			}
			raw, err := c.Timeline(ctx, id)
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.document(cmd.OutOrStdout(), raw)
			}
			var t struct {
				ID      string
				Entries []timeline.Entry
				Lane    *lane.Lane
			}
			if err := json.Unmarshal(raw, &t); err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintln(out, t.ID)
			for i, e := range t.Entries {
				since := time.Duration(0)
				if i > 0 {
					since = e.At.Sub(t.Entries[i-1].At)
				}
				fmt.Fprintf(out, "%s  %10s  %s", e.At.Local().Format("15:04:05.000000"), "+"+since.Round(time.Microsecond).String(), e.What)
				if e.Detail != "" {
					fmt.Fprintf(out, "  (%s)", e.Detail)
				}
				if e.Err != "" {
					fmt.Fprintf(out, "  ERROR %s", e.Err)
				}
				fmt.Fprintln(out)
			}
			if l := t.Lane; l != nil {
				fmt.Fprintf(out, "now: %v is %s, try %d, until %s; last error: %s\n", l.Head, l.State, l.Tries, l.Until.Local().Format("15:04:05"), l.Err)
			} else {
				fmt.Fprintln(out, "now: waits for nothing")
			}
			return nil
		})
	}}
}

func (a *app) debugCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "debug", Short: "Live state"}
	cmd.AddCommand(&cobra.Command{Use: "lanes", Short: "Lanes that are not idle", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			raw, err := c.Lanes(ctx)
			if err != nil {
				return err
			}
			var lanes []lane.Lane
			if err := json.Unmarshal(raw, &lanes); err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), lanes, func(w *tabwriter.Writer) {
				fmt.Fprintln(w, "ID\tSTEP\tSTATE\tSINCE\tTRY\tWAITING\tERROR")
				for _, l := range lanes {
					fmt.Fprintf(w, "%s\t%v\t%s\t%s\t%d\t%d\t%s\n", short(l.ID), l.Head, l.State, age(l.Since.UnixNano()), l.Tries, l.Waiting, l.Err)
				}
			})
		})
	}})
	return cmd
}
