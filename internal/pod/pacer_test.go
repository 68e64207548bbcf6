// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// admitted is how long the pacer keeps the release of a unit waiting.
func admitted(ctx context.Context, p *pacer, id string, hurried <-chan struct{}) time.Duration {
	began := time.Now()
	p.admit(ctx, id, hurried)()
	return time.Since(began)
}

// PROPERTIES 3: a release keeps out of the way of the exits of others, for a bounded time.
func TestAReleaseKeepsOutOfTheWayOfTheExitsOfOthers(t *testing.T) {
	const ms = time.Millisecond
	hurried := make(chan struct{})
	close(hurried)
	for _, tc := range []struct {
		name    string
		before  func(p *pacer)
		hurried <-chan struct{}
		want    time.Duration
	}{
		{"an exit that comes alone", func(p *pacer) {
			p.reported("a")
			p.settle("a")()
			p.reported("a") // by another witness
		}, nil, 0},
		{"another exit just before", func(p *pacer) {
			p.reported("b")
			time.Sleep(10 * ms)
			p.reported("a")
		}, nil, 50 * ms},
		{"another exit just after", func(p *pacer) {
			p.reported("a")
			time.Sleep(10 * ms)
			p.reported("b")
		}, nil, 50 * ms},
		{"another exit a while ago", func(p *pacer) {
			p.settle("b")()
			time.Sleep(60 * ms)
			p.reported("a")
		}, nil, 0},
		{"a correction of its own in flight", func(p *pacer) {
			p.settle("a")
			p.settle("a")()
		}, nil, 0},
		{"another exit that is not settled", func(p *pacer) { p.settle("b") }, nil, time.Second},
		{"exits without end", func(p *pacer) {
			go func() {
				for i := range 100 {
					p.reported(fmt.Sprint("b", i))
					time.Sleep(20 * ms)
				}
			}()
			time.Sleep(ms)
		}, nil, time.Second},
		{"young releases that hang", func(p *pacer) {
			for len(p.young) < cap(p.young) {
				p.young <- struct{}{}
			}
		}, nil, time.Second},
		{"somebody waits", func(p *pacer) { p.settle("b") }, hurried, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPacer()
				tc.before(p)
				if got := admitted(t.Context(), p, "a", tc.hurried); got != tc.want {
					t.Errorf("the release waited for %v, want %v", got, tc.want)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}
