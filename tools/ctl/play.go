// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/tools/manifest"
)

// undoTimeout bounds the removal of a pod that could not be played to its end.
const undoTimeout = 30 * time.Second

func playCommand(svc *service) *cobra.Command {
	var o manifest.Options
	var wait, watch, rm, keep bool
	cmd := &cobra.Command{
		Use:   "play POD.yaml",
		Short: "Run a pod from a Kubernetes manifest",
		Long: "Run a v1 Pod. Init containers run one after the other, then the containers are started. With --watch they are\n" +
			"probed, and restarted as restartPolicy says, for as long as this command runs; without, they are started once.\n" +
			"An image that is the absolute path of a checkpoint's archive is restored, where CRIU is installed.\n" +
			"A field that cannot be honoured is an error that names it. If a step fails, everything that was made is removed;\n" +
			"the logs stay. With --wait or --watch, the exit code is 127 if the command of a container is not there, 126 if it\n" +
			"cannot be executed, and 125 if berth itself failed.",
		Args: cobra.ExactArgs(1),
	}
	o.LogDir = usersDir("logs", manifest.DefaultLogDir)
	cmd.Flags().Var((*absolutePath)(&o.LogDir), "log-dir", "directory for the logs of pods")
	volumeDirFlag(cmd, &o.VolumeDir)
	cmd.Flags().BoolVar(&o.IgnoreUnsupported, "ignore-unsupported", false, "leave out what is not supported, and say so")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until all containers have ended, and exit with the first code that is not 0")
	cmd.Flags().BoolVar(&watch, "watch", false, "like --wait, and probe and restart the containers meanwhile")
	cmd.Flags().BoolVar(&rm, "rm", false, "with --wait or --watch: remove the pod afterwards")
	cmd.Flags().BoolVar(&keep, "keep", false, "if a step fails, stop the pod instead of removing it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		b, err := readFile(args[0])
		if err != nil {
			return err
		}
		pod, err := manifest.Parse(b)
		if err != nil {
			return err
		}
		o.UID, o.HostIP, o.HostDNS = uuid.NewUUID(), manifest.HostIP(), manifest.HostDNS()
		o.Watched = watch
		plan, err := manifest.Translate(pod, o)
		if err != nil {
			return err
		}
		errOut := cmd.ErrOrStderr()
		for _, f := range plan.Ignored {
			fmt.Fprintln(errOut, "left out:", f)
		}
		if p := pod.Spec.RestartPolicy; !watch && p != "" && p != corev1.RestartPolicyNever {
			fmt.Fprintf(errOut, "note: the containers are started once; restartPolicy %s needs --watch\n", p)
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			if err := playedBefore(ctx, c, plan); err != nil {
				return err
			}
			if manifest.HasOwnUsers(pod) {
				if o.FirstID, err = freeIDs(ctx, c); err != nil {
					return err
				}
				if plan, err = manifest.Translate(pod, o); err != nil {
					return err
				}
			}
			p := &player{
				client:    c,
				plan:      plan,
				volumeDir: o.VolumeDir,
				out:       &lockedWriter{w: cmd.OutOrStdout()},
				ip:        plan.HostIP,
				watched:   watch,
			}
			if err := p.play(ctx); err != nil {
				return errors.Join(client.Explain(err), p.undo(ctx, keep))
			}
			var code int32
			switch {
			case watch:
				code, err = p.watch(ctx)
			case wait:
				code, err = p.wait(ctx)
			default:
				return nil
			}
			switch {
			case rm:
				err = errors.Join(err, p.remove(ctx))
			case ctx.Err() != nil && watch:
				return exitError{exitInterrupted, fmt.Errorf("interrupted: pod %s goes on, and nobody probes or restarts its containers any more; `berth rm -f %s` ends and removes it",
					plan.Name, short(p.pod))}
			case ctx.Err() != nil:
				return exitError{exitInterrupted, fmt.Errorf("interrupted: pod %s goes on; `berth rm -f %s` ends and removes it", plan.Name, short(p.pod))}
			}
			if err == nil && code != 0 {
				return exitError{int(code), fmt.Errorf("a container of pod %s ended with %d", plan.Name, code)}
			}
			return err
		})
	}
	passesCodeOn(cmd, func() bool { return wait || watch })
	return cmd
}

