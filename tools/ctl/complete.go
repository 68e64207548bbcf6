// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
)

// completeTimeout is how long a shell waits for names.
const completeTimeout = time.Second

// Kinds of names that complete offers.
const (
	pods = 1 << iota
	containers
	images
	running // only pods that are READY and containers that are RUNNING
	one     // for the first argument only
)

// complete offers names from the service to the shell. The names of containers that are in several
// pods are POD/NAME or NAMESPACE/POD/NAME, and an object without an unambiguous name is offered by
// its ID.
func (svc *service) complete(what ...int) cobra.CompletionFunc {
	want := 0
	for _, w := range what {
		want |= w
	}
	return func(cmd *cobra.Command, args []string, begin string) ([]cobra.Completion, cobra.ShellCompDirective) {
		const nothing = cobra.ShellCompDirectiveNoFileComp
		if want&one != 0 && len(args) > 0 {
			return nil, nothing
		}
		c, err := client.Dial(svc.endpoint)
		if err != nil {
			return nil, nothing
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmdContext(cmd)), completeTimeout)
		defer cancel()
		names := candidates(ctx, c, want)
		names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, begin) || slices.Contains(args, n) })
		slices.Sort(names)
		return slices.Compact(names), nothing
	}
}

func cmdContext(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}

// candidates lists the names that are wanted. Names that cannot be listed are left out.
func candidates(ctx context.Context, c *client.Client, want int) []string {
	var names []string
	if want&(pods|containers) != 0 {
		all, err := objects(ctx, c, want&containers != 0)
		if err != nil {
			return nil
		}
		for _, o := range all {
			if o.old || want&running != 0 && !o.running || o.pod && want&pods == 0 {
				continue
			}
			for _, name := range []string{o.name, o.path, o.full, short(o.id)} {
				if found, err := pick(all, name, want&pods != 0); err == nil && found.id == o.id {
					names = append(names, name)
					break
				}
			}
		}
	}
	if want&images != 0 {
		if list, err := c.ListImages(ctx, &runtimeapi.ListImagesRequest{}); err == nil {
			for _, i := range list.GetImages() {
				names = append(names, i.GetRepoTags()...)
			}
		}
	}
	return names
}
