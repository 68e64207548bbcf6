// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"testing"
	"testing/synctest"
	"time"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	"berth/internal/heart/pod"
)

// Each shim gets its options in the type that it takes: one that gets those of runc and is another
// refuses to start, or starts without its configuration.
func TestAShimGetsOptionsOfItsType(t *testing.T) {
	get := func(h pod.Handler) any {
		t.Helper()
		a, err := options(h)
		if err != nil || a == nil {
			return err
		}
		v, err := typeurl.UnmarshalAny(a)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	runc, ok := get(pod.Handler{Type: "io.containerd.runc.v2", Options: pod.OptionsRunc, Binary: "/crun", Root: "/r", SystemdCgroup: true}).(*runcoptions.Options)
	if !ok || runc.BinaryName != "/crun" || runc.Root != "/r" || !runc.SystemdCgroup {
		t.Errorf("%v", runc)
	}
	for kind, url := range map[string]string{
		"io.containerd.runsc.v1":                   "io.containerd.runsc.v1.options",
		"/usr/bin/containerd-shim-runsc-v1":        "io.containerd.runsc.v1.options",
		"/opt/kata/bin/containerd-shim-kata-fc-v2": "io.containerd.kata-fc.v2.options",
		"/opt/other": "/opt/other.options",
	} {
		generic, ok := get(pod.Handler{Type: kind, Options: pod.OptionsGeneric, ConfigPath: "/c", ConfigBody: "x"}).(*runtimeoptions.Options)
		if !ok || generic.TypeUrl != url || generic.ConfigPath != "/c" || string(generic.ConfigBody) != "x" {
			t.Errorf("%s: %v", kind, generic)
		}
	}
	if got := get(pod.Handler{Type: "io.containerd.kata.v2", Options: pod.OptionsNone}); got != nil {
		t.Errorf("%v", got)
	}
}

// The shim of gVisor answers for a moment that a task has stopped with 0 before it knows the code,
// which was taken for the code of a container that ended with 7.
func TestATaskThatStoppedWithoutAnInstantHasNoCodeYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.add("c1", "", false)
		a := f.adapter(t)
		for _, tt := range []struct {
			p      *task.Process
			noCode bool
		}{
			{&task.Process{Status: task.Status_STOPPED}, true},
			{&task.Process{Status: task.Status_STOPPED, ExitedAt: timestamppb.New(time.Time{})}, true},
			{&task.Process{Status: task.Status_STOPPED, ExitStatus: 7}, false},
			{&task.Process{Status: task.Status_STOPPED, ExitedAt: timestamppb.Now()}, false},
		} {
			f.tasks["c1"] = tt.p
			if st, err := a.TaskState(t.Context(), "c1"); err != nil || !st.Stopped || st.NoCode != tt.noCode || st.Code != tt.p.ExitStatus {
				t.Errorf("%v: %+v %v", tt.p, st, err)
			}
		}
	})
}