// playedBefore returns an error if a pod of the same name runs: the second one would have another
// UID, so that CRI takes it for another pod.
func playedBefore(ctx context.Context, c *client.Client, plan *manifest.Plan) error {
	m := plan.Sandbox.GetMetadata()
	pods, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	for _, p := range pods.GetItems() {
		have := p.GetMetadata()
		if have.GetNamespace() == m.GetNamespace() && have.GetName() == m.GetName() && p.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			return fmt.Errorf("pod %s/%s runs already, as %s, since %s; `berth rm -f %s` removes it, or give this one another name",
				m.GetNamespace(), m.GetName(), short(p.GetId()), age(p.GetCreatedAt()), short(p.GetId()))
		}
	}
	return err
}

// freeIDs returns the first of the IDs of the host for a pod with a user namespace: a range that no
// pod of the node has, chosen at random so that two pods that are played at once get two.
func freeIDs(ctx context.Context, c *client.Client) (uint32, error) {
	pods, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return 0, err
	}
	taken := map[uint32]bool{}
	for _, p := range pods.GetItems() {
		st, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.GetId()})
		if client.IsNotFound(err) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return 0, err
		}
		for _, m := range st.GetStatus().GetLinux().GetNamespaces().GetOptions().GetUsernsOptions().GetUids() {
			for at := m.GetHostId() / manifest.IDs; at <= (m.GetHostId()+max(m.GetLength(), 1)-1)/manifest.IDs; at++ {
				taken[at] = true
			}
		}
	}
	// The first range is the host's own; numbers from half of all on are negative to some programs.
	const ranges = 1<<31/manifest.IDs - 1
	for range 4 * ranges {
		if at := 1 + mathrand.Uint32N(ranges); !taken[at] {
			return at * manifest.IDs, nil
		}
	}
	return 0, errors.New("each range of IDs that a pod with hostUsers: false could have is another pod's; remove some of them")
}

func readFile(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(name)
}

type player struct {
	client    *client.Client
	plan      *manifest.Plan
	volumeDir string
	out       io.Writer
	watched   bool        // restartPolicy holds
	away      atomic.Bool // berth does not answer, and that was said

	volumes    bool   // whether this play made the directory of the pod's volumes
	pod        string // ID, "" until the sandbox is made
	ip         string // of the pod
	containers []played
}

// played is a container that was started.
type played struct{ name, id string }

// volumeTimeout is how long the file system of a volume may take to answer.
const volumeTimeout = 10 * time.Second

// prepare makes a volume. The file system of its path may hang, and the system call cannot be
// interrupted: then it goes on, and the error reports that.
func prepare(ctx context.Context, v manifest.Volume) error {
	ctx, cancel := context.WithTimeout(ctx, volumeTimeout)
	defer cancel()
	made := make(chan error, 1)
	go func() { made <- v.Prepare() }()
	select {
	case err := <-made:
		return err
	case <-ctx.Done():
		return fmt.Errorf("volume %s: the file system of %s does not answer; see whether its server, or its FUSE daemon, is there: %w", v.Name, v.Path, ctx.Err())
	}
}

// play makes the volumes and the sandbox, runs the init containers one after the other and starts
// the containers. If it fails, undo removes everything that was made.
func (p *player) play(ctx context.Context) error {
	all := slices.Concat(p.plan.Init, p.plan.Containers)
	for _, pc := range all { // before anything is made
		if err := needImage(ctx, p.client, p.plan.Sandbox, pc); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(filepath.Join(p.volumeDir, p.uid())); errors.Is(err, fs.ErrNotExist) {
		p.volumes = true // otherwise the directory is that of another pod with the same UID
	}
	for _, v := range p.plan.Volumes {
		if err := prepare(ctx, v); err != nil {
			return err
		}
	}
	resp, err := p.client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: p.plan.Sandbox, RuntimeHandler: p.plan.Handler})
	if err != nil {
		return err
	}
	p.pod = resp.GetPodSandboxId()
	fmt.Fprintf(p.out, "pod %s  %s\n", short(p.pod), p.plan.Name)
	st, err := p.client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.pod})
	if err != nil {
		return err
	}
	if ip := st.GetStatus().GetNetwork().GetIp(); ip != "" {
		p.ip = ip
	}
	for _, init := range p.plan.Init {
		if err := p.initialize(ctx, init); err != nil {
			return err
		}
	}
	for _, pc := range p.plan.Containers {
		ct, err := p.start(ctx, pc, 0)
		if err != nil {
			return err
		}
		p.containers = append(p.containers, ct)
	}
	return nil
}

