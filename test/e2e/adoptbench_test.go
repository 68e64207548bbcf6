// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// BenchmarkAdoption measures for how long no runtime answers while pods are adopted: from the stop of
// containerd to the first answer of berth. It prints what `berth adopt` says of the steps, and the load
// of the machine. BERTH_PODS is the number of pods, 100 unless set, and BERTH_BEFORE the path of another
// berth, which is measured in turns with the built one.
func BenchmarkAdoption(b *testing.B) {
	pods, err := strconv.Atoi(cmp.Or(os.Getenv("BERTH_PODS"), "100"))
	if err != nil {
		b.Fatal(err)
	}
	n := node.Start(b, node.Options{External: true})
	n.StartPlugin()
	var made sync.WaitGroup
	turn := make(chan struct{}, 4)
	for range pods {
		cfg := n.PodConfig()
		cfg.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE // CNI has no part in this
		cfg.Hostname = ""
		made.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			pod := n.Pod(cfg)
			c := node.ContainerConfig("c", "sleep", "100000")
			c.Linux.SecurityContext.NamespaceOptions = cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
			id := n.Create(pod, cfg, c)
			if _, err := n.StartContainer(b.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
				b.Error(err)
			}
		})
	}
	made.Wait()
	load := func() string {
		text, _ := os.ReadFile("/proc/loadavg")
		return strings.TrimSpace(string(text))
	}
	programs := []string{""}
	if before := os.Getenv("BERTH_BEFORE"); before != "" {
		programs = []string{before, ""}
	}
	for i := 0; b.Loop(); i++ {
		n.Program = programs[i%len(programs)]
		var away, up, answered time.Time
		before := load()
		var said []string
		for line := range strings.Lines(n.AdoptWith(nil,
			node.Step{Name: "switch", Do: func() { away = time.Now(); n.PluginOff(func() { up = time.Now() }) }},
			node.Step{Name: "start", Do: func() { n.ServeBerth(); answered = time.Now() }},
		)) {
			if strings.Contains(line, " took ") || strings.Contains(line, ", after ") {
				said = append(said, strings.TrimSpace(line))
			}
		}
		dark := answered.Sub(away)
		b.ReportMetric(dark.Seconds(), "s-without-runtime")
		b.Logf("%s: %d pods, no runtime for %s (containerd's stop %s); %s; load %s before, %s after", cmp.Or(n.Program, "built"), pods, dark.Round(time.Millisecond), up.Sub(away).Round(time.Millisecond), strings.Join(said, "; "), before, load())
		n.Berth.Kill(syscall.SIGTERM)
		n.AdoptWith([]string{"--back"}, node.Step{Name: "switch", Do: n.PluginOn})
	}
	n.RemoveAll(b.Context())
}
