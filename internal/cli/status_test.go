// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// A script that waits for a node could not see that it was not ready.
func TestStatusExitsWith3IfNotReady(t *testing.T) {
	out, err := run(serveFake(t, services()), "status")
	if says(t, "status", out, "no CNI configuration", "Warning", "runc is old"); ExitCode(err) != exitNotReady {
		t.Errorf("got code %d: %v", ExitCode(err), err)
	}
	says(t, "the error", err.Error(), "NetworkReady is false")
}

// An error of several lines looked like several entries.
func TestANewlineInAnErrorDoesNotBreakATable(t *testing.T) {
	f := services()
	f.lanes[0]["error"] = "umount\nbusy"
	f.lanes[0]["id"] = "bbb222"
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
