// SPDX-License-Identifier: Apache-2.0

package aside

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	shimapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
)

type connects struct{ shimapi.TTRPCTaskService }

func (connects) Connect(context.Context, *shimapi.ConnectRequest) (*shimapi.ConnectResponse, error) {
	return &shimapi.ConnectResponse{}, nil
}

// PROPERTIES 17: a shim whose containerd is killed before it has opened the shim's log waits for
// another reader of its log. It was taken for one that hangs, never asked in a way that it could
// answer, and left for ever.
func TestAShimThatWaitsForAReaderOfItsLogAnswers(t *testing.T) {
	bundle := t.TempDir()
	fifo, socket := filepath.Join(bundle, "log"), filepath.Join(bundle, "s")
	if err := unix.Mkfifo(fifo, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "bootstrap.json"), []byte(`{"version":3,"protocol":"ttrpc","address":"unix://`+socket+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	shimapi.RegisterTTRPCTaskService(server, connects{})
	served := make(chan error, 1)
	go func() {
		log, err := os.OpenFile(fifo, os.O_WRONLY, 0) // waits for a reader
		if err != nil {
			served <- err
			return
		}
		defer log.Close()
		served <- server.Serve(t.Context(), l)
	}()
	got := silent
	for range 50 { // on a slow machine once may not be enough; without a reader, nothing is
		if got = ask(t.Context(), bundle, "c", startTimeout); got == answered {
			break
		}
	}
	if got != answered {
		t.Fatal("it does not answer")
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil && err != ttrpc.ErrServerClosed { //nolint:errorlint // as it is returned
		t.Error(err)
	}
}
