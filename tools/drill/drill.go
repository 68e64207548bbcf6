// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
)

// Image is the name of the image that a drill imports.
const Image = "localhost/berth-drill:latest"

// namespace is the namespace of the pods of drills. No pod of a cluster is in it.
const namespace = "berth-drill"

// label is on the pods of a drill, with the name of the drill.
const label = "berth.drill"

// Within is how long a drill may take by default, and Least the shortest time that may be given.
const (
	Within = time.Minute
	Least  = Within / 2
)

// promised is how long an exit may take to be visible: PROPERTIES 1.
const promised = 2 * time.Second

// Options configure a drill.
type Options struct {
	// Restart lets systemd restart berth in one of the steps.
	Restart bool
	// Within is how long the drill may take: [Least] or more. Each step may take a sixth of it.
	Within time.Duration
	// Only is a text that the names of the steps have that are tried; "" for all steps.
	Only string
	// Endpoint is the socket of berth.
	Endpoint string
	// Image is the name of an image on the node, instead of one that is imported. Any will do.
	Image string
	// Begin is called with the name of each step before it is tried; it may be nil.
	Begin func(step string)
}

// Step is the result of breaking one thing.
type Step struct {
	Name string `json:"name"`
	// the reason if it was not tried; the other fields are empty then
	NotTried string `json:"notTried,omitempty"`
	State    string `json:"state,omitempty"` // of the container, from its status
	Code     int32  `json:"code"`
	Reason   string `json:"reason,omitempty"`
	// AfterFault is the time from the fault until a client knows of the exit. 0 if the container ends
	// by itself, at an instant that only the kernel knows.
	AfterFault time.Duration `json:"afterFaultNanoseconds,omitempty"`
	// AfterEnd is the time from the end that the status names until a client knows.
	AfterEnd time.Duration `json:"afterEndNanoseconds,omitempty"`
	// Removed is how long it took to remove the pod afterwards.
	Removed time.Duration `json:"removedNanoseconds,omitempty"`
	Note    string        `json:"note,omitempty"`
	Wrong   string        `json:"wrong,omitempty"` // the broken promise
}

// Result is the result of a drill.
type Result struct {
	Steps []Step `json:"steps"`
	// Left lists the things that the drill could not remove, or not look for, each with a remedy.
	Left        []string      `json:"left,omitempty"`
	Took        time.Duration `json:"tookNanoseconds"`
	Interrupted bool          `json:"interrupted,omitempty"`
}

// Failed returns the number of steps that did not go as promised.
func (r Result) Failed() (n int) {
	for _, s := range r.Steps {
		if s.Wrong != "" {
			n++
		}
	}
	return n
}

type drill struct {
	*client.Client
	o       Options
	name    string // of the drill, in labels, of its directory and its cgroup
	dir     string
	program string // of this process, which is also the canary's
	parent  string // of the cgroups of its pods
	systemd bool   // the cgroups are systemd's
	image   string
	ours    bool // the image was imported, and is to be removed
	exact   bool // the kernel reports exit codes
	exits   *Exits
	mounted []string // file systems below dir
	pods    int
	// Pods whose making was cut off: berth goes on with them.
	cutOff []*runtimeapi.PodSandboxConfig
	silent error // why the drill is given up: berth does not answer
}

// Run drills the berth behind c. It returns an error if the drill could not begin; the result lists
// the remains even then. Once ctx ends it stops breaking things and cleans up, which takes 15
// seconds at most.
func Run(ctx context.Context, c *client.Client, o Options) (Result, error) {
	began := time.Now()
	d := &drill{Client: c, o: o, name: fmt.Sprintf("berthdrill%d", os.Getpid())}
	// and some in reserve
	breakable, cancel := context.WithTimeout(ctx, o.Within-2*d.removing()-d.cleaning())
	defer cancel()
	var r Result
	err := d.prepare(breakable)
	if err == nil {
		for _, s := range steps {
			if !strings.Contains(s.name, o.Only) {
				continue
			}
			r.Steps = append(r.Steps, d.try(breakable, s))
		}
	}
	r.Left = d.clean(context.WithoutCancel(ctx))
	r.Took = time.Since(began)
	r.Interrupted = ctx.Err() != nil
	return r, err
}

