// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
)

// busyNode is a fake with pods in two namespaces.
func busyNode() *fake {
	f := newFake()
	f.addPod("aaa111", "default", "web")
	f.addPod("aab222", "kube-system", "dns")
	f.addPod("aac333", "default", "old")
	f.pods[0].CreatedAt, f.pods[1].CreatedAt, f.pods[2].CreatedAt = 30, 10, 20
	f.pods[1].Labels = map[string]string{"k8s-app": "dns", "tier": "x"}
	f.pods[2].State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	f.addContainer("c1", "aaa111", "nginx", 3, runtimeapi.ContainerState_CONTAINER_RUNNING).CreatedAt = 5
	f.addContainer("c2", "aaa111", "nginx", 2, runtimeapi.ContainerState_CONTAINER_EXITED).CreatedAt = 4
	dns := f.addContainer("c3", "aab222", "dns", 9, runtimeapi.ContainerState_CONTAINER_RUNNING)
	dns.CreatedAt, dns.Labels = 7, map[string]string{"a": "b"}
	f.addContainer("c4", "aac333", "job", 0, runtimeapi.ContainerState_CONTAINER_EXITED).CreatedAt = 6
	f.uses("c1", "nginx", 1, 100<<20)
	f.uses("c3", "dns", 1, 200<<20)
	return f
}

// first is the first column of a table without its header.
func first(table string) string {
	var ids []string
	for line := range strings.Lines(table) {
		ids = append(ids, strings.Fields(line)[0])
	}
	return strings.Join(ids[1:], " ")
}

func TestListsSortAndFilter(t *testing.T) {
	at := serveFake(t, busyNode())
	for args, want := range map[string]string{
		"ps":                             "c1 c3",
		"ps -a --sort name":              "c4 c1 c2 c3",
		"ps -a --sort age":               "c3 c4 c1 c2",
		"ps -a --sort state":             "c4 c2 c1 c3",
		"ps -a --sort restarts":          "c3 c1 c2 c4",
		"ps --sort memory":               "c3 c1",
		"ps -a -n default":               "c1 c2 c4",
		"ps --namespace kube-system":     "c3",
		"ps --state exited":              "c2 c4",
		"ps --state Running -n default":  "c1",
		"ps --label a=b":                 "c3",
		"ps -l a=b,c=d":                  "",
		"pods":                           "aaa111 aab222 aac333",
		"pods --sort name":               "aac333 aaa111 aab222",
		"pods --sort age":                "aaa111 aac333 aab222",
		"pods --sort state":              "aac333 aaa111 aab222",
		"pods --sort restarts":           "aab222 aaa111 aac333",
		"pods --sort memory":             "aab222 aaa111 aac333",
		"pods -n default --state ready":  "aaa111",
		"pods -l k8s-app=dns -l tier=x":  "aab222",
		"pods -l k8s-app=dns -l tier=y":  "",
		"pods --state notready -o table": "aac333",
	} {
		out, problem := berth(t, at, strings.Fields(args)...)
		if got := first(out); got != want || problem != "" {
			t.Errorf("berth %s: %q, want %q: %s\n%s", args, got, want, problem, out)
		}
	}
	out, _ := berth(t, at, "pods", "--sort", "memory")
	says(t, "pods --sort memory", out, "MEMORY", "200 MiB")
	says(t, "pods", regexp.MustCompile(` +`).ReplaceAllString(out, " "), "kube-system dns READY 1/1 9")
	out, _ = berth(t, at, "ps", "-n", "default", "-o", "json")
	var doc struct{ Items []struct{ ID string } }
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Items) != 1 || doc.Items[0].ID != "c1" {
		t.Errorf("ps -o json: %v\n%s", err, out)
	}
	for args, want := range map[string]string{
		"ps --sort size":           "age, memory, name, restarts, state",
		"ps --label x":             "KEY=VALUE",
		"ps --state ready":         "created, running, ended, exited, unknown",
		"pods --state exited":      "ready, ended, notready",
		"timeline web --since -1h": "--since -1h0m0s is negative",
		"events --since -1h":       "--since -1h0m0s is negative",
		"stop web -t -1":           "--timeout -1 is negative",
		"config none":              `no command "config none"`,
		"debug none":               "`berth debug --help` lists them",
	} {
		_, problem := berth(t, at, strings.Fields(args)...)
		says(t, args, problem, want)
	}
}

