// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// exhaustInotify takes every inotify instance that this user may have, until release is called.
func exhaustInotify(t *testing.T) (release func()) {
	t.Helper()
	var fds []int
	release = func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		fds = nil
	}
	t.Cleanup(release)
	for {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if errors.Is(err, unix.EMFILE) {
			return release
		}
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
}

// PROPERTIES 17: a busy metrics port and a host without a free inotify instance ended berth at
// boot. It serves without metrics, and with the network configuration as it was read, and has both
// once that is possible.
func TestBerthServesThoughItsMetricsPortAndInotifyAreTaken(t *testing.T) {
	address := freePort(t)
	n := node.Start(t, node.Options{Args: []string{"--metrics", address}})
	n.Berth.Kill(syscall.SIGKILL)
	busy, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	release := exhaustInotify(t)
	n.StartBerth()
	_, id := n.Sh("exit 42")
	node.ExpectExit(t, n.Ended(id), 42, "Error")

	if err := busy.Close(); err != nil {
		t.Fatal(err)
	}
	n.Until("metrics are served", func() bool {
		resp, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	release()
	conf := filepath.Join(n.Dir, "net.d", "10-test.conflist")
	if err := os.MkdirAll(filepath.Dir(conf), 0o755); err != nil {
		t.Fatal(err)
	}
	text := `{"cniVersion": "1.0.0", "name": "followed", "plugins": [{"type": "loopback"}]}`
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Until("a new network configuration is used", func() bool {
		st, err := n.RuntimeServiceClient.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
		return err == nil && strings.Contains(st.GetInfo()["cni"], `"name":"followed"`)
	})
	if err := os.Remove(conf); err != nil {
		t.Fatal(err)
	}
}
