// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	api "berth/api/client"
	"berth/test/node"
	"berth/test/testimage"
)

// kind is how a container ends.
type kind int

const (
	ends0  kind = iota // at once, or after a moment
	talks              // after many lines of output
	eats               // by the OOM killer
	stops              // when it is asked to, after an update and an exec
	killed             // by StopContainer
	goes               // by its removal
	kinds
)

func (k kind) String() string {
	return [...]string{"by themselves", "after output", "by the OOM killer", "when asked", "killed", "with their removal"}[k]
}

// number is how a worker marks what is its own. A container's is also the name of the files to which
// it writes when it begins and when it ends.
func (s *soak) number() int { return int(s.numbers.Add(1)) }

// pods makes pods with containers in them, sees each end, and removes them, until stop is closed.
func (s *soak) pods(stop <-chan struct{}, rnd *rand.Rand) {
	c := s.client()
	defer c.close()
	for {
		select {
		case <-stop:
			return
		default:
		}
		cfg := s.n.PodConfig()
		if rnd.IntN(3) == 0 { // a pause process
			cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		}
		if rnd.IntN(3) == 0 {
			cfg.PortMappings = []*runtimeapi.PortMapping{{HostPort: int32(20000 + s.number()%10000), ContainerPort: 80}}
		}
		pod := c.run(cfg)
		for range 1 + rnd.IntN(3) {
			c.container(pod, cfg, kind(rnd.IntN(int(kinds))), rnd)
		}
		if rnd.IntN(2) == 0 {
			c.do("StopPodSandbox", func(ctx context.Context, on *api.Client) error {
				_, err := on.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
				return err
			})
		}
		c.remove(pod)
	}
}

// run makes a pod. One whose ID was lost with an answer is found by its name.
func (c *client) run(cfg *runtimeapi.PodSandboxConfig) (pod string) {
	c.try("RunPodSandbox", func(ctx context.Context, on *api.Client) (bool, error) {
		resp, err := on.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
		pod = resp.GetPodSandboxId()
		if status.Code(err) != codes.AlreadyExists {
			return false, err
		}
		found, listErr := on.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
			LabelSelector: cfg.GetLabels(),
			State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
		}})
		if listErr != nil || len(found.GetItems()) != 1 {
			return false, err
		}
		pod = found.GetItems()[0].GetId()
		return true, err
	})
	c.s.note(func(f *figures) { f.pods++ })
	return pod
}

func (c *client) remove(pod string) {
	c.do("RemovePodSandbox", func(ctx context.Context, on *api.Client) error {
		_, err := on.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
		return err
	})
}

// create makes a container. One whose ID was lost with an answer is found by its name. One whose
// creation was cut off is EXITED until it is undone, and its name is free then.
func (c *client) create(pod string, sandbox *runtimeapi.PodSandboxConfig, cfg *runtimeapi.ContainerConfig) (id string) {
	c.try("CreateContainer", func(ctx context.Context, on *api.Client) (bool, error) {
		resp, err := on.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, SandboxConfig: sandbox, Config: cfg})
		id = resp.GetContainerId()
		if status.Code(err) != codes.AlreadyExists {
			return false, err
		}
		found, listErr := on.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			LabelSelector: cfg.GetLabels(),
			State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_CREATED},
		}})
		if listErr != nil || len(found.GetContainers()) != 1 {
			return false, err
		}
		id = found.GetContainers()[0].GetId()
		return true, err
	})
	return id
}

// start starts a container whose start may be cut off, until it has been started.
func (c *client) start(id string) {
	c.try("StartContainer", func(ctx context.Context, on *api.Client) (bool, error) {
		_, err := on.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
		if err == nil {
			return true, nil
		}
		st := c.status(id)
		if st == nil {
			panic(broken{fmt.Sprintf("container %s was made, and is gone: %v", id, err)})
		}
		return st.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED, err
	})
	c.s.note(func(f *figures) { f.containers++ })
}

