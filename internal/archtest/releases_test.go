// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// required returns the version of a module in a go.mod of the repository; of "go" that of the
// language.
func required(t *testing.T, file, module string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^\s*(?:require )?` + regexp.QuoteMeta(module) + ` (\S+)`).FindStringSubmatch(string(b))
	if m == nil {
		t.Fatalf("%s has no %s", file, module)
	}
	return m[1]
}

// docs/releases.md lists what the tests run, as it is pinned.
func TestWhatIsTestedIsListedAsItIsPinned(t *testing.T) {
	rows := map[string]string{}
	_, table, _ := strings.Cut(documents(t)["docs/releases.md"], "\n## Tested with\n")
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, " | "); len(cells) == 3 {
			rows[strings.TrimPrefix(cells[0], "| ")] = cells[1]
		}
	}
	for what, want := range map[string]string{
		"Go":                                    required(t, "go.mod", "go"),
		"containerd, inside berth":              required(t, "go.mod", "github.com/containerd/containerd/v2"),
		"containerd, beside berth":              required(t, "tools/programs/go.mod", "github.com/containerd/containerd/v2"),
		"runc":                                  required(t, "tools/programs/go.mod", "github.com/opencontainers/runc"),
		"kubelet":                               required(t, "tools/lab/kubelet/go.mod", "k8s.io/kubernetes"),
		"kubelet, for profiles from registries": required(t, "tools/lab/kubelet138/go.mod", "k8s.io/kubernetes"),

		"etcd":    required(t, "tools/lab/cluster/go.mod", "go.etcd.io/etcd/server/v3"),
		"CoreDNS": required(t, "tools/lab/cluster/go.mod", "github.com/coredns/coredns"),

		"containerd 1.7, whose pods are adopted": required(t, "tools/lab/containerd17/go.mod", "github.com/containerd/containerd"),

		"control plane, kube-proxy, kubectl": required(t, "tools/lab/kubelet/go.mod", "k8s.io/kubernetes"),
		"CRI":                                required(t, "go.mod", "k8s.io/cri-api"),
		"CNI plug-ins":                       required(t, "tools/programs/go.mod", "github.com/containernetworking/plugins"),
	} {
		if rows[what] != want {
			t.Errorf("docs/releases.md says that %s is %q; it is %s", what, rows[what], want)
		}
	}
	guest := files(t, "test/guest/*")
	for what, words := range map[string]struct{ file, pattern string }{
		"crun":                {"test/guest/crun", `deb .* trixie main`},
		"Linux, of the guest": {"test/guest/guest", `Debian's own \(6\.1 in Debian\n# 12\)`},
	} {
		if rows[what] == "" || !regexp.MustCompile(words.pattern).MatchString(guest[words.file]) {
			t.Errorf("%s is %q in docs/releases.md, and %s says something else", what, rows[what], words.file)
		}
	}
	readme := documents(t)["README.md"]
	if want := "berth is tested on Linux 6.1 and " + rows["Linux, elsewhere"]; rows["Linux, elsewhere"] == "" || !strings.Contains(readme, want) {
		t.Errorf("README.md does not say %q", want)
	}
}
