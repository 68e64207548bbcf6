// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	berthv1 "berth/api/berth/v1"
)

// Each line says what it is about, and no ID is printed twice.
func TestTheTimelineOfAPodNamesItsContainers(t *testing.T) {
	at := time.Now().Truncate(time.Microsecond)
	pod, app, old := strings.Repeat("a", 64), strings.Repeat("b", 64), strings.Repeat("c", 64)
	after := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(at.Add(d)) }
	h := &berthv1.TimelineResponse{
		Id:   pod,
		Name: "default/web",
		Entries: []*berthv1.Entry{
			{At: after(0), Id: old, Name: "default/web", What: "record removed"},
			{At: after(time.Second), Id: pod, Name: "default/web", What: "sandbox READY", Detail: "took=1s"},
			{At: after(2 * time.Second), Id: app, Name: "default/web/app", What: "image not pulled", Error: "no such host"},
			{At: after(2 * time.Second), What: "berth started"},
		},
	}
	for node, want := range map[bool]string{
		false: pod + "\n" +
			"+0s  attempt ccccccccccccc: record removed\n" +
			"+1s  sandbox READY  (took=1s)\n" +
			"+1s  app: image not pulled  ERROR no such host\n" +
			"+0s  berth started\n" +
			"now: nothing is under way\n",
		true: "+0s  default/web: record removed\n" +
			"+1s  default/web: sandbox READY  (took=1s)\n" +
			"+1s  default/web/app: image not pulled  ERROR no such host\n" +
			"+0s  berth started\n" +
			"now: nothing is under way\n",
	} {
		var out strings.Builder
		asked := proto.CloneOf(h)
		if node {
			asked.Id, asked.Name = "", ""
		}
		l := timelineLines{w: &out, node: node, day: at.Local().Format(time.DateOnly)}
		l.print(asked, true)
		l.now(asked)
		var got strings.Builder
		for line := range strings.Lines(out.String()) {
			if _, rest, ok := strings.Cut(line, "+"); ok {
				line = "+" + rest
			}
			got.WriteString(line)
		}
		if got.String() != want {
			t.Errorf("node %v:\n%s\nwant\n%s", node, got.String(), want)
		}
	}
}

func TestTheTimelineIsOfOneThing(t *testing.T) {
	at := serveFake(t, services())
	for _, args := range [][]string{{"timeline"}, {"timeline", "a", "b"}, {"timeline", "a", "--node"}} {
		if out, stderr := berth(t, at, args...); stderr == "" {
			t.Errorf("%q: %s", args, out)
		}
	}
	out, stderr := berth(t, at, "timeline", "--node", "--since", "2h")
	if stderr != "" {
		t.Error(stderr)
	}
	says(t, "timeline --node", out, "exit settled", "code=42")
	if strings.Contains(out, "now:") {
		t.Errorf("the node waits for nothing: %s", out)
	}
}

// What is said of a container that crashed: five sentences, and nothing that a log may contain
// reaches the terminal as it is.
func TestWhyIsSaidInSentences(t *testing.T) {
	f := &fake{reason: &berthv1.WhyResponse{
		What:   "default/web/app (attempt 0) ended 3m ago with code 42, Error.",
		Why:    "It ended by itself.",
		Wrote:  []string{"one", "two", "three", "\x1b[31mfour"},
		Before: "It is its 3rd crash in a row.",
		Now:    "nothing runs",
		Lane:   &berthv1.Lane{State: "backing off", Tries: 2, Head: "release"},
	}}
	f.reason.Id, f.reason.Lane.Error = strings.Repeat("c", 64), "delete task "+strings.Repeat("c", 64)
	out, err := run(serveFake(t, f), "why", "c1")
	want := "default/web/app (attempt 0) ended 3m ago with code 42, Error.\n" +
		"It ended by itself.\n" +
		"It wrote last:\n    two\n    three\n    \"\\x1b[31mfour\"\n" +
		"It is its 3rd crash in a row.\n" +
		"Now: nothing runs.\n" +
		"Waiting: attempt 2 to release failed, the next one is at "
	if err != nil || !strings.HasPrefix(out, want) || !strings.HasSuffix(out, "last error: delete task ccccccccccccc\n") {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
	if out, err := run(serveFake(t, f), "why", "c2"); err == nil {
		t.Errorf("nothing is known, and it says %s", out)
	}
}