// initialize runs an init container to its end. One that fails is run again if the pod is watched
// and its restartPolicy is not Never.
func (p *player) initialize(ctx context.Context, pc manifest.Container) error {
	var wait restartWait
	for attempt := uint32(0); ; attempt++ {
		began := time.Now()
		ct, err := p.start(ctx, pc, attempt)
		if err != nil {
			return err
		}
		st, err := p.ended(ctx, ct.id)
		if err != nil || st.GetExitCode() == 0 {
			return err
		}
		err = fmt.Errorf("init container %s ended with %d (%s); its log is %s", ct.name, st.GetExitCode(), st.GetReason(), st.GetLogPath())
		if !p.watched || !p.restarts(true) {
			return err
		}
		d := wait.after(time.Since(began))
		p.say("%v; it is run again in %s\n", err, d)
		if !pause(ctx, d) {
			return ctx.Err()
		}
		if _, err := p.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: ct.id}); err != nil {
			return err
		}
	}
}

func (p *player) say(format string, args ...any) { fmt.Fprintf(p.out, format, args...) }

func (p *player) start(ctx context.Context, pc manifest.Container, attempt uint32) (played, error) {
	cfg := pc.Attempt(p.ip, attempt)
	name := cfg.GetMetadata().GetName()
	resp, err := p.client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: p.pod, Config: cfg, SandboxConfig: p.plan.Sandbox})
	if err != nil {
		return played{}, fmt.Errorf("create container %s: %w", name, err)
	}
	id := resp.GetContainerId()
	if err := p.startCreated(ctx, id); err != nil {
		return played{}, fmt.Errorf("start container %s: %w", name, err)
	}
	fmt.Fprintf(p.out, "container %s  %s\n", short(id), name)
	return played{name, id}, nil
}

// startCreated starts a container. If berth was restarted meanwhile, its status tells whether that
// took effect.
func (p *player) startCreated(ctx context.Context, id string) error {
	for {
		_, err := p.client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
		if !client.IsUnavailable(err) {
			return err
		}
		st, err := p.status(ctx, id)
		if err != nil || st.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED {
			return err
		}
		if !pause(ctx, awayEvery) {
			return ctx.Err()
		}
	}
}

// undo removes everything that a failed play made, or only stops it if it is to be kept, and
// reports the outcome. The caller's context may have ended.
func (p *player) undo(ctx context.Context, keep bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	switch {
	case p.pod == "" && p.volumes:
		return removeVolumes(p.volumeDir, p.uid())
	case p.pod == "":
		return nil
	case keep:
		if _, err := p.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.pod}); err != nil {
			return fmt.Errorf("pod %s is left, and could not be stopped: %w", short(p.pod), err)
		}
		fmt.Fprintf(p.out, "pod %s is left, stopped; `berth rm %s` removes it\n", short(p.pod), short(p.pod))
		return nil
	}
	if err := p.remove(ctx); err != nil {
		return fmt.Errorf("pod %s is left; `berth rm -f %s` removes it: %w", short(p.pod), short(p.pod), err)
	}
	fmt.Fprintf(p.out, "pod %s is removed; its logs are in %s\n", short(p.pod), p.plan.Sandbox.GetLogDirectory())
	return nil
}

// remove removes the pod with its containers and emptyDir volumes.
func (p *player) remove(ctx context.Context) error {
	_, err := p.client.RemovePodSandbox(context.WithoutCancel(ctx), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.pod})
	if err != nil {
		return err
	}
	return removeVolumes(p.volumeDir, p.uid())
}