// container makes a container, starts it, sees it end in its way, and compares what berth says of it
// with what is known.
func (c *client) container(pod string, sandbox *runtimeapi.PodSandboxConfig, how kind, rnd *rand.Rand) {
	number := c.s.number()
	name := fmt.Sprint("c", number)
	code, reason := 1+rnd.Int32N(99), "Error"
	end := fmt.Sprintf(": >/marks/%s.ended; exit %d", name, code)
	var script, text string
	cfg := node.ContainerConfig(name, "sh", "-c", "")
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid()
	cfg.Mounts = []*runtimeapi.Mount{{HostPath: c.s.marks, ContainerPath: "/marks"}}
	switch how {
	case ends0:
		script = fmt.Sprintf("sleep 0.%d; %s", rnd.IntN(6), end)
	case talks:
		lines := 200 + rnd.IntN(3000)
		script = fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i of %s; i=$((i+1)); [ $((i %% 500)) != 0 ] || sleep 0.1; done; printf unfinished; %s", lines, name, end)
		var b strings.Builder
		for i := range lines {
			fmt.Fprintf(&b, "line %d of %s\n", i, name)
		}
		text = b.String() + "unfinished"
	case eats:
		script, code, reason = "exec tail /dev/zero", 137, "OOMKilled"
		cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
	case stops:
		script, text = fmt.Sprintf("trap '%s' TERM; echo ready; sleep 1000 & wait", end), "ready\n"
	case killed, goes:
		script, code, text = "echo ready; exec sleep 1000", 137, "ready\n"
	default:
		panic(how)
	}
	cfg.Command[2] = fmt.Sprintf("echo begun >>/marks/%s.begun; %s", name, script)
	id := c.create(pod, sandbox, cfg)
	defer c.explain(id, name, sandbox)
	c.start(id)
	if how >= stops {
		c.until("container "+name+" is ready", func() bool {
			return string(c.log(sandbox, name)) == "ready\n" || c.status(id).GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
		})
	}
	if c.cutOff(id, name) {
		return
	}
	if how == stops && rnd.IntN(2) == 0 {
		c.update(id, 100+rnd.Int64N(1000))
	}
	if how == stops && rnd.IntN(2) == 0 {
		c.exec(id, name, rnd.Int32N(100))
	}
	switch how {
	case stops:
		c.stop(id, 100)
	case killed:
		c.stop(id, 0)
	case goes:
		c.do("RemoveContainer", func(ctx context.Context, on *api.Client) error {
			_, err := on.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
			return err
		})
		if st := c.status(id); st != nil {
			c.wrong("container %s was removed, and is %v", id, st)
		}
	default:
	}
	c.s.note(func(f *figures) { f.ends[how]++ })
	c.begunOnce(name)
	if how == goes {
		return
	}

	var st *runtimeapi.ContainerStatus
	c.until("container "+name+" is EXITED", func() bool {
		st = c.status(id)
		return st == nil || st.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	seen := time.Now()
	if st == nil {
		c.wrong("container %s, which nobody removed, is gone", id)
		return
	}
	if c.cutOff(id, name) {
		return
	}
	if mark, err := os.Stat(filepath.Join(c.s.marks, name+".ended")); err == nil {
		c.s.visible(mark.ModTime(), seen)
	}
	if st.GetExitCode() != code || st.GetReason() != reason {
		c.wrong("container %s (%s) ended with %d %s, want %d %s: %v\n%s", name, how, st.GetExitCode(), st.GetReason(), code, reason, st, c.timeline(id))
	}
	if st.GetFinishedAt() < st.GetStartedAt() || st.GetStartedAt() < st.GetCreatedAt() {
		c.wrong("container %s: created %d, started %d, finished %d", name, st.GetCreatedAt(), st.GetStartedAt(), st.GetFinishedAt())
	}
	c.until("the end of container "+name+" is published", func() bool {
		published, ok := c.s.events.of(id)
		if ok && published != code {
			c.wrong("the end of container %s was published with %d, want %d", name, published, code)
		}
		return ok
	})
	if how == talks || text != "" {
		var log []byte
		c.until("the log of container "+name+" is complete", func() bool { log = c.log(sandbox, name); return len(log) >= len(text) })
		if string(log) != text {
			raw, _ := os.ReadFile(filepath.Join(sandbox.GetLogDirectory(), name+".log"))
			c.wrong("the log of container %s has %d bytes, %d were written; %s; the log:\n%s\n%s", name, len(log), len(text), differ(string(log), text), raw, c.timeline(id))
		}
		c.s.note(func(f *figures) { f.logged += len(log) })
	}
}

// differ says where a log begins not to be what was written.
func differ(log, text string) string {
	at := 0
	for at < min(len(log), len(text)) && log[at] == text[at] {
		at++
	}
	return fmt.Sprintf("after %d bytes, %q, comes %q", at, log[max(0, at-20):at], log[at:min(len(log), at+60)])
}

// cutOff reports, and counts, that a container is EXITED although its program never began. Either a
// kill ended the OCI runtime while it started the program, and its init ended with 255, which nobody
// can distinguish from a program that ends so at once. Or a containerd beside berth was killed in the
// start, which failed.
func (c *client) cutOff(id, name string) bool {
	st := c.status(id)
	switch {
	case st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED:
		return false
	case st.GetExitCode() == 255 && st.GetReason() == "Error":
	case st.GetExitCode() == 128 && st.GetReason() == "StartError" && c.s.external:
	default:
		return false
	}
	if _, err := os.Stat(filepath.Join(c.s.marks, name+".begun")); err == nil {
		return false
	}
	c.s.note(func(f *figures) { f.cutOff++ })
	return true
}

// explain adds to what a worker is broken by what is known of a container.
func (c *client) explain(id, name string, sandbox *runtimeapi.PodSandboxConfig) {
	p := recover()
	if p == nil {
		return
	}
	if b, ok := p.(broken); ok {
		begun, _ := os.ReadFile(filepath.Join(c.s.marks, name+".begun"))
		dir := filepath.Join(c.s.n.Dir, "run", "io", id)
		var files []string
		found, _ := os.ReadDir(dir)
		for _, f := range found {
			size := int64(-1)
			if st, err := f.Info(); err == nil {
				size = st.Size()
			}
			files = append(files, fmt.Sprintf("%s (%d bytes)", f.Name(), size))
		}
		p = broken{fmt.Sprintf("%s: container %s: begun %q, log %q, in %s: %q\n%s", b.why, id, begun, c.log(sandbox, name), dir, files, c.timeline(id))}
	}
	panic(p)
}

// begunOnce fails the test if the program of a container was started more than once.
func (c *client) begunOnce(name string) {
	if b, _ := os.ReadFile(filepath.Join(c.s.marks, name+".begun")); bytes.Count(b, []byte("\n")) > 1 {
		c.wrong("container %s was started more than once: %q", name, b)
	}
}

func (c *client) stop(id string, seconds int64) {
	c.do("StopContainer", func(ctx context.Context, on *api.Client) error {
		_, err := on.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
		return err
	})
}

// update changes the shares of a container, which its status has then.
func (c *client) update(id string, shares int64) {
	c.do("UpdateContainerResources", func(ctx context.Context, on *api.Client) error {
		_, err := on.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpuShares: shares}})
		return err
	})
	if got := c.status(id).GetResources().GetLinux().GetCpuShares(); got != shares {
		c.wrong("container %s has %d CPU shares after an update to %d\n%s", id, got, shares, c.timeline(id))
	}
	c.s.note(func(f *figures) { f.updates++ })
}

