// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/engine/adopt"
	"berth/internal/heart/state"
	"berth/internal/host/logs"
	"berth/internal/host/podfiles"
)

// PROPERTIES 46: a container that writes without a pause is taken over and given back again and again.
// What berth took from its pipe between the last flush and the end of the reading was lost.
func TestAContainerThatWritesOnIsGivenBackWhole(t *testing.T) {
	dir := t.TempDir()
	task := adopt.Task{Stdout: filepath.Join(dir, "c1-stdout")}
	if err := unix.Mkfifo(task.Stdout, 0o600); err != nil {
		t.Fatal(err)
	}
	shim, err := os.OpenFile(task.Stdout, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if _, err := fmt.Fprintf(shim, "%0999d\n", i); err != nil {
				stopped <- err
				return
			}
		}
	}()
	out := newOutputs(&node{files: podfiles.New(filepath.Join(dir, "root"), filepath.Join(dir, "state"))})
	sb := &state.Sandbox{ID: "p1", Config: &runtimeapi.PodSandboxConfig{LogDirectory: filepath.Join(dir, "logs")}}
	ct := &state.Container{ID: "c1", PodID: "p1", LogPath: filepath.Join(dir, "logs", "c.log"), Config: &runtimeapi.ContainerConfig{LogPath: "c.log", Tty: true}}
	if err := os.Mkdir(sb.Config.GetLogDirectory(), 0o755); err != nil {
		t.Fatal(err)
	}
	giveBack := func() {
		t.Helper()
		err := logs.Adopt(out.of(sb, ct), pipesOf(&task), "")
		if err = errors.Join(err, out.flush(t.Context(), sb, ct, ""), logs.RemoveAll(out.node.files.IO(ct.ID))); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		giveBack()
	}
	close(stop)
	for ended := false; !ended; {
		select {
		case err := <-stopped:
			if err != nil {
				t.Fatal(err)
			}
			ended = true
		default:
		}
		giveBack() // it may wait for room in the pipe
	}
	_ = shim.Close()
	b, err := os.ReadFile(ct.LogPath)
	if err != nil {
		t.Fatal(err)
	}
	// Where it was given back within a line, a part of that is a line of its own.
	var text strings.Builder
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		text.WriteString(f[len(f)-1])
	}
	for i := range text.Len() / 999 {
		if got, want := text.String()[i*999:(i+1)*999], fmt.Sprintf("%0999d", i); got != want {
			t.Fatalf("in the place of %d is %s", i, strings.TrimLeft(got, "0"))
		}
	}
}
