// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"google.golang.org/protobuf/proto"

	berthv1 "berth/api/berth/v1"
)

// Timeline returns the answer of Node.Timeline whole: one with more entries than an answer may have
// comes in parts, and this puts them together. The question is not changed.
func (c *Client) Timeline(ctx context.Context, q *berthv1.TimelineRequest) (*berthv1.TimelineResponse, error) {
	q = proto.CloneOf(q)
	var entries []*berthv1.Entry
	for {
		part, err := c.Node.Timeline(ctx, q)
		if err != nil {
			return nil, err
		}
		entries = append(entries, part.GetEntries()...)
		if !part.GetMore() || part.GetLast() <= q.GetAfter() {
			part.Entries, part.More = entries, false
			return part, nil
		}
		q.After = part.GetLast()
	}
}