// exec executes a command in a container, which prints its name.
func (c *client) exec(id, name string, code int32) {
	var resp *runtimeapi.ExecSyncResponse
	c.do("ExecSync", func(ctx context.Context, on *api.Client) (err error) {
		resp, err = on.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", fmt.Sprintf("echo %s; exit %d", name, code)}, Timeout: 20})
		return err
	})
	if resp.GetExitCode() != code || string(resp.GetStdout()) != name+"\n" {
		c.wrong("an exec in container %s returned %d and %q, want %d", name, resp.GetExitCode(), resp.GetStdout(), code)
	}
	c.s.note(func(f *figures) { f.execs++ })
}

// log is what a container wrote to its standard output, without the stamps of the log format. To the
// standard error the OCI runtime's own init may have written, of a start that was cut off.
func (c *client) log(sandbox *runtimeapi.PodSandboxConfig, name string) (out []byte) {
	b, _ := os.ReadFile(filepath.Join(sandbox.GetLogDirectory(), name+".log"))
	for line := range bytes.Lines(b) {
		f := bytes.SplitN(line, []byte(" "), 4)
		if len(f) != 4 || !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		if string(f[1]) != "stdout" {
			continue
		}
		text := f[3]
		if string(f[2]) == "P" {
			text = bytes.TrimSuffix(text, []byte("\n"))
		}
		out = append(out, text...)
	}
	return out
}

// images imports, pulls and removes images until stop is closed.
func (s *soak) images(stop <-chan struct{}, rnd *rand.Rand) {
	c := s.client()
	defer c.close()
	for {
		select {
		case <-stop:
			return
		default:
		}
		var ref string
		if rnd.IntN(2) == 0 {
			ref = fmt.Sprintf("localhost/imported:%d", s.number())
			path := filepath.Join(s.n.Dir, "imported.tar")
			if err := testimage.WriteOCIArchive(path, ref, s.image(rnd)); err != nil {
				panic(broken{err.Error()})
			}
			c.do("Import", func(ctx context.Context, on *api.Client) error {
				_, err := on.Control.ImportImages(ctx, &berthv1.ImportImagesRequest{Path: path})
				return err
			})
			s.note(func(f *figures) { f.imports++ })
		} else {
			ref = s.registry.Push(fmt.Sprintf("team/pulled:%d", s.number()), s.image(rnd))
			c.do("PullImage", func(ctx context.Context, on *api.Client) error {
				_, err := on.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
				return err
			})
			s.note(func(f *figures) { f.pulls++ })
		}
		there := func() (there bool) {
			c.do("ImageStatus", func(ctx context.Context, on *api.Client) error {
				resp, err := on.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
				there = resp.GetImage() != nil
				return err
			})
			return there
		}
		if !there() {
			c.wrong("image %s is not there", ref)
		}
		c.do("RemoveImage", func(ctx context.Context, on *api.Client) error {
			_, err := on.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
			return err
		})
		if there() {
			c.wrong("image %s was removed and is there", ref)
		}
	}
}

func (c *client) wrong(format string, args ...any) { c.s.wrong(fmt.Sprintf(format, args...)) }
