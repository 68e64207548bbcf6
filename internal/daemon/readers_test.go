// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
	"berth/internal/base/asynclog"
	"berth/internal/base/config"
	"berth/internal/base/ops"
	"berth/internal/serve/nodeapi"
)

// unobserved counts no call.
type unobserved struct{}

func (unobserved) Called(string, time.Duration, codes.Code) {}
func (unobserved) Panicked(string)                          {}

// An agent that only reads had to be given the CRI socket, with which it is root on the node.
func TestAReaderCanChangeNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "read.sock")
	s := &sockets{log: &asynclog.Log{Logger: slog.New(slog.DiscardHandler)}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- serveReaders(ctx, s, config.API{ReadSocket: path, ReadGroup: "1234"}, &nodeapi.Node{Exact: true, Ops: &ops.List{}}, slog.New(slog.DiscardHandler), unobserved{})
	}()
	c, err := client.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for {
		v, err := c.Node.Version(t.Context(), &berthv1.VersionRequest{})
		if err == nil {
			if !v.GetExact() {
				t.Errorf("got %v", v)
			}
			break
		}
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(time.Millisecond):
		}
	}
	st, err := os.Lstat(path)
	if err != nil || st.Mode() != os.ModeSocket|readersMode || st.Sys().(*syscall.Stat_t).Gid != 1234 {
		t.Errorf("%v %v", st, err)
	}
	for name, call := range map[string]func() error{
		"PruneImages": func() error {
			_, err := c.Control.PruneImages(t.Context(), &berthv1.PruneImagesRequest{})
			return err
		},
		"StopContainer": func() error {
			_, err := c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{})
			return err
		},
		"ListContainers": func() error {
			_, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
			return err
		},
		"ExecSync": func() error {
			_, err := c.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{})
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", name, err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestTheGroupOfReaders(t *testing.T) {
	for name, want := range map[string]int{"": 0, "root": 0, "77": 77} {
		if got, err := groupID(name); err != nil || got != want {
			t.Errorf("%q: %d %v", name, got, err)
		}
	}
	if _, err := groupID("no-such-group"); err == nil {
		t.Error("a group that is not there has a number")
	}
}
