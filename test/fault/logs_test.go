// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/command"
	"berth/test/node"
)

// numbered are lines as a shell prints them with `i=0; while [ $i -lt N ]; do echo line $i; ...`.
func numbered(lines int) (script, text string) {
	var b strings.Builder
	for i := range lines {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); done", lines), b.String()
}

// PROPERTIES 23: containers write and end while berth is away after kill -9. Their logs are
// complete, the unfinished last line included, and their exit codes are right. One writes more than
// its pipe holds, so that it waits for berth and ends afterwards. The output of one that has stdin
// comes through a FIFO, and the kernel drops the end of it: that is reported.
func TestWhatIsWrittenWhileBerthIsAwayIsLogged(t *testing.T) {
	both(t, quick, func(t *testing.T, n *node.Node, _ *faults) {
		few, fewText := numbered(1000)
		many, manyText := numbered(60000)
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		gate := func(name string) string { return n.Dir + "/gate/" + name }
		if err := os.Mkdir(n.Dir+"/gate", 0o755); err != nil {
			t.Fatal(err)
		}
		run := func(name, script string, tty, stdin bool) string {
			c := node.ContainerConfig(name, "sh", "-c", "echo begin; while [ ! -e /gate/go ]; do sleep 0.02; done; "+script+"; printf unfinished; touch /gate/"+name+"; exit 42")
			c.Tty, c.Stdin = tty, stdin
			c.Mounts = []*runtimeapi.Mount{{HostPath: n.Dir + "/gate", ContainerPath: "/gate"}}
			id := n.Run(pod, cfg, c)
			n.Until(name+" has begun", func() bool { return strings.HasPrefix(n.Log(id), "begin") })
			return id
		}
		short := run("short", few, false, false)
		long := run("long", many, false, false)
		terminal := run("terminal", few, true, true)
		copied := run("copied", few, false, true) // by the shim, into a FIFO
		n.Berth.Kill(unix.SIGKILL)
		if err := os.WriteFile(gate("go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"short", "terminal", "copied"} {
			n.Until(name+" has written all", func() bool { _, err := os.Stat(gate(name)); return err == nil })
		}
		if _, err := os.Stat(gate("long")); err == nil {
			t.Error("more was written than a pipe holds, and nobody waited for berth")
		}
		n.StartBerth()
		for _, id := range []string{short, long, terminal, copied} {
			node.ExpectExit(t, n.Ended(id), 42, "Error")
		}
		for id, want := range map[string]string{
			short:    "begin\n" + fewText + "unfinished",
			long:     "begin\n" + manyText + "unfinished",
			terminal: strings.ReplaceAll("begin\n"+fewText+"unfinished", "\n", "\r\n"),
		} {
			n.Until("the log is complete", func() bool { return len(n.Log(id)) >= len(want) })
			if got := n.Log(id); got != want {
				t.Errorf("the log has %d bytes, %d were written; it ends with %q", len(got), len(want), got[max(0, len(got)-40):])
			}
		}
		if all := "begin\n" + fewText + "unfinished"; !strings.HasPrefix(all, n.Log(copied)) {
			t.Errorf("the log of %s is not what was written", copied)
		}
		if text := timeline(t, n, copied); !strings.Contains(text, "end of the output may be missing") {
			t.Errorf("the timeline does not say what the kernel dropped: %s", text)
		}
	})
}

// PROPERTIES 17 and 23: the disk of logs is full. Exits are visible, and other containers go on. berth
// is killed then: the next berth is ready all the same, which it never was, reports the exit that it
// did not see, and loses none of the output.
func TestAFullLogDiskHoldsUpNobody(t *testing.T) {
	t.Parallel()
	n, _ := start(t, node.Options{Args: quick})
	disk := smallDisk(t, 256<<10)
	cfg := n.PodConfig()
	cfg.LogDirectory = disk.dir
	pod := n.Pod(cfg)
	disk.fill()
	script, text := numbered(2000)
	before := n.Run(pod, cfg, node.ContainerConfig("before", "sh", "-c", script+"; exit 41"))
	node.ExpectExit(t, n.Ended(before), 41, "Error")
	_, other := n.Sh("exit 43")
	node.ExpectExit(t, n.Ended(other), 43, "Error")
	id := n.Run(pod, cfg, node.ContainerConfig("c", "sh", "-c", script+"; printf unfinished; sleep 1; exit 42"))
	n.Until("the timeline says what is waited for", func() bool {
		return strings.Contains(timeline(t, n, id), "output cannot be logged, and waits")
	})
	for range 3 {
		n.Berth.Kill(unix.SIGKILL)
		n.StartBerth()
	}
	node.ExpectExit(t, n.Ended(id), 42, "Error")
	disk.free()
	for id, want := range map[string]string{before: text, id: text + "unfinished"} {
		n.Until("the log is complete", func() bool { return len(n.Log(id)) >= len(want) })
		if got := n.Log(id); got != want {
			t.Errorf("the log has %d bytes, %d were written", len(got), len(want))
		}
	}
}

// freezable mounts a disk that can be frozen: no write to it returns until it thaws.
func freezable(t *testing.T) (dir string, freeze, thaw func()) {
	t.Helper()
	base := node.TempDir(t)
	dir = base + "/disk"
	img := base + "/img"
	if out, err := command.New(t, "sh", "-ec", `truncate -s 32M "$0"; mkfs.ext4 -q "$0"; mkdir "$1"; mount -o loop "$0" "$1"`, img, dir).CombinedOutput(); err != nil {
		t.Fatalf("make a disk: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	const fifreeze, fithaw = 0xC0045877, 0xC0045878
	freeze = func() {
		if err := unix.IoctlSetInt(fd, fifreeze, 0); err != nil {
			t.Fatalf("freeze %s: %v", dir, err)
		}
	}
	thaw = sync.OnceFunc(func() {
		if err := errors.Join(unix.IoctlSetInt(fd, fithaw, 0), unix.Close(fd)); err != nil {
			t.Errorf("thaw %s: %v", dir, err)
		}
	})
	return dir, freeze, thaw
}

// PROPERTIES 14 and 23: the log's disk is frozen, and every write to it hangs. Exits are visible,
// other containers go on, a rotation is answered, and a container can be removed; the log of one that
// was not removed is complete once the disk thaws, and can be rotated.
func TestAFrozenLogDiskHoldsUpNobody(t *testing.T) {
	t.Parallel()
	n, _ := start(t, node.Options{Args: quick})
	dir, freeze, thaw := freezable(t)
	defer thaw()
	cfg := n.PodConfig()
	cfg.LogDirectory = dir
	pod := n.Pod(cfg)
	script, text := numbered(500)
	run := func(name string) string {
		id := n.Run(pod, cfg, node.ContainerConfig(name, "sh", "-c", "trap '"+script+"; exit 42' TERM; echo ready; while :; do sleep 0.05; done"))
		ready(n, id)
		return id
	}
	stays, goes, runs := run("stays"), run("goes"), run("runs")
	freeze()
	rotate := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := n.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: runs})
		return err
	}
	if rotate() == nil {
		t.Error("a log was opened on a frozen disk")
	}
	for _, id := range []string{stays, goes} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if _, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 100}); err != nil {
			t.Errorf("stop: %v", err)
		}
		cancel()
		node.ExpectExit(t, n.Container(id), 42, "Error")
	}
	_, other := n.Sh("echo unharmed; exit 43")
	node.ExpectExit(t, n.Ended(other), 43, "Error")
	n.Until("the other's log is whole", func() bool { return n.Log(other) == "unharmed\n" })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: goes}); err != nil {
		t.Errorf("remove: %v", err)
	}
	thaw()
	n.Until("the log is rotated", func() bool { return rotate() == nil })
	want := "ready\n" + text
	n.Until("the log is complete", func() bool { return len(n.Log(stays)) >= len(want) })
	if got := n.Log(stays); got != want {
		t.Errorf("the log has %d bytes, %d were written", len(got), len(want))
	}
}

