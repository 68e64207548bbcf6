// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// logged is a fake with a pod of two containers, of which one was restarted, and with their logs.
func logged(t *testing.T) (f *fake, dir string) {
	t.Helper()
	f, dir = newFake(), t.TempDir()
	f.addPod("aaa111", "default", "web")
	f.addLogged(t, dir, "c0", "app", 0, runtimeapi.ContainerState_CONTAINER_EXITED, stampA+" stdout F before")
	f.addLogged(t, dir, "c1", "app", 1, runtimeapi.ContainerState_CONTAINER_RUNNING,
		stampA+" stdout F one", stampA+" stderr P t", stampA+" stderr F wo", stampB+" stdout F three")
	f.addLogged(t, dir, "c2", "side", 0, runtimeapi.ContainerState_CONTAINER_RUNNING, stampB+" stdout F \x1b[1mfour")
	f.addPod("aab222", "default", "alone")
	return f, dir
}

func (f *fake) addLogged(t *testing.T, dir, id, name string, attempt uint32, state runtimeapi.ContainerState, lines ...string) {
	t.Helper()
	path := filepath.Join(dir, id)
	if len(lines) > 0 {
		appendTo(t, path, lines...)
	}
	f.addContainer(id, "aaa111", name, attempt, state).LogPath = path
}