func (p *player) uid() string { return p.plan.Sandbox.GetMetadata().GetUid() }

// needImage pulls an image for a pod if it is not on the node, or is to be pulled always, and
// checks its user. The archive of a checkpoint is left to the service.
func needImage(ctx context.Context, c *client.Client, pod *runtimeapi.PodSandboxConfig, pc manifest.Container) error {
	spec := &runtimeapi.ImageSpec{Image: pc.Config.GetImage().GetImage()}
	name := pc.Config.GetMetadata().GetName()
	if filepath.IsAbs(spec.GetImage()) { // the archive of a checkpoint, which names the image
		if pc.NonRoot {
			return fmt.Errorf("container %s: runAsNonRoot is set, but the checkpoint %s has its own user; set runAsUser to the same", name, spec.GetImage())
		}
		return nil
	}
	st, err := c.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil {
		return err
	}
	switch {
	case pc.PullPolicy == string(corev1.PullNever) && st.GetImage() == nil:
		return fmt.Errorf("container %s: image %s is not on the node, and imagePullPolicy is Never; use `berth import` or `berth pull`", name, spec.GetImage())
	case pc.PullPolicy == string(corev1.PullAlways), st.GetImage() == nil:
		over := pullProgress(ctx, c, spec.GetImage())
		pulled, err := c.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec, SandboxConfig: pod})
		over()
		if err != nil {
			return fmt.Errorf("container %s: pull image %s: %w", name, spec.GetImage(), err)
		}
		exact := &runtimeapi.ImageSpec{Image: pulled.GetImageRef()}
		if st, err = c.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: exact}); err != nil {
			return err
		}
	}
	if st.GetImage() == nil {
		return fmt.Errorf("container %s: image %s was removed since it was pulled", name, spec.GetImage())
	}
	// Run the image that was inspected, as the kubelet does, because the name may move meanwhile.
	pc.Config.Image = &runtimeapi.ImageSpec{Image: st.GetImage().GetId(), UserSpecifiedImage: spec.GetImage()}
	if uid := st.GetImage().GetUid(); pc.NonRoot && uid.GetValue() == 0 {
		return fmt.Errorf("container %s: runAsNonRoot is set, but image %s names no numeric user other than 0; set runAsUser", name, spec.GetImage())
	}
	return nil
}

// ended waits until a container has ended. It polls, because status is served from memory.
func (p *player) ended(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	for {
		st, err := p.status(ctx, id)
		if err != nil || st.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return st, err
		}
		if !pause(ctx, lookEvery) {
			return nil, ctx.Err()
		}
	}
}

// status returns the status of a container, once berth is there.
func (p *player) status(ctx context.Context, id string) (st *runtimeapi.ContainerStatus, err error) {
	err = p.patiently(ctx, func() error {
		resp, err := p.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		st = resp.GetStatus()
		return err
	})
	return st, err
}

const (
	lookEvery = 20 * time.Millisecond
	awayEvery = 500 * time.Millisecond // between two calls while berth is not there
)

// patiently makes a call again for as long as berth is not there. Of the calls that wait for that
// at the same time the first one says so. The call must be one that may take effect twice.
func (p *player) patiently(ctx context.Context, call func() error) error {
	for said := false; ; {
		err := call()
		if !client.IsUnavailable(err) || ctx.Err() != nil {
			if said {
				p.away.Store(false)
			}
			return err
		}
		if p.away.CompareAndSwap(false, true) {
			said = true
			p.say("berth does not answer, the pod goes on: %v\n", client.Explain(err))
		}
		if !pause(ctx, awayEvery) {
			return ctx.Err()
		}
	}
}

// wait waits for all containers and returns the first code that is not 0, in the order of the
// manifest.
func (p *player) wait(ctx context.Context) (int32, error) {
	var code int32
	for _, ct := range p.containers {
		st, err := p.ended(ctx, ct.id)
		if err != nil {
			return 0, err
		}
		fmt.Fprintf(p.out, "container %s  %s ended with %d, %s\n", short(st.GetId()), ct.name, st.GetExitCode(), st.GetReason())
		if code == 0 {
			code = st.GetExitCode()
		}
	}
	return code, nil
}