// PROPERTIES 20: containers that write without an end of line, as fast as they can, take no more of
// the runtime directory than is theirs. One took 191 MB within four seconds.
func TestAContainerDoesNotFillTheRuntimeDirectory(t *testing.T) {
	both(t, quick, func(t *testing.T, n *node.Node, _ *faults) {
		var ids []string
		for _, script := range []string{
			"exec dd if=/dev/zero bs=64k count=2000 2>/dev/null",
			"i=0; l=$(printf '%03000d' 0); while [ $i -lt 20000 ]; do printf \"$l\\n$l\"; i=$((i+1)); done",
		} {
			_, id := n.Sh(script)
			ids = append(ids, id)
		}
		const most = 1 << 20
		for _, id := range ids {
			n.Until("it has ended", func() bool {
				for _, id := range ids {
					for _, spool := range []string{"stdout.spool", "stderr.spool"} {
						var st unix.Stat_t
						if err := unix.Stat(n.Dir+"/run/io/"+id+"/"+spool, &st); err == nil && st.Blocks*512 > most {
							t.Fatalf("%s takes %d bytes", spool, st.Blocks*512)
						}
					}
				}
				return n.Container(id).GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
			})
		}
		n.Until("all is logged", func() bool { return len(n.Log(ids[0])) == 2000*64<<10 && len(n.Log(ids[1])) == 20000*6001 })
	})
}
