// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
)

// endedState is the state of a container or pod whose process has ended, which is not on record
// yet. CRI does not have this state: it reports RUNNING or READY until the end is on the disk,
// which may take as long as the disk cannot be written.
const endedState = "ENDED"

// ends are the known ends that are not on record yet, by ID. They are asked for before a list: an
// end that comes on record meanwhile is in the list.
type ends map[string]*berthv1.Exit

// endsOf asks for the ends that are not on record. Another runtime does not tell of any.
func endsOf(ctx context.Context, c *client.Client) (ends, error) {
	resp, err := c.Node.Ended(ctx, &berthv1.EndedRequest{})
	if client.IsUnimplemented(err) {
		return nil, nil
	}
	return resp.GetExits(), err
}

// state returns the state of a container or pod, given its state in CRI.
func (e ends) state(id string, state fmt.Stringer) string {
	w := word(state.String())
	if _, ok := e[id]; ok && w != "EXITED" && w != "NOTREADY" {
		return endedState
	}
	return w
}

func (e ends) runs(ct *runtimeapi.Container) bool {
	return e.state(ct.GetId(), ct.GetState()) == "RUNNING"
}
