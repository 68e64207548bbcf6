// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/cgroup"
	"berth/test/node"
)

// PROPERTIES 24: the kubelet changes containers while they run: it resizes a pod in place, takes
// processors away for a pod that has them alone, and rotates logs.
func TestContainersChangeWhileTheyRun(t *testing.T) {
	t.Parallel()
	processors := runtime.NumCPU()
	if processors < 2 {
		t.Fatal("a processor for one pod alone needs a second one for all others")
	}
	k := start(t, node.Options{}, true,
		"cpuManagerPolicy: static",
		"cpuManagerReconcilePeriod: 1s",
		fmt.Sprintf("reservedSystemCPUs: 0-%d", processors-2),
		"containerLogMaxSize: 100Ki",
		"containerLogMaxFiles: 10",
		"containerLogMonitorInterval: 3s", // the least that there is
	)
	k.add("chatty", "chatty")
	k.add("resized", "resized")
	before := k.until("resized", "ready", pod.ready).only()
	k.until("chatty", "ready", pod.ready)

	t.Run("a pod is resized in place", func(t *testing.T) {
		k.change("resized", "resized", "memory: 64Mi", "memory: 96Mi", "cpu: 200m", "cpu: 300m")
		memory, quota := "memory/memory.limit_in_bytes", "cpu/cpu.cfs_quota_us"
		if cgroup.V2() {
			memory, quota = "memory.max", "cpu.max"
		}
		k.untilPrinted(t, "resized", "cat /sys/fs/cgroup/"+memory, "100663296\n")
		k.untilPrinted(t, "resized", "head -c 5 /sys/fs/cgroup/"+quota, "30000")
		id := strings.TrimPrefix(before.ContainerID, "berth://")
		st, err := k.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if got := st.GetStatus().GetResources().GetLinux(); err != nil || got.GetMemoryLimitInBytes() != 96<<20 || got.GetCpuQuota() != 30000 {
			t.Errorf("its status has %v, %v", got, err)
		}
	})
	t.Run("a processor is one pod's alone", func(t *testing.T) {
		all, rest := "0-1", "0"
		if processors > 2 {
			all, rest = fmt.Sprintf("0-%d", processors-1), fmt.Sprintf("0-%d", processors-2)
		}
		const ask = "grep Cpus_allowed_list /proc/1/status"
		allowed := func(list string) string { return "Cpus_allowed_list:\t" + list + "\n" }
		k.untilPrinted(t, "resized", ask, allowed(all))
		k.add("pinned", "pinned")
		k.until("pinned", "ready", pod.ready)
		k.untilPrinted(t, "pinned", ask, allowed(fmt.Sprint(processors-1)))
		k.untilPrinted(t, "resized", ask, allowed(rest))
		k.remove("pinned")
		k.untilPrinted(t, "resized", ask, allowed(all))
	})
	if after := k.until("resized", "ready", pod.ready).only(); after.ContainerID != before.ContainerID || after.RestartCount > 0 {
		t.Errorf("was %+v, is %+v", before, after)
	}

	// PROPERTIES 23: each line is in one of the files, and in one alone, once nothing is moved about.
	t.Run("logs are rotated", func(t *testing.T) {
		var want strings.Builder
		for i := range 600 {
			fmt.Fprintf(&want, "line %d\n", i+1)
		}
		var got string
		var files int
		if !k.eventually(func() bool {
			got, files = k.wholeLog(t, "chatty")
			return got == want.String()
		}) || files < 3 {
			t.Errorf("%d files have\n%s", files, got)
		}
	})
}

// untilPrinted waits until a command in a pod's container of the same name prints a text.
func (k *kubelet) untilPrinted(t *testing.T, name, command, want string) {
	t.Helper()
	var text string
	var err error
	if !k.eventually(func() bool {
		text, err = k.request("POST", "/run/default/"+name+"-node/"+name+"?cmd="+strings.ReplaceAll(command, " ", "%20"))
		return err == nil && text == want
	}) {
		t.Errorf("in %s, %s prints %q, not %q: %v", name, command, text, want, err)
	}
}

// wholeLog is what a container of a pod of the same name has written, without what makes the lines
// long, and how many files it is in. While the kubelet rotates or compresses a file, lines may be
// missing or come twice.
func (k *kubelet) wholeLog(t *testing.T, name string) (text string, files int) {
	t.Helper()
	live, err := filepath.Glob(k.dir + "/podlogs/default_" + name + "-node_*/" + name + "/0.log")
	if err != nil {
		t.Fatal(err)
	}
	if len(live) != 1 {
		return "", 0
	}
	rotated, err := filepath.Glob(live[0] + ".2*") // with the instants of their rotations, in order
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, path := range append(rotated, live[0]) {
		b, err := readLog(path)
		if errors.Is(err, fs.ErrNotExist) || strings.HasSuffix(path, ".tmp") {
			return "", 0
		}
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	var lines strings.Builder
	for _, m := range regexp.MustCompile(`(?m) stdout F (line \d+) 0{1000}$`).FindAllStringSubmatch(all.String(), -1) {
		lines.WriteString(m[1] + "\n")
	}
	return lines.String(), len(rotated) + 1
}

// readLog reads a log, which the kubelet compresses after it has rotated it twice.
func readLog(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if !strings.HasSuffix(path, ".gz") {
		return io.ReadAll(f)
	}
	r, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// untilMetric waits until the kubelet's metrics of containers have one of a pod's container of the
// same name whose value begins with a digit: from berth's statistics, or from the kubelet's own
// cAdvisor, which finds the container in berth's containerd.
func (k *kubelet) untilMetric(t *testing.T, metric, name, digit string) {
	t.Helper()
	if !k.evented && !k.asks {
		return
	}
	want := regexp.MustCompile(`(?m)^` + metric + `\{[^}]*container="` + name + `"[^}]*pod="` + name + `-node"[^}]*\} ` + digit)
	var text string
	var err error
	if !k.eventually(func() bool {
		text, err = k.get("/metrics/cadvisor")
		return err == nil && want.MatchString(text)
	}) {
		t.Errorf("no %s of %s begins with %s: %v", metric, name, digit, err)
	}
}
