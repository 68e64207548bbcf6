// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"

	"berth/internal/base/ops"
)

// shares is an update of the CPU shares of a container.
func shares(id string, n uint64) *api.ContainerUpdate {
	u := &api.ContainerUpdate{}
	u.SetContainerId(id)
	u.SetLinuxCPUShares(n)
	return u
}

// What plug-ins ask for about containers whose shims hang does not hold up what they ask for about
// others: thirty requests used to take five minutes, one after the other.
func TestARequestThatHangsHoldsUpItsContainerAlone(t *testing.T) {
	s, pods := start(t, 10*time.Second)
	pods.hangs = func(id string) bool { return strings.HasPrefix(id, "hangs") }
	p := join(t, s, &plugin{})
	for i := range 30 {
		s.ask([]*api.ContainerUpdate{shares(fmt.Sprint("hangs-", i), 5)}, nil)
	}
	s.ask(nil, []*api.ContainerEviction{{ContainerId: "hangs-0"}, {ContainerId: "y"}})
	s.ask([]*api.ContainerUpdate{shares("x", 5), shares("x", 6)}, nil)
	until(t, "another one is evicted", func() bool { return pods.called("stop y") })
	until(t, "another one is updated", func() bool { return pods.called("update x 6") })
	if pods.called("stop hangs-0") {
		t.Error("two requests about a container are carried out at the same time")
	}

	go func() { _, _ = p.stub.UpdateContainers([]*api.ContainerUpdate{shares("hangs-a", 1), shares("z", 1)}) }()
	until(t, "the last one of an unsolicited update is updated", func() bool { return pods.called("update z 1") })
}

// PROPERTIES 27: a plug-in that has asked to stay connected when it does not answer in time is left
// alone once it did not answer a few times in a row: creations used to queue one behind the other
// for it. What follows for the requests is as the plug-in has asked for.
func TestAPluginThatStaysConnectedIsLeftAloneWhileItHangs(t *testing.T) {
	for _, fails := range []bool{false, true} {
		s, _ := start(t, 100*time.Millisecond)
		hang := make(chan struct{})
		p := join(t, s, &plugin{
			hang:   map[string]chan struct{}{"create": hang},
			policy: &api.FailurePolicy{KeepConnected: true, FailRequest: fails},
		})
		for i := range 20 {
			c := container(fmt.Sprint("c", i), "p")
			err := s.AdjustSpec(t.Context(), c, c.Config, ociSpec())
			if fails != (err != nil) || fails && !strings.Contains(err.Error(), "10-test") {
				t.Errorf("a creation ended with %v", err)
			}
			if fails && i == 19 && !strings.Contains(err.Error(), "in a row") {
				t.Errorf("a creation ended with %v", err)
			}
		}
		if n := len(p.all()); n > 2*mostTimeouts {
			t.Errorf("it was asked %d times: %q", n, p.all())
		}
		close(hang)
	}
}

// After a rest one request tries again: an answer ends it, and no answer begins the next one.
func TestAPluginThatAnswersAgainIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, answer := 0, context.DeadlineExceeded
		h := (&health{}).guard(5 * time.Second)
		call := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			return h(ctx, nil, nil, nil, func(context.Context, *ttrpc.Request, *ttrpc.Response) error {
				asked++
				if answer != nil {
					time.Sleep(5 * time.Second)
				}
				return answer
			})
		}
		for range 20 {
			if err := call(); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		if asked != mostTimeouts {
			t.Errorf("asked %d times", asked)
		}
		time.Sleep(pluginRest)
		_, _ = call(), call()
		if asked != mostTimeouts+1 {
			t.Errorf("asked %d times after a rest", asked)
		}
		time.Sleep(pluginRest)
		answer = nil
		if err := call(); err != nil {
			t.Error(err)
		}
		answer = context.DeadlineExceeded
		_ = call()
		if _ = call(); asked != mostTimeouts+4 {
			t.Errorf("asked %d times after it had answered", asked)
		}
	})
}

// PROPERTIES 65: a plug-in that does not answer is named while it is waited for.
func TestARequestThatHangsIsListed(t *testing.T) {
	list := &ops.List{}
	ctx, op := list.Begin(t.Context(), ops.Work{Kind: ops.Create})
	defer op.End()
	var during []ops.Operation
	h := (&health{}).guard(time.Second)
	if err := h(ctx, &ttrpc.Request{Method: "CreateContainer"}, nil, nil, func(context.Context, *ttrpc.Request, *ttrpc.Response) error {
		during, _ = list.Snapshot()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(during) != 2 || during[1].What != "an NRI plug-in (CreateContainer)" || during[1].PartOf != during[0].Number {
		t.Errorf("listed is %+v", during)
	}
	if after, _ := list.Snapshot(); len(after) != 1 {
		t.Errorf("listed after the answer is %+v", after)
	}
}
