// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	berthv1 "berth/api/berth/v1"
)

// parted is a node that answers with a few entries at a time.
type parted struct {
	berthv1.NodeClient
	has  uint64
	most uint64
}

func (p parted) Timeline(_ context.Context, q *berthv1.TimelineRequest, _ ...grpc.CallOption) (*berthv1.TimelineResponse, error) {
	resp := &berthv1.TimelineResponse{Last: p.has}
	for n := q.GetAfter() + 1; n <= p.has; n++ {
		if uint64(len(resp.GetEntries())) == p.most {
			resp.More, resp.Last = true, n-1
			break
		}
		resp.Entries = append(resp.Entries, &berthv1.Entry{Number: n})
	}
	return resp, nil
}

// events --since printed the end of what was asked for: an answer has 2,000 entries at most.
func TestATimelineInPartsIsPutTogether(t *testing.T) {
	for _, has := range []uint64{0, 1, 3, 4, 9, 10} {
		q := &berthv1.TimelineRequest{Node: true, After: 1}
		h, err := (&Client{Node: parted{has: has, most: 3}}).Timeline(t.Context(), q)
		if err != nil || h.GetMore() || h.GetLast() != has || q.GetAfter() != 1 {
			t.Errorf("%d: %v, %v, %v", has, err, h, q)
		}
		for i, e := range h.GetEntries() {
			if e.GetNumber() != uint64(i+2) {
				t.Errorf("%d: entry %d is number %d", has, i, e.GetNumber())
			}
		}
		if want := max(has, 1) - 1; uint64(len(h.GetEntries())) != want {
			t.Errorf("%d: %d entries, want %d", has, len(h.GetEntries()), want)
		}
	}
}
