// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"context"
	"fmt"

	"berth/internal/heart/state"
)

// Direction is where pods go.
type Direction string

// The directions.
const (
	Take Direction = "take" // from the plug-in to berth
	Give Direction = "give" // from berth to the plug-in
)

// step brings a pod, whose owner is on record, nearer to its next owner.
//
//	          note                take over, note
//	plug-in ────────▶ taking ─────────────────────▶ berth
//	   ▲               │  ▲                           │
//	   │          note │  │ note                      │ note
//	   │               ▼  │                           │
//	   └──────────── giving ◀─────────────────────────┘
//	  hand over, forget
//
// The upper way is [Take], the lower one [Give]. An owner is noted before anything is done in its
// name. Taking over and handing over may be cut off anywhere and done again, and each undoes the
// other, so that from wherever a pod was left both ways lead to a whole pod: [next] is the only
// mover.
type step struct {
	effect effect
	owner  state.Owner // that is noted afterwards
}

// effect is a change to a pod outside the records, before an owner is noted.
type effect string

const (
	effectNone     effect = ""
	effectTakeOver effect = "take over"
	effectHandOver effect = "hand over"
)

// next returns the next step of a pod on its way. done is true if it has arrived.
func next(now state.Owner, to Direction) (s step, done bool) {
	if to == Take {
		switch now {
		case state.OwnerPlugIn, state.OwnerGiving:
			return step{effectNone, state.OwnerTaking}, false
		case state.OwnerTaking:
			return step{effectTakeOver, state.OwnerBerth}, false
		case state.OwnerBerth:
		}
		return step{}, true
	}
	switch now {
	case state.OwnerBerth, state.OwnerTaking:
		return step{effectNone, state.OwnerGiving}, false
	case state.OwnerGiving:
		return step{effectHandOver, state.OwnerPlugIn}, false
	case state.OwnerPlugIn:
	}
	return step{}, true
}

// Outside is where the steps of a pod have their effects. Each may be cut off and called again.
type Outside interface {
	// Note records the owner of the pod and its containers: of all at once, or of none. It forgets
	// the records for [state.OwnerPlugIn].
	Note(ctx context.Context, pod string, owner state.Owner) error
	// TakeOver makes all that belongs to the pod berth's, so that the plug-in does not know it.
	TakeOver(ctx context.Context, pod string) error
	// HandOver makes it the plug-in's again.
	HandOver(ctx context.Context, pod string) error
}

// Move brings a pod to the end of a way. now is the owner on record. After an error the record
// tells where the pod is, and Move in either direction goes on from there.
func Move(ctx context.Context, o Outside, pod string, now state.Owner, to Direction) error {
	for {
		s, done := next(now, to)
		if done {
			return nil
		}
		var err error
		switch s.effect {
		case effectTakeOver:
			err = o.TakeOver(ctx, pod)
		case effectHandOver:
			err = o.HandOver(ctx, pod)
		case effectNone:
		}
		if err == nil {
			err = o.Note(ctx, pod, s.owner)
		}
		if err != nil {
			return fmt.Errorf("%s pod %s, which is now %s: %w", to, pod, Whose(now), err)
		}
		now = s.owner
	}
}

// Whose returns the owner of a pod as the end of a sentence, as in "pod p is now berth's".
func Whose(o state.Owner) string {
	switch o {
	case state.OwnerTaking:
		return "being taken over"
	case state.OwnerBerth:
		return "berth's"
	case state.OwnerGiving:
		return "being given back"
	default:
		return "the plug-in's"
	}
}
