// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"strings"
)

// markdown returns the text of RESULTS.md.
func markdown(r *results) string {
	var w strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&w, format, args...) }
	p("# berth beside containerd's CRI plug-in\n\nMeasured by `make bench` on %s in %s; the one-minute load average was %.2f before and %.2f after.\n",
		r.At.Format("2 January 2006, 15:04 MST"), r.Took, r.Load[0], r.Load[1])
	if r.Sizes != full(r.Sizes.Rounds) {
		p("\n**A quick run, to try the bench: its figures mean little.**\n")
	}
	p("\n| | |\n| --- | --- |\n")
	for _, f := range r.Machine {
		p("| %s | %s |\n", f.What, f.Is)
	}
	for _, name := range []string{"berth", "containerd", "runc"} {
		p("| %s | %s |\n", name, cmp.Or(r.Versions[name], "not measured"))
	}

	vs := verdicts(r)
	missed := 0
	for _, v := range vs {
		if !v.reached {
			missed++
		}
	}
	p("\n## What was to be reached\n\n%d of %d thresholds are reached; not reached: %d. The ratio is berth's share of containerd's: below 1 is better.\n\n", len(vs)-missed, len(vs), missed)
	p("| threshold | berth to containerd | |\n| --- | --- | --- |\n")
	for _, v := range vs {
		word := "reached"
		if !v.reached {
			word = "**not reached**"
		}
		p("| %s | %s | %s |\n", v.threshold, v.measured, word)
	}

	for _, g := range []struct{ name, title, picture string }{
		{exits, "How soon an exit is known", "exits.svg"},
		{operations, "How long operations take", "operations.svg"},
		{memory, "Memory", "memory.svg"},
	} {
		p("\n## %s\n\n![%s](%s)\n\n| | samples | berth p50 | berth p99 | containerd p50 | containerd p99 | ratio of p50 |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n", g.title, g.title, g.picture)
		for _, m := range metrics(r.Sizes) {
			if m.group != g.name {
				continue
			}
			b, c := r.of(m.key, "berth"), r.of(m.key, "containerd")
			count := num(len(b))
			if len(b) != len(c) {
				count = fmt.Sprintf("%d / %d", len(b), len(c))
			}
			b50, c50 := percentile(b, 50), percentile(c, 50)
			p("| %s | %s | %s | %s | %s | %s | %s |\n", m.title, count, value(b50, m.unit, r.Bound), value(percentile(b, 99), m.unit, r.Bound),
				value(c50, m.unit, r.Bound), value(percentile(c, 99), m.unit, r.Bound), ratioText(b50, c50, r.Bound, m.unit))
		}
	}
	if len(r.Trace) > 0 {
		p("\n## Where the milliseconds go\n\n![Where the milliseconds go](trace.svg)\n")
	}
	p("%s", how(r))
	return w.String()
}

// how describes how the figures were measured.
func how(r *results) string {
	s := r.Sizes
	return fmt.Sprintf(`
## How

Both daemons are built from this module and run as they ship, berth with containerd inside. Only
directories, sockets and the network are configured, with the same CNI configuration list for both
(bridge, host-local, portmap), and containerd's restrict_oom_score_adj where the bench itself may not
lower oom_score_adj (berth finds that out by itself). Both log at level info. They use the same runc,
shim, CNI plug-ins and images, pulled before anything is measured, and the same CRI client. Rounds:
%d, each with a new daemon in new directories; the daemons take turns in going first. All samples are
in [results.json](results.json), and none is dropped. Percentiles are nearest-rank: the smallest
sample such that p percent of all samples are not larger. With fewer than a hundred samples p99 is the
slowest.

- **kill to EXITED, polled**: SIGKILL to the container's process from outside, then ContainerStatus,
  every %s plus the time of the call itself, until it is EXITED. **Event**: the same without polling,
  until a subscriber of GetContainerEvents has the event.
- **Exits at once**: %d of %d containers in %d pods are killed at once, and ListContainers with a
  filter for EXITED is polled as above.
- **Stuck deletes**: an OCI runtime that hangs for 30 s in each delete of some containers. %d hang in
  all, and the exits of %d of them are watched for %s at most. Then other containers are killed, whose
  deletes do not hang.
- **Operations**: one call after the other with pauses of %s, each pod through its whole life. The
  container ends on SIGTERM at once. During the pauses both daemons do the work that an answer did not
  wait for. Therefore the whole life is also measured without pauses, with a container that is killed.
- **ExecSync**: true, in one container that runs, with pauses of %s.
- **ListContainers, %d containers**: they are made in %d pods and none is started. The client receives
  the answer as bytes and does not decode it, since decoding takes as long for both. In the list of %d
  containers the time to decode is included.
- **ListContainerStats**: %d of these containers are started first, and the client decodes the answer.
- **PullImage**: an image of %d layers with %d MiB of files, which compress to about half, from a
  registry in the process of the bench. Nothing of it is on the node. **While an image is pulled**: it
  is pulled and removed over and over, and each container is killed during a pull.
- **Processor time**: what the process of the daemon used from the call to the answer, in all its
  threads. What shims use is not part of it. **That of a pod's whole life** is what the kernel counted
  in the control group of the daemon, which its shims, runc and CNI plug-ins are in as well, until %s
  after the last life: the mean of a round.
- **kill -9 and start to ready**: from the start of the process until Status reports ready and
  ListContainers reports every container as running.
- **Memory**: the process of the daemon alone, from smaps_rollup, of a new daemon after %s without a
  call.
- **Where the milliseconds go**: of %d traced lives of a pod, one after the other with pauses, the one
  of median length. berth's steps and commits are its OpenTelemetry spans. Which programs ran, and
  when, is what the kernel says (its process events), since shims, runc and CNI plug-ins send no spans.
`, s.Rounds, pollPause, s.Pods*s.PerPod/2, s.Pods*s.PerPod, s.Pods, s.Wedged, s.Watched, bound, idlePause, idlePause, s.Crowd, s.Pods, s.Pods*s.PerPod, s.Running, layerCount, s.PullMiB, postponed, quiet, s.Traced)
}
