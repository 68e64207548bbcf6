// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/config"
	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/base/inroot"
	"berth/internal/base/version"
	"berth/internal/engine/adopt"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/internal/history/observe"
	"berth/internal/history/recorder"
)

// history keeps what happened, and traces it.
type history struct {
	recorder *recorder.Recorder
	tracing  *observe.Tracing // nil if tracing is off
}

// openHistory opens the flight recorder, which asks pods, and begins to send traces if that is
// configured.
func openHistory(ctx context.Context, b base, pods *asked) (h history, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		b.log.Warn("it is not known which boot this is: the timeline may take a reboot for a restart", "err", err)
	}
	cfg := recorder.Config{
		Clock:    b.clock,
		MaxBytes: int64(b.cfg.Timeline.MaxMiB) << 20,
		MaxAge:   config.TimelineAge,
		Names:    pods.names,
		Seen:     pods.lastSeen,
		Version:  version.String(),
		Boot:     strings.TrimSpace(string(boot)),
		Log:      b.log.Logger,
	}
	if b.cfg.Timeline.MaxMiB > 0 {
		cfg.Dir = filepath.Join(b.cfg.Root, "timeline")
	}
	h.recorder = recorder.Open(cfg)
	b.undo.add(h.recorder.Close)
	if h.tracing, err = observe.NewTracing(ctx, b.cfg.Tracing); h.tracing != nil {
		b.undo.add(h.tracing.Close)
	}
	return h, err
}

// load reads the records, and has the recorder add the exits that the timeline lacks.
func (h history) load(store *state.Store) (state.Loaded, error) {
	all, err := store.Load()
	if err == nil {
		err = halfAdopted(all)
	}
	if err == nil {
		h.recorder.Recall(endedOf(all))
	}
	return all, err
}

// halfAdopted returns an error if an adoption, or its way back, was cut off: nobody serves such a
// pod.
func halfAdopted(all state.Loaded) error {
	left := adopt.Unsettled(all)
	if len(left) == 0 {
		return nil
	}
	p := left[0]
	return fmt.Errorf("%d pods are neither berth's nor containerd's, such as %s/%s, which is %s: `berth adopt` was cut off; run it again, or with --back",
		len(left), p.Namespace, p.Name, adopt.Whose(p.Sandbox.Status.Owner))
}

// endedOf returns the exits that are on record.
func endedOf(all state.Loaded) (ended []recorder.Ended) {
	add := func(id string, n event.Names, f exit.Fact) {
		if !f.Zero() {
			ended = append(ended, recorder.Ended{
				ID:    id,
				Names: n,
				Exit:  event.ExitOf(f),
			})
		}
	}
	pods := map[string]*runtimeapi.PodSandboxConfig{}
	for _, sb := range all.Sandboxes {
		pods[sb.ID] = sb.Config
		add(sb.ID, namesIn(sb.ID, sb.Config, nil), sb.Status.Exit)
	}
	for _, c := range all.Containers {
		add(c.ID, namesIn(c.PodID, pods[c.PodID], c.Config), c.Status.Exit)
	}
	return ended
}

// nameAll tells the names of everything that is on record.
func nameAll(all state.Loaded, named func(id string, of event.Names)) {
	pods := map[string]*runtimeapi.PodSandboxConfig{}
	for _, sb := range all.Sandboxes {
		pods[sb.ID] = sb.Config
		named(sb.ID, namesIn(sb.ID, sb.Config, nil))
	}
	for _, c := range all.Containers {
		named(c.ID, namesIn(c.PodID, pods[c.PodID], c.Config))
	}
}

// namesIn returns the names of a container, or of a sandbox where c is nil.
func namesIn(sandbox string, p *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) event.Names {
	n := event.Names{
		Namespace: p.GetMetadata().GetNamespace(),
		Pod:       p.GetMetadata().GetName(),
		UID:       p.GetMetadata().GetUid(),
		Attempt:   p.GetMetadata().GetAttempt(),
	}
	if c != nil {
		n.Sandbox, n.Container, n.Attempt = sandbox, c.GetMetadata().GetName(), c.GetMetadata().GetAttempt()
	}
	return n
}

// asked is the controller as the rooms see it that it calls itself, and that are opened before it
// for this reason: the recorder, NRI plug-ins and cAdvisor's service. None of them asks before
// parts run, and by then the controller is there.
type asked struct{ *pod.Controller }

