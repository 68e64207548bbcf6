// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/tools/migrate"
)

const nodes = "../migrate/testdata/nodes/"

func TestMigratePrintsAPlan(t *testing.T) {
	out, problem := berth(t, "/s", "migrate", "--plan", "--root", nodes+"kubeadm-v2")
	says(t, "migrate", out+problem, "From containerd to berth", "systemd_cgroup = true", "kubectl annotate node", "kubectl drain")
	out, problem = berth(t, "/s", "migrate", "-o", "json", "--root", nodes+"inline-mirrors")
	var plan struct {
		From     string
		Steps    []struct{ Do, What, Why string }
		Remarks  []struct{ Weight, Means string }
		Settings []struct {
			Key   string
			Value any
		}
	}
	if err := json.Unmarshal([]byte(out), &plan); err != nil || problem != "" || plan.From != "containerd" || len(plan.Steps) < 8 || len(plan.Remarks) == 0 {
		t.Errorf("%v, %s\n%s", err, problem, out)
	}
	i := slices.IndexFunc(plan.Settings, func(s struct {
		Key   string
		Value any
	}) bool {
		return strings.HasSuffix(s.Key, ".password")
	})
	if i < 0 || plan.Settings[i].Value != "(hidden)" {
		t.Errorf("the password of a registry is not hidden: %v", plan.Settings)
	}
	_, problem = berth(t, "/s", "migrate", "--from", "podman", "--root", nodes+"kata")
	says(t, "another runtime", problem, `--from "podman" is neither`)
}

func TestMigrateRefusesWhatItCannotDo(t *testing.T) {
	for _, args := range [][]string{
		{"--apply", "--root", nodes + "kata"},
		{"--undo", "--root", nodes + "kata"},
		{"--apply", "--undo"},
		{"--plan", "--apply"},
		{"--within", "1ms"},
		{"--root", t.TempDir()},
		{"somewhere"},
	} {
		if out, problem := berth(t, "/s", append([]string{"migrate"}, args...)...); problem == "" || out != "" {
			t.Errorf("migrate %v was not refused: %s %s", args, out, problem)
		}
	}
}

// A pod that runs is counted until it is removed; a pod that has ended is not counted.
func TestMigrateAsksARuntimeForItsPods(t *testing.T) {
	f := services()
	at := "unix://" + serveFake(t, f)
	var h migrate.Host = nodeHost{}
	pods, err := h.Running(t.Context(), at)
	if err != nil || len(pods) == 0 {
		t.Fatal(pods, err)
	}
	before := len(pods)
	if err := h.Remove(t.Context(), at, pods[0]); err != nil {
		t.Fatal(err)
	}
	if pods, err = h.Running(t.Context(), at); err != nil || len(pods) != before-1 {
		t.Errorf("after one of %d pods was removed: %v, %v", before, pods, err)
	}
	for _, p := range f.pods {
		p.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
	for _, c := range f.cts {
		c.State = runtimeapi.ContainerState_CONTAINER_EXITED
	}
	if pods, err = h.Running(t.Context(), at); err != nil || len(pods) != 0 {
		t.Errorf("pods that have ended are counted: %v, %v", pods, err)
	}
	if err := h.RuntimeReady(t.Context(), at); err != nil {
		t.Error(err)
	}
	if err := h.RuntimeReady(t.Context(), "unix://"+filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a runtime that is not there is ready")
	}
}

// Where no runtime answers, the processes that hold its pods are found in /proc.
func TestProcessesOfPodsAreFound(t *testing.T) {
	proc := t.TempDir()
	for pid, name := range map[string]string{"1": "systemd", "20": "containerd-shim", "21": "conmon", "22": "containerd"} {
		if err := os.MkdirAll(filepath.Join(proc, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "comm"), []byte(name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	names, err := podProcesses(proc)
	slices.Sort(names)
	if err != nil || !slices.Equal(names, []string{"conmon (21)", "containerd-shim (20)"}) {
		t.Errorf("%v, %v", names, err)
	}
}

func TestANodeSaysWhichRuntimeItHas(t *testing.T) {
	for _, c := range []struct{ report, want, wrong string }{
		{"berth://0.1.0 True", "berth", ""},
		{"containerd://2.1.0 True", "berth", "reports containerd://2.1.0 as its runtime, and not yet berth"},
		{"containerd://0.1.0 True", "containerd", ""},
		{"berth://0.1.0 False", "berth", "not Ready: its condition is False"},
		{"containerd://2.1.0 True", "", ""},
	} {
		err := nodeSays(c.report, c.want)
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%v: %v", c, err)
		}
	}
}