func (d *drill) prepare(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("a drill signals processes in containers; run it as root")
	}
	v, err := d.RuntimeServiceClient.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return fmt.Errorf("ask berth for its version: %w", err)
	}
	if _, err := d.Node.Lanes(ctx, &berthv1.LanesRequest{}); client.IsUnimplemented(err) { // the name may belong to another runtime
		return fmt.Errorf("the runtime that answers is %s, and a drill is for berth", v.GetRuntimeName())
	}
	d.sweep(ctx)
	if d.program, err = os.Executable(); err != nil {
		return err
	}
	if err := static(d.program); err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", d.name+"-"); err != nil {
		return err
	}
	st, err := d.RuntimeServiceClient.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return fmt.Errorf("ask berth for its status: %w", err)
	}
	d.exact = st.GetInfo()["kernelWitnessExact"] == "true"
	conf, err := d.RuntimeServiceClient.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err != nil {
		return fmt.Errorf("ask berth for its cgroup driver: %w", err)
	}
	d.parent = "/" + d.name
	if d.systemd = conf.GetLinux().GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD; d.systemd {
		d.parent = d.name + ".slice"
	}
	if err := d.prepareImage(ctx); err != nil {
		return err
	}
	// until the connection is closed
	if d.exits, err = WatchExits(context.WithoutCancel(ctx), d.RuntimeServiceClient); err != nil {
		return fmt.Errorf("subscribe to events: %w", err)
	}
	return nil
}

// static returns an error if a program needs libraries, which the canary's image does not have.
func static(program string) error {
	f, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("read %s: %w", program, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is dynamically linked and cannot be the program in a canary: build it with CGO_ENABLED=0, as make build does", program)
		}
	}
	return nil
}

// prepareImage imports the image, unless it is there or the person named another.
func (d *drill) prepareImage(ctx context.Context) error {
	d.image = d.o.Image
	if d.image == "" {
		d.image = Image
	}
	st, err := d.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: d.image}})
	if err != nil {
		return fmt.Errorf("look for the image %s: %w", d.image, err)
	}
	if st.GetImage() != nil {
		return nil
	}
	if d.o.Image != "" {
		return fmt.Errorf("there is no image %s on this node; name one that berth images lists", d.image)
	}
	path := filepath.Join(d.dir, "image.tar")
	if err := writeImage(path, Image); err != nil {
		return fmt.Errorf("make the image of the canary: %w", err)
	}
	d.ours = true
	if _, err := d.Control.ImportImages(ctx, &berthv1.ImportImagesRequest{Path: path}); err != nil {
		return fmt.Errorf("import the image of the canary: %w", err)
	}
	return nil
}

// errNotTried is the error of a step that cannot be tried here.
type errNotTried struct{ why string }

func (e errNotTried) Error() string { return e.why }

func notTried(format string, args ...any) error { return errNotTried{fmt.Sprintf(format, args...)} }

// try makes a pod, breaks something around its container, and removes the pod.
func (d *drill) try(ctx context.Context, s step) Step {
	out := Step{Name: s.name}
	switch {
	case d.silent != nil:
		out.NotTried = "berth does not answer in time: " + client.Explain(d.silent).Error()
		return out
	case ctx.Err() != nil:
		out.NotTried = "there was no time left, or the drill was interrupted"
		return out
	}
	if d.o.Begin != nil {
		d.o.Begin(s.name)
	}
	ctx, cancel := context.WithTimeout(ctx, d.oneStep())
	defer cancel()
	c := &canary{drill: d, out: &out}
	err := c.run(ctx, s)
	said := ""
	if s.does != talks { // the log of this one is of no interest
		said = c.said()
	}
	began := time.Now()
	// The pod goes also if the step was interrupted. A failure is retried at the end.
	within, done := context.WithTimeout(context.WithoutCancel(ctx), d.removing())
	defer done()
	if c.pod != "" {
		if rerr := d.remove(within, c.pod); rerr != nil && out.Wrong == "" {
			out.Wrong = fmt.Sprintf("the pod could not be removed: %v", client.Explain(rerr))
		} else if rerr == nil {
			out.Removed = time.Since(began)
		}
	}
	var not errNotTried
	switch {
	case errors.As(err, &not):
		return Step{Name: s.name, NotTried: not.why}
	case err != nil && ctx.Err() != nil && out.Wrong == "":
		out.Wrong = fmt.Sprintf("it took longer than %s, or was interrupted: %v", d.oneStep(), client.Explain(err))
	case err != nil:
		out.Wrong = client.Explain(err).Error()
	}
	if out.Wrong != "" && said != "" {
		out.Wrong += "; the canary said: " + said
	}
	return out
}

// oneStep is how long a step may take, and removing how long the removal of its pod.
func (d *drill) oneStep() time.Duration  { return d.o.Within / 6 }
func (d *drill) removing() time.Duration { return d.o.Within / 12 }

// cleaning is how long it may take to remove and look for everything at the end, and cleaningHere
// how much of it is for work that needs no berth.
func (d *drill) cleaning() time.Duration     { return d.o.Within / 4 }
func (d *drill) cleaningHere() time.Duration { return d.o.Within / 20 }

// said is the last line of the canary's log; "" if there is none.
func (c *canary) said() string {
	b, err := os.ReadFile(filepath.Join(c.logs, "canary.log"))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if f := strings.SplitN(lines[len(lines)-1], " ", 4); len(f) == 4 { // TIME STREAM TAG TEXT
		return f[3]
	}
	return ""
}

