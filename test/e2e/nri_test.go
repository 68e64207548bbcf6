// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"berth/test/node"
)

// TestMain is an NRI plug-in where berth has started this program as one.
func TestMain(m *testing.M) {
	if os.Getenv(api.PluginNameEnvVar) == "" {
		os.Exit(m.Run())
	}
	s, err := stub.New(&plugin{})
	if err == nil {
		err = s.Run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// PROPERTIES 27: a plug-in of plugin_dir takes part in the first container that is made. It ends
// with the berth that has started it, also with one that is killed.
func TestAPluginOfTheDirectoryTakesPart(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, plugins := node.TempDir(t), t.TempDir()
	pids := filepath.Join(plugins, "pids")
	script := fmt.Sprintf("#!/bin/sh\necho $$ >>%s\nexec %s\n", pids, self)
	if err := os.WriteFile(filepath.Join(plugins, "10-e2e"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	n := node.Start(t, node.Options{Dir: dir, Args: []string{
		"--set", "nri.enable=true",
		"--set", "nri.socket=" + dir + "/nri/s",
		"--set", "nri.plugin_dir=" + plugins,
	}})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	for _, name := range []string{"first", "second"} {
		id := n.Run(pod, cfg, node.ContainerConfig(name, "sh", "-c", "test $FROM_PLUGIN = yes && exit 7"))
		node.ExpectExit(t, n.Ended(id), 7, "Error")
		n.Berth.Kill(syscall.SIGKILL)
		n.StartBerth()
	}
	started := func() []string {
		b, err := os.ReadFile(pids)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(b))
	}
	n.Until("each berth starts the plug-in, and the last plug-in alone is left", func() bool {
		pids := started()
		for i, pid := range pids {
			number, err := strconv.Atoi(pid)
			if err != nil {
				t.Fatal(err)
			}
			if lives := syscall.Kill(number, 0) == nil; lives != (i == len(pids)-1) {
				return false
			}
		}
		return len(pids) == 3
	})
}
