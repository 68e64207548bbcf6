// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"berth/internal/base/config"
	"berth/internal/engine/adopt"
	"berth/internal/heart/state"
)

// adopts runs `berth adopt` with an adoption that does nothing but plan.
func adopts(t *testing.T, plan adopt.Plan, back adopt.Back, args ...string) (got adopt.Request, cfg config.Config, out, problem string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := New(Daemon{Adopt: func(_ context.Context, c config.Config, r adopt.Request) error {
		got, cfg = r, c
		if r.Back {
			r.PlannedBack(back)
		} else {
			r.Planned(plan)
		}
		r.Said("%d pods are moved", 7)
		if len(plan.Refused)+len(back.Kept) > 0 {
			return errors.New("refused")
		}
		return nil
	}})
	cmd.SetArgs(append([]string{"adopt"}, args...))
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		problem = err.Error()
	}
	return got, cfg, stdout.String(), problem
}

func TestAdoptPrintsWhatPodsLose(t *testing.T) {
	plan := adopt.Plan{
		Pods: []adopt.Pod{{
			ID: "p1234567890123456", Namespace: "default", Name: "web", State: state.Ready, Lost: []string{"it is disconnected"},
			Containers: []adopt.Container{
				{ID: "c1", Name: "app", State: state.Running, Lost: []string{"its stdin ends"}},
				{ID: "c2", Name: "side", State: state.Running, Lost: []string{"its stdin ends"}},
			},
		}},
		Refused: []adopt.Remark{{ID: "p2", Text: "its shim does not answer"}},
		Left:    []adopt.Remark{{ID: "n1", Text: "nerdctl has made it"}},

		Ended:    []adopt.Remark{{ID: "p3", Text: "pod default/vm: it runs in a virtual machine"}},
		NotEnded: []string{"default/web"},
	}
	r, cfg, out, problem := adopts(t, plan, adopt.Back{}, "--dry-run", "--set", "containerd.address=/c.sock", "--switch", "x", "--end", "default/vm", "--end", "default/web")
	says(t, "the plan", out, "default/web", "READY", "app", "It is disconnected:\n  default/web\n", "Its stdin ends:\n  default/web/app\n  default/web/side\n",
		"left as it is:\n  n1: nerdctl", "Cannot be adopted:\n  p2: its shim does not answer",
		"Ends and is removed, since it cannot be adopted:\n  p3: pod default/vm", "none of it ends:\n  default/web\n")
	if !slices.Equal(r.End, []string{"default/vm", "default/web"}) || r.Remove == nil {
		t.Errorf("%+v", r)
	}
	if !r.DryRun || r.Back || r.Switch != "x" || r.CNICache != "/var/lib/cni" || cfg.Containerd.Address != "/c.sock" || problem != "refused" {
		t.Errorf("%+v, %s, %s", r, cfg.Containerd.Address, problem)
	}
	_, _, out, _ = adopts(t, plan, adopt.Back{}, "-o", "json")
	says(t, "for a program", out, `"namespace": "default"`, `"lost": [`, `"refused": [`)
}

func TestAdoptPrintsWhatThePlugInCannotHave(t *testing.T) {
	back := adopt.Back{
		Pods: []adopt.Record{{ID: "p1", Namespace: "default", Name: "web", State: state.Ready}},
		Kept: []adopt.Remark{{ID: "p2", Text: "berth has made it"}},
	}
	r, _, out, _ := adopts(t, adopt.Plan{}, back, "--back", "--leave")
	says(t, "the way back", out, "default/web", "Cannot be the plug-in's:\n  p2: berth has made it")
	if !r.Back || !r.Leave {
		t.Errorf("%+v", r)
	}
}

func TestAdoptRefusesWhatItCannotDo(t *testing.T) {
	for _, args := range [][]string{
		{"--leave"},
		{"--back", "--start", "x"},
		{"--back", "--end", "default/web"},
		{"--end", ""},
		{"--set", "containerd.address"},
		{"--set", "containerd.adress=/x"},
		{"--set", "root=here"},
		{"--config", t.TempDir() + "/none"},
		{"pod"},
	} {
		if _, _, out, problem := adopts(t, adopt.Plan{}, adopt.Back{}, args...); problem == "" || strings.Contains(out, "POD") {
			t.Errorf("%v: %s %s", args, out, problem)
		}
	}
}
