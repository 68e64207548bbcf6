// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/internal/base/event"
	"berth/test/node"
)

// loggersOf are the processes of berth-logger for a container.
func loggersOf(t *testing.T, id string) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		args, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if a := bytes.Split(args, []byte{0}); len(a) > 2 && strings.HasSuffix(string(a[0]), "/berth-logger") && filepath.Base(string(a[2])) == id {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// noted counts the events of a kind in the timeline of a container.
func noted(n *node.Node, id string, e event.Event) (count int) {
	for _, had := range n.History(id) {
		if had.Kind == event.Kind(e) {
			count++
		}
	}
	return count
}

// counting starts a container that writes a number whenever the file that is returned grows by a
// byte, and waits until it runs.
func counting(t *testing.T, n *node.Node) (id string, write func(to int)) {
	t.Helper()
	dir := n.Dir + "/gate"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := n.PodConfig()
	c := node.ContainerConfig("counting", "sh", "-c",
		"i=0; while :; do n=$(cat /gate/to); while [ $i -lt $n ]; do echo line $i; i=$((i+1)); done; echo $i > /gate/done; sleep 0.02; done")
	c.Mounts = []*runtimeapi.Mount{{HostPath: dir, ContainerPath: "/gate"}}
	if err := os.WriteFile(dir+"/to", []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	id = n.Run(n.Pod(cfg), cfg, c)
	return id, func(to int) {
		t.Helper()
		next := dir + "/next"
		if err := errors.Join(os.WriteFile(next, fmt.Appendf(nil, "%d\n", to), 0o600), os.Rename(next, dir+"/to")); err != nil {
			t.Fatal(err)
		}
		n.Until(fmt.Sprintf("it has written %d lines", to), func() bool {
			b, _ := os.ReadFile(dir + "/done")
			return strings.TrimSpace(string(b)) == strconv.Itoa(to)
		})
	}
}

func lines(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

// logged waits until the log of a container has a text, and nothing else.
func logged(t *testing.T, n *node.Node, id, want string) {
	t.Helper()
	got := ""
	for range 1000 {
		b, err := os.ReadFile(n.Container(id).GetLogPath())
		if err == nil && bytes.IndexByte(b, 0) < 0 {
			if got = node.LogText(t, string(b)); got == want {
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("the log has %d bytes, and %d were written; it ends with %q", len(got), len(want), got[max(0, len(got)-40):])
}

// PROPERTIES 53 and 23: what berth holds and relies on for the output of a container is taken away
// while berth is there. It is noticed, named and replaced; no byte is lost but what was in a log
// that somebody deleted, and the container notices nothing, also through a restart of berth.
func TestWhatTheOutputReliesOnIsTakenAway(t *testing.T) {
	both(t, quick, func(t *testing.T, n *node.Node, _ *faults) {
		id, write := counting(t, n)
		write(10)
		logged(t, n, id, lines(0, 10))
		pid := n.Pid(id)

		for round := range 2 { // the logger of the shim, and the one that berth has started
			loggers := loggersOf(t, id)
			if len(loggers) != 1 {
				t.Fatalf("it has %d loggers", len(loggers))
			}
			before := noted(n, id, event.LoggerReplaced{}) // a kill of berth may cost the last second of it
			if err := unix.Kill(loggers[0], unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			n.Until("another logger", func() bool { return noted(n, id, event.LoggerReplaced{}) > before })
			n.Berth.Kill(unix.SIGKILL)
			write(20 + round*10)
			n.StartBerth()
			logged(t, n, id, lines(0, 20+round*10))
		}

		// The same while berth is away: what the container writes then fails, so it writes nothing.
		n.Berth.Kill(unix.SIGKILL)
		for _, pid := range loggersOf(t, id) {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		n.StartBerth()
		n.Until("another logger", func() bool { return noted(n, id, event.LoggerReplacedLate{}) == 1 })
		write(40)
		logged(t, n, id, lines(0, 40))

		log := n.Container(id).GetLogPath()
		if err := os.Truncate(log, 0); err != nil {
			t.Fatal(err)
		}
		write(50)
		logged(t, n, id, lines(40, 50))
		if noted(n, id, event.LogTruncated{}) != 1 {
			t.Error("nothing says that the log was truncated")
		}
		if err := os.RemoveAll(filepath.Dir(log)); err != nil {
			t.Fatal(err)
		}
		write(60)
		logged(t, n, id, lines(50, 60))
		if n.Container(id).GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || n.Pid(id) != pid {
			t.Error("the container has noticed something")
		}
	})
}

// PROPERTIES 53: the file of the CRI socket is removed while berth is there. A client comes in
// again within four seconds, and those that were connected stay so.
func TestTheCRISocketIsTakenAway(t *testing.T) {
	both(t, quick, func(t *testing.T, n *node.Node, _ *faults) {
		path := n.Dir + "/berth.sock"
		n.Within(4*time.Second, "a client comes in again", func() node.Span {
			span := node.Span{From: time.Now()}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			n.Until("somebody comes in", func() bool {
				c, err := client.Dial(path)
				if err != nil {
					return false
				}
				defer c.Close()
				_, err = c.Version(t.Context(), &runtimeapi.VersionRequest{})
				return err == nil
			})
			span.To = time.Now()
			return span
		})
		if _, err := n.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil {
			t.Errorf("a client that was connected: %v", err)
		}
		if !strings.Contains(n.Berth.Output(), "a socket of CRI was removed or replaced") {
			t.Error("berth does not say so")
		}
		n.Berth.Kill(unix.SIGKILL)
		n.StartBerth()
	})
}

// PROPERTIES 53: the other sockets of berth's are removed while it is there. Those for streams and
// for cAdvisor, and the link to that, are made again; that for NRI plug-ins is named by status.
func TestTheOtherSocketsAreTakenAway(t *testing.T) {
	t.Parallel()
	dir := node.TempDir(t)
	n, _ := start(t, node.Options{Dir: dir, Args: append([]string{
		"--set", "streams.socket=" + dir + "/streams.sock",
		"--set", "containerd.link=" + dir + "/link",
		"--set", "nri.enable=true", "--set", "nri.socket=" + dir + "/nri.sock",
	}, quick...)})
	comesIn := func(path string) func() bool {
		return func() bool {
			c, err := net.Dial("unix", path)
			return err == nil && c.Close() == nil
		}
	}
	for name, at := range map[string]string{
		"streams.sock":      "streams.sock",
		"run/cadvisor.sock": "link",
		"link":              "link",
	} {
		n.Until("somebody comes in by "+at, comesIn(dir+"/"+at))
		if err := os.Remove(dir + "/" + name); err != nil {
			t.Fatal(err)
		}
		n.Until("somebody comes in again after the removal of "+name, comesIn(dir+"/"+at))
	}
	n.Until("plug-ins are served", comesIn(dir+"/nri.sock"))
	if err := os.Remove(dir + "/nri.sock"); err != nil {
		t.Fatal(err)
	}
	n.Until("status says that plug-ins cannot connect", func() bool {
		out, _ := n.Command("status").Output()
		return strings.Contains(string(out), dir+"/nri.sock, was removed")
	})
	_, id := n.Sh("exit 7")
	node.ExpectExit(t, n.Ended(id), 7, "Error")
}

// PROPERTIES 53: what keeps a pod together is taken away while berth is there: its descriptors in
// the store of the service manager, the groups of a container, and the pins of a pod without a
// process. Codes stay right, the pod is NOTREADY once its pins are gone, and everything is removed.
func TestDescriptorsGroupsAndPinsAreTakenAway(t *testing.T) {
	t.Parallel()
	n, _ := start(t, node.Options{ServiceManager: true, Args: withoutPause})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	run := func(name string, code int) (id string, pid int) {
		id = n.Run(pod, cfg, node.ContainerConfig(name, "sh", "-c", exitOnTerm(code)))
		ready(n, id)
		return id, n.Pid(id)
	}
	ends := func(id string, pid, code int) {
		t.Helper()
		if err := unix.Kill(pid, unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		node.ExpectExit(t, n.Ended(id), int32(code), "Error")
	}
	first, pid := run("first", 41)
	second, next := run("second", 42)
	n.Until("descriptors are kept", func() bool { return len(n.Kept()) >= 2 })
	n.DropKept()
	ends(first, pid, 41)
	n.Berth.Kill(unix.SIGKILL)
	n.StartBerth()
	ends(second, next, 42)

	third, pid := run("third", 43)
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	moved := 0
	for line := range strings.Lines(string(groups)) {
		_, at, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, at, _ := strings.Cut(at, ":")
		dir := filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(controllers, "name="), at)
		if !strings.Contains(at, third) {
			continue
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(dir), "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			continue // not a hierarchy that is mounted here, or one with controllers in the group above
		}
		n.Until("its other processes are moved as well", func() bool {
			procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for p := range strings.FieldsSeq(string(procs)) {
				_ = os.WriteFile(filepath.Join(filepath.Dir(dir), "cgroup.procs"), []byte(p), 0)
			}
			return err == nil && len(procs) == 0
		})
		if err := os.Remove(dir); err != nil {
			t.Errorf("remove the group: %v", err)
		}
		moved++
	}
	if moved == 0 {
		t.Errorf("no group was taken away:\n%s", groups)
	}
	if st := n.Container(third); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("without its groups: %v", st)
	}
	ends(third, pid, 43)

	last, _ := run("last", 44)
	for _, name := range []string{"ipc", "uts"} {
		if err := unix.Unmount(filepath.Join(n.Dir, "run/pins", pod, name), unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	n.Until("NOTREADY", func() bool {
		r, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
		return err == nil && r.GetStatus().GetState() == runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	})
	n.RemoveAll(t.Context())
	if !gone(t, n, last) {
		t.Error("a container of a pod without pins is left")
	}
	n.NoLeaks(t.Context())
}
