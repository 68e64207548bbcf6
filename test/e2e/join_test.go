// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/config"
	"berth/test/node"
)

// joining is a node whose probes are made by berth-exec, as berth ships.
func joining(t *testing.T, external bool) *node.Node {
	t.Helper()
	n := node.Start(t, node.Options{External: external, Args: []string{"--metrics", "127.0.0.1:0"}})
	// The OCI runtime says in the background what it is.
	_, id := n.Sh("sleep 1000")
	n.Until("berth-exec is used", func() bool {
		_, err := execSync(t, n, id, "true", 10*time.Second)
		return err == nil && executed(t, n, "helper", "") > 0
	})
	return n
}

// executed reads how many processes of ExecSync were made in a way.
func executed(t *testing.T, n *node.Node, way, why string) int {
	t.Helper()
	address := regexp.MustCompile(`metrics are served.*address=(\S+)`).FindStringSubmatch(n.Berth.Output())
	if address == nil {
		t.Fatal("no metrics are served")
	}
	resp, err := http.Get("http://" + address[1] + "/metrics") // of the test's own berth
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	m := regexp.MustCompile(`(?m)^berth_execs_total\{way="` + way + `",why="` + why + `"\} (\d+)`).FindStringSubmatch(string(b))
	if m == nil {
		return 0
	}
	v, _ := strconv.Atoi(m[1])
	return v
}

// PROPERTIES 5 and 45: exit codes are exact, also those of processes that berth-exec has made.
func TestAProbeWithoutAnOCIRuntime(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		n := joining(t, external)
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		c := somebody()
		c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
		id := n.Run(pod, cfg, c)
		before := executed(t, n, "helper", "")
		scripts := answers()
		scripts["grep -E 'NoNewPrivs|Seccomp' /proc/self/status >/tmp/a; grep -E 'NoNewPrivs|Seccomp' /proc/1/status >/tmp/b; cmp /tmp/a /tmp/b"] = &runtimeapi.ExecSyncResponse{}
		scripts["for l in cgroup uid_map; do cmp /proc/self/$l /proc/1/$l || exit 1; done"] = &runtimeapi.ExecSyncResponse{}
		expectAnswers(t, n, id, scripts)
		if made := executed(t, n, "helper", "") - before; made != len(scripts) {
			t.Errorf("berth-exec has made %d of %d processes\n%s", made, len(scripts), n.Berth.Output())
		}
		nothingLeft(n)
	})
}

// PROPERTIES 45: what berth-exec cannot do gets the OCI runtime's own answer.
func TestAProbeThatCannotRunIsAnsweredByTheOCIRuntime(t *testing.T) {
	t.Parallel()
	old, n := node.Start(t, made(config.ExecOCI, false)), joining(t, false)
	_, there := old.Sh("echo x >/tmp/plain; echo odd >/tmp/odd; chmod 755 /tmp/odd; sleep 1000")
	_, id := n.Sh("echo x >/tmp/plain; echo odd >/tmp/odd; chmod 755 /tmp/odd; sleep 1000")
	for _, cmd := range [][]string{{"/bin/nothing"}, {"nothing"}, {"/tmp"}, {"/tmp/plain"}, {"/tmp/odd"}, {"tmp/none"}, {""}} {
		answer := func(n *node.Node, id string) string {
			n.Until("the files are there", func() bool {
				r, err := execSync(t, n, id, "test -x /tmp/odd", 10*time.Second)
				return err == nil && r.GetExitCode() == 0
			})
			r, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: 10})
			says := regexp.MustCompile(`[0-9a-f]{32,64}|[A-Z2-7]{26}`).ReplaceAllString(status.Convert(err).Message(), "ID")
			return status.Code(err).String() + " " + says + " " + r.String()
		}
		if want, got := answer(old, there), answer(n, id); got != want {
			t.Errorf("%q: got\n%s, want\n%s", cmd, got, want)
		}
	}
	if executed(t, n, "oci", "failed") == 0 {
		t.Error("nothing was left to the OCI runtime")
	}
	nothingLeft(n)
}

// PROPERTIES 14 and 56: a process of a probe ends with its time, with its container and with berth, also
// before there is another berth.
func TestAProbeEndsWithItsTimeoutItsContainerAndBerth(t *testing.T) {
	t.Parallel()
	n := joining(t, false)
	_, id := n.Sh("sleep 1000")
	_, err := execSync(t, n, id, "sleep "+unique(t, 1)+" & exec sleep "+unique(t, 2), time.Second)
	if err == nil || !strings.Contains(err.Error(), "timed out after 1s") {
		t.Errorf("got %v", err)
	}
	n.Until("the command is killed", func() bool { return !runs("sleep", unique(t, 2)) })
	nothingLeft(n)

	made := executed(t, n, "helper", "")
	done := make(chan error, 1)
	go func() {
		_, err := execSync(t, n, id, "exec sleep "+unique(t, 3), 0)
		done <- err
	}()
	n.Until("the command runs", func() bool { return runs("sleep", unique(t, 3)) })
	if executed(t, n, "helper", "") != made+1 {
		t.Error("berth-exec has not made it")
	}
	n.Berth.Kill(syscall.SIGKILL)
	<-done
	n.Until("the command has ended with berth", func() bool { return !runs("sleep", unique(t, 3)) })
	n.StartBerth()
	nothingLeft(n)

	var code int32
	go func() {
		r, err := execSync(t, n, id, "exec sleep "+unique(t, 4), 0)
		code = r.GetExitCode()
		done <- err
	}()
	n.Until("the command runs", func() bool { return runs("sleep", unique(t, 4)) })
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil && code != 137 {
		t.Errorf("its container was killed, and it ended with %d", code)
	}
	nothingLeft(n)
}
