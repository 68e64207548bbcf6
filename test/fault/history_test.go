// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/test/node"
)

// kindsOf returns the kinds of entries, and those details that are asked for.
func kindsOf(entries []*berthv1.Entry) (kinds []string) {
	for _, e := range entries {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

// has reports whether there is an entry of a kind with some words.
func has(entries []*berthv1.Entry, kind string, words ...string) bool {
	return slices.ContainsFunc(entries, func(e *berthv1.Entry) bool {
		for _, w := range words {
			if !strings.Contains(e.Detail+" "+e.Error, w) {
				return false
			}
		}
		return e.Kind == kind
	})
}

// crashed waits until the end of a container with an error is in its series.
func crashed(n *node.Node, id string, words ...string) {
	n.Until("the crash of "+id+" is in the history", func() bool {
		return has(n.History(id), "ContainerCrashed", words...)
	})
}

// PROPERTIES 42: berth is killed, and started again. The timeline has what happened before, of what is
// there and of what was removed, and says that there was a kill. It goes on: a crash is the third of
// its series.
func TestHistorySurvivesKill9(t *testing.T) {
	t.Parallel()
	n, _ := start(t, node.Options{})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	run := func(attempt uint32) string {
		c := node.ContainerConfig("app", "sh", "-c", "echo about to fail; exit 42")
		c.Metadata.Attempt = attempt
		id := n.Run(pod, cfg, c)
		n.Ended(id)
		return id
	}
	first := run(0)
	crashed(n, first, "code=42", "crashes=1", "wrote=about to fail")
	if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: first}); err != nil {
		t.Fatal(err)
	}
	second := run(1)
	crashed(n, second, "crashes=2")
	n.Until("the removal is in the history", func() bool { return has(n.History(first), "Removed") })
	older := time.Now()
	n.Until("the history is older than a second", func() bool { return time.Since(older) > time.Second })
	before := map[string][]string{first: kindsOf(n.History(first)), second: kindsOf(n.History(second)), pod: kindsOf(n.History(pod))}

	n.Berth.Kill(syscall.SIGKILL)
	n.StartBerth()
	for id, want := range before {
		if got := kindsOf(n.History(id)); len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Errorf("after a kill the history of %s is\n%v\nand was\n%v", id, got, want)
		}
	}
	if !slices.ContainsFunc(n.History(cfg.GetMetadata().GetName()), func(e *berthv1.Entry) bool { return e.Id == second }) {
		t.Error("the timeline of the pod lacks its container")
	}
	third := run(2)
	crashed(n, third, "crashes=3")
	resp, err := n.Client.Node.Timeline(t.Context(), &berthv1.TimelineRequest{Node: true})
	if err != nil || !strings.Contains(fmt.Sprint(resp), "a kill or a crash of berth") {
		t.Errorf("the timeline of the node does not say that berth was killed: %v", err)
	}
}

// PROPERTIES 42: the history that was not on the disk yet is gone, as after a power cut. The exits that
// are on record are in the next one, with their codes.
func TestAnExitIsInTheHistoryWhateverIsLost(t *testing.T) {
	t.Parallel()
	dir := node.TempDir(t)
	n, _ := start(t, node.Options{Dir: dir})
	_, id := n.Sh("exit 42")
	n.Ended(id)
	n.Berth.Kill(syscall.SIGKILL)
	if err := os.RemoveAll(filepath.Join(dir, "lib", "timeline")); err != nil {
		t.Fatal(err)
	}
	n.StartBerth()
	n.Until("the exit is in the history", func() bool { return has(n.History(id), "ExitRecalled", "code=42") })
	crashed(n, id, "code=42")
}

// PROPERTIES 42: the disk of the history hangs: no write to it returns. Exits are settled and told as
// ever, by the timeline, too, and removals go on. Once the disk answers nothing is missing.
func TestAFrozenDiskOfTheHistoryHoldsUpNothing(t *testing.T) {
	t.Parallel()
	disk, freeze, thaw := freezable(t)
	dir := node.TempDir(t)
	for _, err := range []error{
		os.Mkdir(disk+"/timeline", 0o700),
		os.Mkdir(dir+"/lib", 0o700),
		os.Symlink(disk+"/timeline", dir+"/lib/timeline"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	n, _ := start(t, node.Options{Dir: dir})
	t.Cleanup(thaw) // before the node ends
	_, before := n.Sh("exit 41")
	crashed(n, before, "code=41")
	freeze()
	var ids []string
	for range 3 {
		_, id := n.Sh("exit 42")
		node.ExpectExit(t, n.Ended(id), 42, "Error")
		ids = append(ids, id)
	}
	n.Within(2*time.Second, "from the kill of a process to EXITED", func() node.Span {
		_, id := n.Sh("exec sleep 1000")
		return n.Killed(id)
	})
	n.Within(5*time.Second, "the removal of a container", func() node.Span {
		began := time.Now()
		if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: before}); err != nil {
			t.Fatal(err)
		}
		before = ids[0] // of another try
		return node.Span{From: began, To: time.Now()}
	})
	for _, id := range ids[1:] {
		if h := n.History(id); !has(h, "ExitSettled", "code=42") {
			t.Errorf("the timeline of what ended meanwhile is %v", kindsOf(h))
		}
	}
	thaw()
	older := time.Now()
	n.Until("what is in memory is on the disk", func() bool { return time.Since(older) > 2*time.Second })
	n.Berth.Kill(syscall.SIGKILL)
	n.StartBerth()
	for _, id := range ids[1:] {
		if h := n.History(id); !has(h, "ExitSettled", "code=42") {
			t.Errorf("after a kill the timeline is %v", kindsOf(h))
		}
	}
}

// PROPERTIES 42: the disk of the history is full. Exits are settled and told as ever. Once there is
// room the history is written, and survives a kill.
func TestAFullDiskOfTheHistoryHoldsUpNothing(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 1<<20)
	dir := node.TempDir(t)
	for _, err := range []error{
		os.Mkdir(disk.dir+"/timeline", 0o700),
		os.Mkdir(dir+"/lib", 0o700),
		os.Symlink(disk.dir+"/timeline", dir+"/lib/timeline"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	n, _ := start(t, node.Options{Dir: dir})
	disk.fill()
	_, id := n.Sh("exit 42")
	node.ExpectExit(t, n.Ended(id), 42, "Error")
	n.Within(2*time.Second, "from the kill of a process to EXITED", func() node.Span {
		_, id := n.Sh("exec sleep 1000")
		return n.Killed(id)
	})
	crashed(n, id, "code=42") // from memory
	if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	written := func() (size int64) {
		files, _ := filepath.Glob(disk.dir + "/timeline/*.rec")
		for _, f := range files {
			if st, err := os.Stat(f); err == nil {
				size += st.Size()
			}
		}
		return size
	}
	full := written()
	disk.free()
	n.Until("the history is on the disk", func() bool { return written() > full && has(n.History(id), "Removed") })
	last := written()
	n.Until("all of it is", func() bool { was := last; last = written(); return last == was })
	n.Berth.Kill(syscall.SIGKILL)
	n.StartBerth()
	if h := n.History(id); !has(h, "ExitSettled", "code=42") || !has(h, "Removed") {
		t.Errorf("after a kill the history is %v", kindsOf(h))
	}
}
