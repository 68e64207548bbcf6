// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
	"berth/internal/engine/adopt"
	"berth/internal/heart/state"
	"berth/internal/host/pidfd"
)

// PROPERTIES 46: a container that ends as containerd is stopped has its code, also where the plug-in has
// deleted its task and was stopped before it wrote the code down. The kernel and the shim are
// witnesses, and each is enough.
func TestACodeThatThePlugInDidNotWriteDownIsKnown(t *testing.T) {
	for _, witness := range []exit.Origin{exit.Kernel, exit.Task} {
		t.Run(string(witness), func(t *testing.T) {
			f, h := startFake(t, "here"), newHost(t)
			f.pod("p1", "c1")
			deleted := filepath.Join(f.dir, "deleted-c1")
			program := exec.CommandContext(t.Context(), "/bin/sh", "-c", "until [ -e "+f.off()+" ]; do sleep 0.01; done; exit 51")
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			reaped := make(chan struct{})
			go func() {
				defer close(reaped)
				_ = program.Wait()
				if err := os.WriteFile(deleted, nil, 0o600); err != nil {
					t.Error(err)
				}
			}()
			if witness == exit.Kernel {
				w, err := pidfd.New(nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				stopped, stop := context.WithCancel(t.Context())
				stop()
				_ = w.Run(stopped, clock.New(nil).Now, nil) // closes it
				if !w.Exact() {
					t.Skip("this kernel does not say how a process has ended that somebody else has reaped")
				}
			}
			f.mu.Lock()
			f.tasks["c1"].Pid = uint32(program.Process.Pid)
			if witness == exit.Task {
				f.waits = map[string]func(context.Context) (*tasks.WaitResponse, error){
					"c1": func(context.Context) (*tasks.WaitResponse, error) {
						<-reaped
						return &tasks.WaitResponse{ExitStatus: 51, ExitedAt: timestamppb.New(time.Unix(3000, 0))}, nil
					},
				}
			}
			f.mu.Unlock()
			h.expect(f, adopt.Request{Switch: f.turnOff() + "; until [ -e " + deleted + " ]; do sleep 0.01; done"})
			recs, err := openRecords(h.cfg.Root, adopt.Request{})
			if err != nil {
				t.Fatal(err)
			}
			defer recs.close()
			r, _ := recs.of("p1")
			if len(r.Containers) != 1 {
				t.Fatalf("on record are %v", r.Containers)
			}
			st := r.Containers[0].Status
			if st.Phase != state.Exited || st.Exit.ExitCode() != 51 || st.Exit.Reason() != exit.ReasonError || st.Exit.Origin != witness || st.Exit.At.IsZero() {
				t.Errorf("it is %s: %s, %+v", st.Phase, st.Exit, st.Exit)
			}
		})
	}
}