// canary is one pod with one container, and the observations of it.
type canary struct {
	*drill
	out     *Step
	pod, id string
	logs    string // the pod's log directory
	sandbox *runtimeapi.PodSandboxConfig
	broken  time.Time // when the fault was
}

// run makes the canary, breaks something, and waits for the end.
func (c *canary) run(ctx context.Context, s step) error {
	if s.possible != nil {
		if err := s.possible(ctx, c); err != nil {
			return err
		}
	}
	if err := c.start(ctx, s); err != nil {
		return err
	}
	restore, err := s.fault(ctx, c)
	if restore != nil {
		defer restore()
	}
	if err != nil {
		return err
	}
	st, err := Ended(ctx, c.RuntimeServiceClient, c.id)
	if err != nil {
		return fmt.Errorf("wait for the end of the canary: %w", err)
	}
	known := time.Now()
	if !s.polled {
		at, ok := c.exits.At(c.id)
		if !ok {
			return errors.New("the canary ended, and no event has said so")
		}
		if at.Before(known) {
			known = at
		}
	}
	if s.perhapsUnknown && st.GetReason() == unknown {
		st = c.measured(ctx, st)
	}
	c.out.State = strings.TrimPrefix(st.GetState().String(), "CONTAINER_")
	c.out.Code, c.out.Reason = st.GetExitCode(), st.GetReason()
	c.out.AfterEnd = max(known.Sub(time.Unix(0, st.GetFinishedAt())), 0)
	if !c.broken.IsZero() {
		c.out.AfterFault = known.Sub(c.broken)
	}
	c.out.Wrong = c.judge(s, st)
	return nil
}

// unknown is the reason of an end whose code was not measured yet.
const unknown = "Unknown"

// measured waits for a moment until the code is known: an older kernel reports the end without it,
// and the shim may have it.
func (c *canary) measured(ctx context.Context, st *runtimeapi.ContainerStatus) *runtimeapi.ContainerStatus {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.removing())
	defer cancel()
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return st
		case <-t.C:
		}
		next, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.id})
		if err == nil && next.GetStatus().GetReason() != unknown {
			text := fmt.Sprintf("its code was known %s after its end", time.Since(began).Round(time.Millisecond))
			c.out.Note = strings.TrimPrefix(c.out.Note+"; "+text, "; ")
			return next.GetStatus()
		}
	}
}

// judge describes how an end differs from the promise; "" if it does not.
func (c *canary) judge(s step, st *runtimeapi.ContainerStatus) string {
	got := fmt.Sprintf("%d %s", st.GetExitCode(), st.GetReason())
	open := s.perhapsUnknown && !c.exact && st.GetExitCode() == 255 && st.GetReason() == unknown
	lag := c.out.AfterEnd
	if s.polled { // berth was away for part of the time
		lag = 0
	}
	switch {
	case got != s.end && !open:
		return fmt.Sprintf("it ended with %s instead of %s: %s", got, s.end, st.GetMessage())
	case lag > promised:
		return fmt.Sprintf("its exit was visible %s after its end: berth promises %s", lag.Round(time.Millisecond), promised)
	}
	return ""
}

func (c *canary) start(ctx context.Context, s step) error {
	c.drill.pods++
	name := fmt.Sprintf("%s-%d", c.name, c.pods)
	if c.logs == "" {
		c.logs = filepath.Join(c.dir, "logs", name)
	}
	host := runtimeapi.NamespaceMode_NODE
	namespaces := &runtimeapi.NamespaceOption{Network: host, Pid: runtimeapi.NamespaceMode_CONTAINER}
	c.sandbox = &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name:      name,
			Namespace: namespace,
			Uid:       name,
		},
		LogDirectory: c.logs,
		Labels:       map[string]string{label: c.name},
		// its shim is stopped and killed
		Annotations: map[string]string{"io.berth.shim.own": "true"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    c.parent,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: namespaces},
		},
	}
	pod, err := c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: c.sandbox})
	if err != nil {
		c.cutOff = append(c.cutOff, c.sandbox)
		if ctx.Err() != nil {
			c.silent = err
		}
		return fmt.Errorf("make the canary's pod: %w", err)
	}
	c.pod = pod.GetPodSandboxId()
	ct, err := c.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId:  c.pod,
		SandboxConfig: c.sandbox,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "canary"},
			Image:    &runtimeapi.ImageSpec{Image: c.image},
			Command:  []string{"/berth", "doctor", "canary", s.does},
			LogPath:  "canary.log",
			Labels:   map[string]string{label: c.name},
			Mounts:   []*runtimeapi.Mount{{HostPath: c.program, ContainerPath: "/berth", Readonly: true}},
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources:       &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: memoryLimit},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: namespaces},
			},
		},
	})
	if err != nil {
		return fmt.Errorf("make the canary: %w", err)
	}
	c.id = ct.GetContainerId()
	if _, err := c.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.id}); err != nil {
		return fmt.Errorf("start the canary: %w", err)
	}
	return nil
}

func program(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, text)
	}
	return text, nil
}
