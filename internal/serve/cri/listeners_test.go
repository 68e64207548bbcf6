// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/internal/base/ops"
)

// A server answers on each of its sockets with the runtime name that it was given, and all of them
// are closed when it ends.
func TestAServerServesOnSeveralSockets(t *testing.T) {
	dir := t.TempDir()
	s := NewServer(&Runtime{Name: "containerd"}, &Image{}, slog.New(slog.DiscardHandler), &observed{}, &ops.List{})
	ended := make(chan error)
	paths := []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}
	for _, path := range paths {
		lis, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- s.Serve(lis) }()
		c, err := client.Dial(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		v, err := c.RuntimeServiceClient.Version(t.Context(), &runtimeapi.VersionRequest{})
		if err != nil || v.GetRuntimeName() != "containerd" {
			t.Errorf("%s: got %v, %v", path, v, err)
		}
	}
	s.Drain(time.Minute)
	if err := errors.Join(<-ended, <-ended); err != nil {
		t.Error(err)
	}
	for _, path := range paths {
		if c, err := net.Dial("unix", path); err == nil {
			_ = c.Close()
			t.Errorf("%s still accepts", path)
		}
	}
}
