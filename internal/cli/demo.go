// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/config"
	"berth/internal/cri"
	"berth/internal/testimage"
)

const demoImage = "localhost/berth-demo:latest"

// demoPod has containers that end in every way.
const demoPod = `
apiVersion: v1
kind: Pod
metadata: {name: demo, namespace: default}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 2
  volumes: [{name: shared, emptyDir: {}}]
  initContainers:
  - {name: prepare, image: IMAGE, command: [sh, -c, "echo hello from init > /shared/note"], volumeMounts: [{name: shared, mountPath: /shared}]}
  containers:
  - {name: ends-well, image: IMAGE, command: [sh, -c, "cat /shared/note; sleep 1"], volumeMounts: [{name: shared, mountPath: /shared}]}
  - {name: ends-with-42, image: IMAGE, command: [sh, -c, "echo about to fail >&2; sleep 1; exit 42"]}
  - {name: eats-memory, image: IMAGE, command: [sh, -c, "echo eating; sleep 1; exec tail /dev/zero"], resources: {limits: {memory: 24Mi}}}
  - {name: is-stopped, image: IMAGE, command: [sh, -c, "trap 'echo stopping; exit 0' TERM; echo serving; while :; do sleep 0.05; done"]}
`

func demoCommand(serve Serve) *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use: "demo", Short: "Run a real pod in a berth of its own, and show how its containers end", Args: cobra.NoArgs,
		Long: "Starts a berth with containerd inside it in a temporary directory, makes a small image, plays a pod whose containers end\ndifferently, shows their states, codes, reasons and logs and how long after the end of each process its exit was\nvisible, and removes everything. Needs root.",
	}
	cmd.Flags().BoolVarP(&keep, "verbose", "v", false, "also show berth's own log")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if os.Geteuid() != 0 {
			return errors.New("demo needs root: it runs real containers")
		}
		return demo(cmd.Context(), serve, cmd.OutOrStdout(), keep)
	}
	return cmd
}

func demo(ctx context.Context, serve Serve, out io.Writer, verbose bool) (err error) {
	dir, err := os.MkdirTemp("", "bd") // short: sockets live below it
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cfg := config.Default()
	cfg.Root, cfg.State, cfg.Address = filepath.Join(dir, "lib"), filepath.Join(dir, "run"), filepath.Join(dir, "berth.sock")
	cfg.Network.ConfDir, cfg.Network.NetNSDir = filepath.Join(dir, "net.d"), filepath.Join(dir, "netns")
	cfg.Network.DefaultBridge, cfg.Network.DefaultSubnet = "berth-demo0", "10.89.77.0/24"
	logFile, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer logFile.Close()
	var logTo io.Writer = logFile
	if verbose {
		logTo = io.MultiWriter(logFile, os.Stderr)
	}
	ctx, cancel := context.WithCancel(ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	began := time.Now()
	go func() { ended <- serve(ctx, cfg, func() { close(ready) }, logger(cfg, logTo)) }()
	defer func() {
		cancel()
		if serr := <-ended; serr != nil {
			err = errors.Join(err, serr)
		}
		if err == nil {
			fmt.Fprintln(out, "berth stopped cleanly")
		}
		removeBridge(cfg.Network.DefaultBridge)
	}()
	select {
	case <-ready:
	case serr := <-ended:
		ended <- nil
		return fmt.Errorf("berth did not start: %w", serr)
	}
	fmt.Fprintf(out, "berth serves CRI, containerd inside, ready in %s\n", time.Since(began).Round(time.Millisecond))
	c, err := cri.Dial(cfg.Address)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := demoPodLife(ctx, c, dir, out); err != nil {
		return err
	}
	return nil
}

func demoPodLife(ctx context.Context, c *cri.Client, dir string, out io.Writer) error {
	img, err := testimage.Busybox()
	if err != nil {
		return err
	}
	archive := filepath.Join(dir, "image.tar")
	if err := testimage.WriteOCIArchive(archive, demoImage, img); err != nil {
		return err
	}
	if _, err := c.Import(ctx, archive, ""); err != nil {
		return err
	}
	pod, err := ParsePod([]byte(strings.ReplaceAll(demoPod, "IMAGE", demoImage)))
	if err != nil {
		return err
	}
	plan, err := Translate(pod, PlayOptions{LogDir: filepath.Join(dir, "logs"), VolumeDir: filepath.Join(dir, "volumes"), UID: newUID()})
	if err != nil {
		return err
	}
	seen, err := watchExits(ctx, c)
	if err != nil {
		return err
	}
	began := time.Now()
	defer removeAll(c)
	played, err := Play(ctx, c, plan, out)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "pod with %d containers up in %s\n", len(played.Containers), time.Since(began).Round(time.Millisecond))
	for _, name := range []string{"ends-well", "ends-with-42", "eats-memory"} {
		if _, err := ended(ctx, c, played.Containers[name]); err != nil {
			return err
		}
	}
	if _, err := c.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: played.Containers["is-stopped"], Timeout: 5}); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%-14s %-8s %5s  %-10s %-22s  %s\n", "CONTAINER", "STATE", "CODE", "REASON", "VISIBLE AFTER ITS END", "LOG")
	want := map[string]string{"ends-well": "0 Completed", "ends-with-42": "42 Error", "eats-memory": "137 OOMKilled", "is-stopped": "0 Completed"}
	for _, name := range played.order {
		st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: played.Containers[name]})
		if err != nil {
			return err
		}
		s := st.GetStatus()
		lag := seen.at(s.GetId()).Sub(time.Unix(0, s.GetFinishedAt()))
		fmt.Fprintf(out, "%-14s %-8s %5d  %-10s %-22s  %s\n", name, word(s.GetState().String()), s.GetExitCode(), s.GetReason(), lag.Round(10*time.Microsecond), lastLine(s.GetLogPath()))
		if got := fmt.Sprintf("%d %s", s.GetExitCode(), s.GetReason()); got != want[name] {
			return fmt.Errorf("container %s ended with %s, not with %s", name, got, want[name])
		}
	}
	if _, err := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: played.PodID}); err != nil {
		return err
	}
	_, err = c.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: demoImage}})
	fmt.Fprintln(out, "\npod and image removed")
	return err
}

// removeAll leaves nothing behind, whatever went wrong.
func removeAll(c *cri.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	pods, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return
	}
	for _, p := range pods.GetItems() {
		_, _ = c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()})
	}
}

// exits remembers when the STOPPED event of each container arrived.
type exits struct {
	mu   sync.Mutex
	when map[string]time.Time
	more chan struct{}
}

func watchExits(ctx context.Context, c *cri.Client) (*exits, error) {
	stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return nil, err
	}
	e := &exits{when: map[string]time.Time{}, more: make(chan struct{}, 1)}
	go func() { // ends with ctx
		for {
			ev, err := stream.Recv()
			if err != nil {
				return
			}
			if ev.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
				e.mu.Lock()
				e.when[ev.GetContainerId()] = time.Now()
				e.mu.Unlock()
				select {
				case e.more <- struct{}{}:
				default:
				}
			}
		}
	}()
	return e, nil
}

// at waits for the event: it may come a moment after the status.
func (e *exits) at(id string) time.Time {
	for {
		e.mu.Lock()
		t, ok := e.when[id]
		e.mu.Unlock()
		if ok {
			return t
		}
		select {
		case <-e.more:
		case <-time.After(2 * time.Second):
			return time.Now()
		}
	}
}

// lastLine is the last line of a log, without its stamp.
func lastLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	f := strings.SplitN(lines[len(lines)-1], " ", 4)
	if len(f) < 4 {
		return ""
	}
	return f[3]
}