// Whoever wanted to see a change listed again and again.
func TestListsAreWatched(t *testing.T) {
	f := busyNode()
	at := serveFake(t, f)
	change := func(how func()) {
		f.mu.Lock()
		defer f.mu.Unlock()
		how()
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cts, ended := begin(ctx, at, "ps", "-n", "default", "--watch")
	pods, podsEnded := begin(ctx, at, "pods", "-w")
	docs, docsEnded := begin(ctx, at, "pods", "-w", "-o", "json")
	cts.until(t, "c1 ")
	pods.until(t, "aac333")
	docs.until(t, "aac333")
	change(func() {
		f.cts[0].State, f.cts[0].ExitCode, f.cts[0].Reason = runtimeapi.ContainerState_CONTAINER_EXITED, 7, "Error"
	})
	cts.until(t, "7 Error")
	pods.until(t, "0/1")
	change(func() { f.away = status.Error(codes.Unavailable, "the service is restarted") })
	cts.until(t, "the service is restarted; trying again")
	change(func() {
		f.away = nil
		f.addContainer("c5", "aaa111", "nginx", 4, runtimeapi.ContainerState_CONTAINER_RUNNING)
		f.addContainer("c6", "aab222", "elsewhere", 4, runtimeapi.ContainerState_CONTAINER_RUNNING)
		f.cts = slices.DeleteFunc(f.cts, func(c *runtimeapi.ContainerStatus) bool { return c.Id == "c1" })
		f.pods[0].State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		f.pods = slices.Delete(f.pods, 2, 3)
	})
	cts.until(t, "c5 ", "REMOVED")
	pods.until(t, "REMOVED")
	docs.until(t, "NOTREADY")
	cancel()
	for _, done := range []<-chan error{ended, podsEnded, docsEnded} {
		if err := <-done; err != nil {
			t.Errorf("Ctrl-C: %v", err)
		}
	}
	if strings.Count(cts.String(), "c5 ") != 1 || strings.Contains(cts.String(), "elsewhere") || strings.Contains(cts.String(), "c2 ") {
		t.Errorf("ps --watch:\n%s", cts)
	}
	decode := json.NewDecoder(strings.NewReader(strings.ReplaceAll(docs.String(), "the service is restarted; trying again\n", "")))
	for decode.More() {
		var v struct{ ID string }
		if err := decode.Decode(&v); err != nil || v.ID == "" {
			t.Fatalf("pods -w -o json: %v\n%s", err, docs)
		}
	}
}

func TestAGridGrows(t *testing.T) {
	var g grid
	lines := func(all ...[]string) string {
		var l []gridLine
		for _, cells := range all {
			l = append(l, gridLine{cells: cells, colour: bad})
		}
		return g.format(l)
	}
	got := lines([]string{"A", "B"}, []string{"a", "b"}) + lines([]string{"aaa", "\x1b"}) + lines([]string{"a", ""}, []string{"a", "b"})
	if want := "A  B\na  b\naaa  \\u001b\na\na    b\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	g = grid{width: 30, cut: []int{1}, colours: true}
	got = lines([]string{"ID", "a-very-long-name-of-a-pod", "RUNNING"})
	if want := bad + "ID  a-very-l…of-a-pod  RUNNING" + noColour + "\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// PROPERTIES 52: a container whose end could not be written was RUNNING for a person, too.
func TestAnEndThatIsNotOnRecordIsAState(t *testing.T) {
	f := busyNode()
	ago := time.Now().Add(-3*time.Second - 500*time.Millisecond)
	f.ended = map[string]*berthv1.Exit{
		"c1":     {Code: 42, Measured: true, Ended: timestamppb.New(ago)},
		"c2":     {Code: 1, Measured: true, Ended: timestamppb.New(ago)}, // it came on record between the two questions
		"aab222": {Code: 255, Ended: timestamppb.New(ago)},
	}
	at := serveFake(t, f)
	for args, want := range map[string]string{
		"ps":                        `c1 nginx default/web ENDED .+ 3 42, 3s ago, not on record yet`,
		"ps -a":                     `c2 nginx default/web EXITED`,
		"ps --state ended":          `c1 nginx`,
		"ps --state running":        `RESTARTS EXIT\nc3 `,
		"pods":                      `aab222 kube-system dns ENDED 1/1`,
		"pods --state ready":        `aaa111 default web READY 0/1`,
		"status":                    `Pods 3 1 ready, 1 ended and not on record yet, 1 not ready\nContainers 4 1 running, 1 ended and not on record yet, 2 exited`,
		"ps -o json":                `"state": "ENDED",.* "exitCode": 42, "oomKillsSurvived": 0, "onRecord": false`,
		"ps -o json -n kube-system": `\{ "items": \[ \{ "id": "c3", "namespace": "kube-system", "name": "dns", "state": "RUNNING", "createdAt": "1970-01-01T00:00:00.000000007Z",`,
	} {
		out, _ := run(at, strings.Fields(args)...)
		if plain := regexp.MustCompile(`[ \n]* +`).ReplaceAllString(out, " "); !regexp.MustCompile(want).MatchString(plain) {
			t.Errorf("berth %s: %q is not in\n%s", args, want, plain)
		}
	}
}
