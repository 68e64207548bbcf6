// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"berth/internal/heart/state"
)

// half is where the objects of a pod are: some of them may be taken, and some not.
type half struct{ taken, all int }

// pretend is a pod, its records and its objects, that dies before or after a step.
type pretend struct {
	owner   state.Owner
	objects half
	left    int // steps until it dies
	t       *testing.T
}

var errDead = errors.New("killed")

func (p *pretend) do(effect func()) error {
	if p.left == 0 {
		return errDead
	}
	p.left--
	effect()
	p.check()
	return nil
}

// check fails where somebody could serve a pod that is not whole: berth serves berth's own, and the
// plug-in all of which there is no record.
func (p *pretend) check() {
	p.t.Helper()
	switch p.owner {
	case state.OwnerBerth:
		if p.objects.taken != p.objects.all {
			p.t.Errorf("berth has the pod, and %d of %d objects", p.objects.taken, p.objects.all)
		}
	case state.OwnerPlugIn:
		if p.objects.taken != 0 {
			p.t.Errorf("the plug-in has the pod, and berth %d of its objects", p.objects.taken)
		}
	case state.OwnerTaking, state.OwnerGiving:
	}
}

func (p *pretend) Note(_ context.Context, _ string, owner state.Owner) error {
	return p.do(func() { p.owner = owner })
}

func (p *pretend) TakeOver(context.Context, string) error {
	for p.objects.taken < p.objects.all {
		if err := p.do(func() { p.objects.taken++ }); err != nil {
			return err
		}
	}
	return nil
}

func (p *pretend) HandOver(context.Context, string) error {
	for p.objects.taken > 0 {
		if err := p.do(func() { p.objects.taken-- }); err != nil {
			return err
		}
	}
	return nil
}

// PROPERTIES 46: an adoption, or its way back, is killed at each step, and what goes on from there, in
// either direction, is killed at each step as well. Nobody ever has a part of a pod, and both ways lead
// to a whole one.
func TestBothWaysLeadToAWholePodFromEachStep(t *testing.T) {
	const objects, steps, always = 3, 7, 1 << 20
	ends := map[Direction]state.Owner{Take: state.OwnerBerth, Give: state.OwnerPlugIn}
	starts := map[Direction]pretend{
		Take: {owner: state.OwnerPlugIn, objects: half{0, objects}},
		Give: {owner: state.OwnerBerth, objects: half{objects, objects}},
	}
	for first := range starts {
		for second := range starts {
			for last := range starts {
				for killed := range steps {
					for again := range steps {
						t.Run(fmt.Sprint(first, killed, second, again, last), func(t *testing.T) {
							p := starts[first]
							p.t = t
							for _, way := range []struct {
								to   Direction
								left int
							}{{first, killed}, {second, again}, {last, always}} {
								p.left = way.left
								err := Move(t.Context(), &p, "p", p.owner, way.to)
								if err != nil && !errors.Is(err, errDead) {
									t.Fatal(err)
								}
							}
							want := half{0, objects}
							if last == Take {
								want.taken = objects
							}
							if p.owner != ends[last] || p.objects != want {
								t.Errorf("it is %q with %v", p.owner, p.objects)
							}
						})
					}
				}
			}
		}
	}
}

// An owner is on record before anything is done in its name, and no step leads from one of the two to
// the other without a record of what is being done.
func TestAnOwnerIsNotedBeforeAnythingIsDone(t *testing.T) {
	owners := []state.Owner{state.OwnerPlugIn, state.OwnerTaking, state.OwnerBerth, state.OwnerGiving}
	for _, to := range []Direction{Take, Give} {
		for _, now := range owners {
			s, done := next(now, to)
			if done != (to == Take && now == state.OwnerBerth || to == Give && now == state.OwnerPlugIn) {
				t.Errorf("%s of what is %s: done %v", to, Whose(now), done)
			}
			if s.effect != effectNone && now != map[effect]state.Owner{effectTakeOver: state.OwnerTaking, effectHandOver: state.OwnerGiving}[s.effect] {
				t.Errorf("%s of what is %s: %s", to, Whose(now), s.effect)
			}
		}
	}
}
