// SPDX-License-Identifier: Apache-2.0

package aside

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	shimapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
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
	_, stop := serveOnceLogged(t, socket, fifo)
	got := reply{}
	for range 50 { // on a slow machine once may not be enough; without a reader, nothing is
		if got = ask(t.Context(), bundle, "c", startTimeout); got.answer == answered {
			break
		}
	}
	if got.answer != answered {
		t.Fatal("it does not answer")
	}
	stop()
}

// PROPERTIES 17: berth was killed while it started the shim of a pod again, which had died before.
// Containerd removed the bundle, and with it the log for whose reader the shim waited. The tasks of
// the shim before, with the same socket, counted as tasks of a shim that hangs, and were never
// released.
func TestAShimThatWasBeingStartedAgainAnswers(t *testing.T) {
	state := t.TempDir()
	pod := filepath.Join(state, sandboxPart, connection.Namespace, "pod")
	task := filepath.Join(state, taskPart, connection.Namespace, "task")
	fifo, socket := filepath.Join(pod, "log"), filepath.Join(state, "s")
	err := errors.Join(os.MkdirAll(pod, 0o700), unix.Mkfifo(fifo, 0o700), os.MkdirAll(task, 0o700),
		os.WriteFile(task+"/bootstrap.json", []byte(`{"version":3,"protocol":"ttrpc","address":"unix://`+socket+`"}`), 0o600),
		os.WriteFile(task+"/sandbox", []byte("pod"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	logged, stop := serveOnceLogged(t, socket, fifo)
	a, err := Hide(t.Context(), state)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-logged:
	case <-time.After(10 * time.Second):
		t.Fatal("nobody reads the shim's log")
	}
	if err := os.RemoveAll(pod); err != nil { // as containerd does
		t.Fatal(err)
	}
	h := a.get("task")
	if h == nil {
		t.Fatal("the task is not set aside")
	}
	got := reply{}
	for range 50 {
		if got = ask(t.Context(), h.path(), h.ID, startTimeout); got.answer == answered {
			break
		}
	}
	if got.answer != answered {
		t.Fatal("its shim does not answer")
	}
	stop()
}

// serveOnceLogged serves a socket as a shim does: it listens at once, and answers once its log is
// open, which waits for a reader; logged is closed then. The caller calls stop when it has
// answered.
func serveOnceLogged(t *testing.T, socket, fifo string) (logged <-chan struct{}, stop func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	shimapi.RegisterTTRPCTaskService(server, connects{})
	opened := make(chan struct{})
	served := make(chan error, 1)
	go func() {
		log, err := os.OpenFile(fifo, os.O_WRONLY, 0) // waits for a reader
		if err != nil {
			served <- err
			return
		}
		defer log.Close()
		close(opened)
		served <- server.Serve(t.Context(), l)
	}()
	return opened, func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil && err != ttrpc.ErrServerClosed { //nolint:errorlint // as it is returned
			t.Error(err)
		}
	}
}