func TestLogsOfAPod(t *testing.T) {
	f, _ := logged(t)
	ct := f.addContainer("d1", "aab222", "main", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	ct.LogPath = logFile(t, stampA+" stdout F lonely")
	f.addPod("aac333", "default", "same") // with a container of its name
	f.addContainer("e1", "aac333", "same", 0, runtimeapi.ContainerState_CONTAINER_RUNNING).LogPath = logFile(t, stampA+" stdout F main")
	f.addContainer("e2", "aac333", "other", 0, runtimeapi.ContainerState_CONTAINER_RUNNING).LogPath = logFile(t, stampA+" stdout F other")
	f.addPod("aad444", "default", "empty")
	at := serveFake(t, f)
	const side = "[side] \x1b[1mfour\n" // what a container writes passes as it is
	for args, want := range map[string]string{
		"web":                              side + "[app] one\n[app] two\n[app] three\n",
		"default/web --tail 1":             side + "[app] three\n",
		"web --tail 1 -t":                  "[side] " + stampB + " \x1b[1mfour\n[app] " + stampB + " three\n",
		"web --since 2026-01-02T03:04:06Z": side + "[app] three\n",
		"web --since 876000h -c app":       "one\ntwo\nthree\n",
		"web -c side":                      "\x1b[1mfour\n",
		"web -p -c app":                    "before\n",
		"--previous web/app":               "before\n",
		"alone":                            "lonely\n",
		"same":                             "[other] other\n[same] main\n",
		"same/same":                        "main\n",
		"default/web/app --since 1s":       "",
		"app --since 2026-01-02T04:04:06Z": "",
		"app --since 2026-01-02T03:04:05Z": "one\ntwo\nthree\n",
		"app --since 2026-01-02T05:04:06+02:00 -t": stampB + " three\n",
	} {
		if out, problem := berth(t, at, append([]string{"logs"}, strings.Fields(args)...)...); out != want || problem != "" {
			t.Errorf("logs %s: %q, want %q: %s", args, out, want, problem)
		}
	}
	for args, want := range map[string]string{
		"web --since yesterday": `"yesterday"`,
		"web --since -5m":       "neither a duration",
		"web -p -f":             "exclude each other",
		"side -p":               "default/web/side (c2) has no previous attempt",
		"empty":                 "default/empty has no container",
		"web -c none":           "has no container none",
	} {
		_, problem := berth(t, at, append([]string{"logs"}, strings.Fields(args)...)...)
		says(t, "logs "+args, problem, want)
	}
	out, problem := berth(t, at, "logs", "-p", "web") // side has none
	says(t, "logs -p of a pod", out, "[app] before", "default/web/side (c2) has no previous attempt")
	if problem != "" {
		t.Error(problem)
	}
}

// A pod could not be followed, and the log of a container ended with its attempt.
func TestLogsFollowAPod(t *testing.T) {
	f, dir := logged(t)
	at := serveFake(t, f)
	change := func(how func()) {
		f.mu.Lock()
		defer f.mu.Unlock()
		how()
	}
	out, done := begin(t.Context(), at, "logs", "-f", "web", "--tail", "1")
	out.until(t, "[app] three\n", "[side] \x1b[1mfour\n")
	appendTo(t, filepath.Join(dir, "c1"), stampB+" stdout F five")
	out.until(t, "[app] five\n")
	if err := os.Rename(filepath.Join(dir, "c1"), filepath.Join(dir, "c1.old")); err != nil {
		t.Fatal(err)
	}
	appendTo(t, filepath.Join(dir, "c1"), stampB+" stdout F rotated")
	out.until(t, "[app] rotated\n")

	change(func() { f.away = status.Error(codes.Unavailable, "the service is restarted") })
	out.until(t, "the service is restarted; trying again\n")
	appendTo(t, filepath.Join(dir, "c1"), stampB+" stdout F last words")
	change(func() { // it is restarted twice, quickly; the second attempt has no log yet
		f.away = nil
		f.cts[1].State = runtimeapi.ContainerState_CONTAINER_EXITED
		f.addLogged(t, dir, "c3", "app", 2, runtimeapi.ContainerState_CONTAINER_EXITED, stampB+" stdout F quick")
		f.addLogged(t, dir, "c4", "app", 3, runtimeapi.ContainerState_CONTAINER_RUNNING)
		f.addLogged(t, dir, "c5", "late", 0, runtimeapi.ContainerState_CONTAINER_CREATED)
	})
	out.until(t, "[app] last words\n[app] quick\n")
	appendTo(t, filepath.Join(dir, "c4"), stampB+" stdout F slow")
	appendTo(t, filepath.Join(dir, "c5"), stampB+" stdout F hello")
	change(func() { f.cts[len(f.cts)-1].State = runtimeapi.ContainerState_CONTAINER_RUNNING })
	out.until(t, "[app] slow\n", "[late] hello\n")

	appendTo(t, filepath.Join(dir, "c5"), stampB+" stdout P bye")
	change(func() {
		for _, c := range f.cts {
			c.State = runtimeapi.ContainerState_CONTAINER_EXITED
		}
		f.pods[0].State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	})
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on after the pod was stopped")
	}
	out.until(t, "[late] bye\n")
	if got := out.String(); strings.Contains(got, "before") || strings.Count(got, "three") != 1 {
		t.Errorf("got %q", got)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	change(func() { f.pods[0].State = runtimeapi.PodSandboxState_SANDBOX_READY })
	out, done = begin(ctx, at, "logs", "-f", "web")
	out.until(t, "slow")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Ctrl-C: %v", err)
	}
}

func TestNamesHaveColoursOnATerminalAlone(t *testing.T) {
	f, _ := logged(t)
	at := serveFake(t, f)
	for _, c := range []struct{ variable, value, want string }{
		{"NO_COLOR", "", "\x1b[36m[side] \x1b[0m"},
		{"NO_COLOR", "1", "[side] "},
		{"TERM", "dumb", "[side] "},
	} {
		t.Setenv("NO_COLOR", "")
		t.Setenv("TERM", "xterm")
		t.Setenv(c.variable, c.value)
		p := sitDown(t, 80, 24)
		if err := <-p.begin(t.Context(), at, "logs", "web", "-c", "app"); err != nil {
			t.Error(err)
		}
		if err := <-p.begin(t.Context(), at, "logs", "web"); err != nil {
			t.Error(err)
		}
		p.screen.until(t, "one\r\ntwo", "three", c.want+"\x1b[1mfour")
		if c.want == "[side] " && strings.Contains(p.screen.String(), "\x1b[3") {
			t.Errorf("%s=%s: %q", c.variable, c.value, p.screen)
		}
	}
}
