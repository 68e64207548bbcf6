// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
)

// underWay is the list of what is under way on the node, the oldest first.
type underWay []*berthv1.Operation

// askUnderWay asks for the list. Another runtime has none.
func askUnderWay(ctx context.Context, c *client.Client) (underWay, error) {
	resp, err := c.Node.UnderWay(ctx, &berthv1.UnderWayRequest{})
	if client.IsUnimplemented(err) {
		return nil, nil
	}
	return resp.GetOperations(), err
}

// nameOf returns the name of the object of an operation, as its sentence has it.
func nameOf(o *berthv1.Operation) string {
	of := o.GetOf()
	switch {
	case of.GetContainer() != "":
		return of.GetNamespace() + "/" + of.GetPod() + "/" + of.GetContainer()
	case of.GetPod() != "":
		return of.GetNamespace() + "/" + of.GetPod()
	}
	return cmp.Or(short(o.GetId()), o.GetImage(), "The node")
}

// about returns the sentences, without their subjects, of what is under way of an object: a pod by
// its ID and as NAMESPACE/POD, a container by its ID and as NAMESPACE/POD/CONTAINER.
func (u underWay) about(id, name string) string {
	var said []string
	for _, o := range u {
		if o.GetSentence() != "" && (id != "" && strings.HasPrefix(id, cmp.Or(o.GetId(), "-")) || nameOf(o) == name) {
			said = append(said, strings.TrimSuffix(strings.TrimPrefix(o.GetSentence(), nameOf(o)+" "), "."))
		}
	}
	return strings.Join(said, "; ")
}

// of returns the operations that concern containers, or pods and their images, and their parts.
// Those of a command or a connection in a container are left out: they take as long as their client
// likes.
func (u underWay) of(containers bool) underWay {
	return slices.DeleteFunc(slices.Clone(u), func(o *berthv1.Operation) bool {
		return o.GetOf().GetPod() == "" || (o.GetOf().GetContainer() != "") != containers ||
			slices.Contains([]string{"exec", "attach", "port-forward"}, o.GetKind())
	})
}

// sentences returns the operations in sentences.
func (u underWay) sentences() (said []string) {
	for _, o := range u {
		if o.GetSentence() != "" {
			said = append(said, o.GetSentence())
		}
	}
	return said
}

// summary returns at most a number of sentences, the oldest first, and counts the rest by what they
// wait for.
func (u underWay) summary(most int) []string {
	said := u.sentences()
	if len(said) <= most {
		return said
	}
	parts := map[uint64]bool{}
	for _, o := range u {
		if o.GetPartOf() != 0 {
			parts[o.GetPartOf()] = true
		}
	}
	rest, n := map[string]int{}, 0
	for _, o := range u {
		if o.GetSentence() != "" {
			n++
		}
		if n > most && !parts[o.GetNumber()] { // it waits for nothing below
			rest[cmp.Or(o.GetWhat(), o.GetKind())]++
		}
	}
	words := slices.SortedFunc(maps.Keys(rest), func(a, b string) int {
		return cmp.Or(cmp.Compare(rest[b], rest[a]), cmp.Compare(a, b))
	})
	for i, w := range words {
		words[i] = fmt.Sprintf("%d with %s", rest[w], w)
	}
	return append(said[:most:most], fmt.Sprintf("%d more: %s", len(said)-most, strings.Join(words, ", ")))
}

func underWayCommand(svc *service, pr *printer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "underway",
		Short: "List what is under way: calls, steps, and the plug-ins, programs and disks that they wait for",
		Args:  cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			resp, err := c.Node.UnderWay(ctx, &berthv1.UnderWayRequest{})
			if err != nil {
				return err
			}
			return pr.print(cmd.OutOrStdout(), resp, func(w *tabwriter.Writer) {
				fmt.Fprintln(w, "OBJECT\tKIND\tWHAT\tFOR\tLEFT\tTHEN\tBY")
				for _, o := range resp.GetOperations() {
					left, indent := "-", ""
					if o.GetLeft() != nil {
						left = o.GetLeft().AsDuration().Round(time.Second).String()
					}
					if o.GetPartOf() != 0 {
						indent = "  "
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
						nameOf(o),
						indent+o.GetKind(),
						oneLine(o.GetWhat()),
						o.GetAge().AsDuration().Round(time.Second),
						left,
						o.GetThen(),
						o.GetBy())
				}
				if n := resp.GetLeftOut(); n > 0 {
					fmt.Fprintf(w, "%d more are not listed\n", n)
				}
			})
		})
	}
	return cmd
}