// names returns the names of a sandbox or container that has a record.
func (a *asked) names(id string) (event.Names, bool) {
	t, err := a.Target(id)
	if err != nil {
		return event.Names{}, false
	}
	return namesIn(t.PodID, t.PodConfig, t.Config), true
}

// lastSeen returns the last that is to be seen of a container that has ended. Its cgroup is there
// for a moment, so it is read first. Its log is read once all that it wrote is there, or when ctx
// ends.
func (a *asked) lastSeen(ctx context.Context, id string) recorder.Seen {
	t, err := a.Target(id)
	if err != nil {
		return recorder.Seen{}
	}
	var s recorder.Seen
	if dir := t.Process.Cgroup; dir != "" {
		s.Memory, s.CPU = usedIn(dir)
	}
	if st, err := a.ContainerStatus(ctx, id, false); err == nil && st.GetStatus().GetReason() == exit.ReasonOOMKilled {
		s.Beside = a.largestBeside(t)
	}
	if t.HasEnded() {
		_ = a.Drained(ctx, id) // or else the end of what is there
	}
	if path := t.Config.GetLogPath(); path != "" && t.PodConfig.GetLogDirectory() != "" {
		s.Log, _ = lastLines(t.PodConfig.GetLogDirectory(), path)
	}
	return s
}

// largestBeside returns the container that has used most memory of those beside one in its pod, as
// far as their cgroups are there; nil for none.
func (a *asked) largestBeside(t pod.Target) (largest event.Use) {
	for _, c := range a.ListContainers(&runtimeapi.ContainerFilter{PodSandboxId: t.PodID}) {
		beside, err := a.Target(c.GetId())
		if err != nil || beside.ID == t.ID || beside.Process.Cgroup == "" {
			continue
		}
		used, _ := usedIn(beside.Process.Cgroup)
		if used > largest.Memory {
			largest = event.Use{Container: c.GetMetadata().GetName(), Memory: used}
		}
	}
	return largest
}

// usedIn returns the most memory, in bytes, and the processor time that a cgroup has used; 0 for
// what the kernel does not say of it, or no longer.
func usedIn(dir string) (memory uint64, cpu time.Duration) {
	for _, file := range []string{"memory.peak", "memory.max_usage_in_bytes"} { // cgroup v2 and v1
		if b, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
			memory, _ = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
		}
	}
	b, _ := os.ReadFile(filepath.Join(dir, "cpu.stat"))
	for line := range strings.Lines(string(b)) {
		if us, ok := strings.CutPrefix(line, "usage_usec "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(us), 10, 64)
			cpu = time.Duration(n) * time.Microsecond
		}
	}
	return memory, cpu
}

// logEnd is how much of the end of a log is looked at, in bytes.
const logEnd = 16 << 10

// lastLines returns the end of a log in the CRI format, without instants and streams. path is below
// dir, the directory of the pod's logs.
func lastLines(dir, path string) ([]string, error) {
	f, err := inroot.OpenLog(dir, path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(st.Size(), logEnd))
	n, err := f.ReadAt(b, st.Size()-int64(len(b)))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	b = b[:n]
	if int64(n) < st.Size() { // the first line is not whole
		_, b, _ = bytes.Cut(b, []byte("\n"))
	}
	var lines []string
	for line := range bytes.Lines(b) {
		fields := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(" "), 4) // instant, stream, tag, text
		if len(fields) == 4 {
			lines = append(lines, strings.ToValidUTF8(string(fields[3]), "?"))
		}
	}
	return lines, nil
}

// kept is a store that keeps the history of what is deleted: the record of an exit goes once the
// recorder has the exit on the disk.
type kept struct {
	pod.Store
	recorder *recorder.Recorder
	log      interface{ Warn(msg string, args ...any) }
}

// Commit implements pod.Store.
func (k kept) Commit(changes ...state.Change) error {
	for _, ch := range changes {
		if !ch.Deletes() {
			continue
		}
		if err := k.recorder.Keep(context.Background(), ch.ID()); err != nil { // bounded
			k.log.Warn("a power cut now may lose an exit from the timeline", "id", ch.ID(), "err", err)
		}
	}
	return k.Store.Commit(changes...)
}
