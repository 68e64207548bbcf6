// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	berthv1 "berth/api/berth/v1"
	"berth/internal/base/version"
)

// A script that waits for a node could not see that it was not ready.
func TestStatusExitsWith3IfNotReady(t *testing.T) {
	out, err := run(serveFake(t, services()), "status")
	if says(t, "status", out, "no CNI configuration", "Warning", "runc is old"); ExitCode(err) != exitNotReady {
		t.Errorf("got code %d: %v", ExitCode(err), err)
	}
	says(t, "the error", err.Error(), "NetworkReady is false")
}

// Of containerd, of the pods and of what was held, status said nothing.
func TestStatusIsOneScreen(t *testing.T) {
	f := busyNode()
	f.info = map[string]string{
		"process":            `{"pid": 4711, "started": "2026-01-02T03:04:05Z"}`,
		"cni":                `{"name": "bridge", "source": "/etc/cni/net.d/10.conf"}`,
		"containerd":         `"embedded"`,
		"containerdVersion":  `"2.4.2"`,
		"connected":          `false`,
		"kernelWitnessExact": `true`,
	}
	for range 20 {
		f.lanes = append(f.lanes, &berthv1.Lane{Id: "ct2", State: "overdue", Tries: 1, Head: "settle"})
	}
	f.lanes = append(f.lanes, &berthv1.Lane{Id: "fine", State: "in flight", Tries: 1, Head: "settle"})
	at := serveFake(t, f)
	out, _ := run(at, "status")
	plain := regexp.MustCompile(` +`).ReplaceAllString(out, " ")
	says(t, "status", plain,
		"RuntimeReady true",
		"NetworkReady false no CNI configuration",
		"Service berth v9 process 4711, started", "this command is "+version.String(),
		"Containerd embedded 2.4.2, not connected",
		"Kernel exact",
		"Network bridge /etc/cni/net.d/10.conf",
		"Pods 3 2 ready, 1 not ready",
		"Containers 4 2 running, 2 exited",
		"Images 2 5120 KiB",
		"Under way 22 ct1 goes through the step release; attempt 3 has failed: unmount: busy",
		"Under way 14 more: 14 with settle", "`berth debug underway` lists all",
		"Warning runc is old")
	if lines := strings.Count(out, "\n"); lines > 24 || strings.Contains(out, "fine") {
		t.Errorf("%d lines:\n%s", lines, out)
	}
	out, _ = run(at, "status", "-o", "json")
	var all struct {
		Status     struct{ Conditions []any }
		Info       map[string]string
		Pods       map[string]int
		Containers map[string]int
		Images     struct{ Count int }
		UnderWay   []any
		Service    struct{ RuntimeVersion string }
	}
	err := json.Unmarshal([]byte(out), &all)
	if err != nil || len(all.Status.Conditions) != 2 || all.Info["connected"] != "false" || all.Pods["ready"] != 2 || all.Containers["running"] != 2 ||
		all.Images.Count != 2 || len(all.UnderWay) != 22 || all.Service.RuntimeVersion != "v9" {
		t.Errorf("status -o json: %v %+v\n%s", err, all, out)
	}
	f.away = status.Error(codes.Unavailable, "the records are being read")
	out, err = run(at, "status")
	if ExitCode(err) != exitNotReady {
		t.Error(err)
	}
	says(t, "status", out, "Unknown", "pods: the records are being read", "Containers")
	if strings.Contains(out, "Pods") {
		t.Errorf("what could not be asked is shown as a number:\n%s", out)
	}
}

// PROPERTIES 65: a pod that is being made was in no list, and a stop in its grace period showed nowhere.
func TestListsSayWhatIsUnderWay(t *testing.T) {
	f := services()
	f.lanes = nil
	f.operations = []*berthv1.Operation{
		{
			Number:   1,
			Kind:     "run",
			Of:       &berthv1.Names{Namespace: "default", Pod: "new"},
			Sentence: "default/new is being made: the CNI plug-in bridge (ADD) has not answered for 12 s, asked for by kubelet[812].",
		},
		{Number: 2, PartOf: 1, Kind: "plugin", What: "the CNI plug-in bridge (ADD)", Of: &berthv1.Names{Namespace: "default", Pod: "new"}},
		{
			Number:   3,
			Kind:     "stop",
			Of:       &berthv1.Names{Namespace: "default", Pod: "web", Container: "nginx"},
			Sentence: "default/web/nginx is being stopped: SIGTERM 3 s ago, asked for by kubelet[812]; SIGKILL in 12 s.",
		},
	}
	at := serveFake(t, f)
	for command, want := range map[string]string{
		"status":         "default/new is being made: the CNI plug-in bridge (ADD) has not answered for 12 s, asked for by kubelet[812].",
		"pods":           "default/new is being made: the CNI plug-in bridge (ADD) has not answered for 12 s, asked for by kubelet[812].",
		"ps":             "default/web/nginx is being stopped: SIGTERM 3 s ago, asked for by kubelet[812]; SIGKILL in 12 s",
		"debug underway": "the CNI plug-in bridge (ADD)",
	} {
		out, _ := run(at, strings.Fields(command)...)
		says(t, command, out, want)
	}
}

// An error of several lines looked like several entries.
func TestANewlineInAnErrorDoesNotBreakATable(t *testing.T) {
	f := services()
	f.lanes[0].Error = "umount\nbusy"
	f.lanes[0].Id = "bbb222"
	out, _ := berth(t, serveFake(t, f), "debug", "lanes")
	if says(t, "debug lanes", out, `"umount\nbusy"`); strings.Count(out, "\n") != 2 {
		t.Errorf("got\n%s", out)
	}
}

func TestCompletionOffersNames(t *testing.T) {
	f := services()
	f.addContainer("ddd555", "aab222", "nginx", 0, 1) // the name is in two pods now
	at := serveFake(t, f)
	for _, c := range []struct {
		args string
		want []string
		not  []string
	}{
		{"stop ", []string{"web", "db", "web/nginx", "db/nginx"}, []string{"sql"}},
		{"rm s", []string{"sql"}, []string{"web"}},
		{"logs sql ", nil, []string{"sql", "web"}},
		{"exec web", []string{"web/nginx"}, []string{"db"}},
		{"port-forward ", []string{"web", "db"}, []string{"sql"}},
		{"images rm ", []string{"busybox:1"}, []string{"web"}},
	} {
		fields := strings.Split(c.args, " ")
		out, problem := berth(t, at, append([]string{"__complete", "--endpoint", at}, fields...)...)
		offered := strings.Split(out, "\n")
		says(t, "completion of "+c.args, out+problem, c.want...)
		for _, n := range c.not {
			for _, o := range offered {
				if o == n {
					t.Errorf("completion of %q offers %s", c.args, n)
				}
			}
		}
	}
}

// The service has another working directory than the person.
func TestCheckpointNamesTheWholePath(t *testing.T) {
	f := services()
	t.Chdir(t.TempDir())
	out, problem := berth(t, serveFake(t, f), "checkpoint", "nginx", "c.tar", "-t", "5")
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if want := "checkpoint bbb222 " + dir + "/c.tar 5"; !slices.Contains(f.calls, want) {
		t.Errorf("got %q, want %q: %s", f.calls, want, problem)
	}
	says(t, "checkpoint", out, dir+"/c.tar")
}
