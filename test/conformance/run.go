// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/internal/host/network"
)

// subject is a runtime that critest is run with.
type subject struct {
	name   string
	notRun string // why it is not run
	start  func(d *daemon) error
	result *Result // of a run elsewhere; nil: it is run here
}

// daemon is the set of processes started for a subject, in a directory of its own.
type daemon struct {
	build, dir  string
	socket, nri string
	processes   []*exec.Cmd // in the order in which they were started
}

const (
	bridge    = "berth-conf"     // of the pods
	subnet    = "10.97.0.0/16"   // of the bridge
	readyTime = time.Minute      // until a runtime answers
	stopTime  = 30 * time.Second // until a process has ended that was asked to
	suiteTime = "90m"            // ginkgo's own limit
)

// run starts the runtime, runs critest, and ends the runtime. left names objects that could not be
// removed.
func (s subject) run(ctx context.Context, build string, suite critest) (r Result, left error) {
	r = Result{Runtime: s.name}
	dir, err := os.MkdirTemp("", "bc")
	if err != nil {
		r.NotRun = err.Error()
		return r, nil
	}
	d := &daemon{build: build, dir: dir}
	defer func() { left = d.stop(s.name) }()
	if err := os.Chmod(dir, 0o755); err != nil { // containers in user namespaces go through it
		r.NotRun = err.Error()
		return r, nil
	}
	if err := s.start(d); err != nil {
		r.NotRun = oneLine(err)
		return r, nil
	}
	if r.Version, err = d.ready(ctx); err != nil {
		r.NotRun = oneLine(err)
		return r, nil
	}
	report := filepath.Join(dir, "report.json")
	args := []string{
		"-runtime-endpoint", "unix://" + d.socket, "-image-endpoint", "unix://" + d.socket, "-config", os.DevNull,
		"-ginkgo.no-color", "-ginkgo.timeout", suiteTime, "-ginkgo.json-report", report,
	}
	if suite.nri && d.nri != "" {
		args = append(args, "-nri-socket", d.nri)
	}
	log, err := os.Create(filepath.Join(build, "critest-"+strings.Map(letter, s.name)+".log"))
	if err != nil {
		r.NotRun = err.Error()
		return r, nil
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, suite.program, append(args, suite.flags...)...) // what the user has in PATH
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	began := time.Now()
	ended := cmd.Run() // an error usually means that a check failed, as the report has
	r.Took = time.Since(began)
	b, err := os.ReadFile(report)
	if err == nil {
		r.Counts, err = count(b)
	}
	if err != nil {
		r.NotRun = "critest left no whole report: " + oneLine(errors.Join(err, ended))
	}
	return r, nil
}

// letter keeps the characters that a file name may have.
func letter(c rune) rune {
	if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
		return c
	}
	return '-'
}

// oneLine is an error for a table.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// spawn starts a process, whose output is a file in the directory.
func (d *daemon) spawn(env []string, name string, args ...string) error {
	log, err := os.Create(filepath.Join(d.dir, filepath.Base(name)+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	d.processes = append(d.processes, cmd)
	return nil
}

// ready waits until the runtime and its network are ready, and returns the runtime's version.
func (d *daemon) ready(ctx context.Context) (version string, err error) {
	for end := time.Now().Add(readyTime); ; time.Sleep(100 * time.Millisecond) {
		if version, err = d.ask(ctx); err == nil {
			return version, nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return "", fmt.Errorf("it is not ready: %w", err)
		}
	}
}

func (d *daemon) ask(ctx context.Context) (version string, err error) {
	c, err := client.Dial(d.socket)
	if err != nil {
		return "", err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	st, err := c.RuntimeServiceClient.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return "", err
	}
	for _, cond := range st.GetStatus().GetConditions() {
		if !cond.GetStatus() && (cond.GetType() == runtimeapi.RuntimeReady || cond.GetType() == runtimeapi.NetworkReady) {
			return "", fmt.Errorf("%s: %s", cond.GetType(), cond.GetMessage())
		}
	}
	v, err := c.RuntimeServiceClient.Version(ctx, &runtimeapi.VersionRequest{})
	return v.GetRuntimeVersion(), err
}

// stop removes all pods of a runtime that was started here, ends its processes and removes its
// directory. The error names the remains.
func (d *daemon) stop(name string) error {
	if len(d.processes) == 0 {
		return os.RemoveAll(d.dir)
	}
	errs := []error{d.removePods()}
	for i := len(d.processes) - 1; i >= 0; i-- {
		p := d.processes[i]
		_ = p.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(stopTime, func() { _ = p.Process.Kill() })
		_ = p.Wait()
		if !late.Stop() {
			errs = append(errs, fmt.Errorf("%s did not end within %s and was killed", p.Path, stopTime))
		}
	}
	if link, err := netlink.LinkByName(bridge); err == nil {
		errs = append(errs, netlink.LinkDel(link))
	}
	pods := network.Bridge{Name: bridge, Subnet: subnet} // berth keeps its rule for the next pod
	errs = append(errs, pods.RemoveRules(context.Background()))
	errs = append(errs, os.RemoveAll(d.dir))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s has left something below %s: %w", name, d.dir, err)
	}
	return nil
}

func (d *daemon) removePods() error {
	c, err := client.Dial(d.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	list, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range list.GetItems() {
		_, err := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.GetId()})
		if err == nil {
			_, err = c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// registries is the directory with the configurations of registries, "" for the runtime's own.
func registries() string { return os.Getenv("CONFORMANCE_REGISTRIES") }

// startBerth starts berth as it ships; only paths differ from the defaults, and NRI is on, because
// critest has checks of it.
func startBerth(external bool) func(d *daemon) error {
	return func(d *daemon) error {
		d.socket, d.nri = d.dir+"/berth.sock", d.dir+"/nri.sock"
		var b bytes.Buffer
		fmt.Fprintf(&b, "root = %q\nstate = %q\naddress = %q\nlibexec = %q\n", d.dir+"/lib", d.dir+"/run", d.socket, d.build+"/libexec")
		fmt.Fprintf(&b, "[network]\nconf_dir = %q\nbin_dirs = [%q]\nnetns_dir = %q\ndefault_bridge = %q\ndefault_subnet = %q\n", d.dir+"/net.d", d.build+"/cni", d.dir+"/netns", bridge, subnet)
		fmt.Fprintf(&b, "[nri]\nenable = true\nsocket = %q\n", d.nri)
		if r := registries(); r != "" {
			fmt.Fprintf(&b, "[image]\nregistry_dir = %q\n", r)
		}
		b.WriteString("[containerd]\nlink = ''\n")
		if external {
			address := d.dir + "/cd.sock"
			cfg := containerdPaths(d.dir) + "disabled_plugins = ['io.containerd.grpc.v1.cri', 'io.containerd.cri.v1.images', 'io.containerd.cri.v1.runtime']\n" +
				containerdSockets(d.dir, address)
			if err := d.containerd(cfg); err != nil {
				return err
			}
			fmt.Fprintf(&b, "address = %q\n[runtimes.runc]\ntype = 'io.containerd.runc.v2'\nhost_process = true\nbinary = %q\nroot = %q\n", address, d.build+"/libexec/runc", d.dir+"/runc")
		}
		file := d.dir + "/berth.toml"
		if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
			return err
		}
		return d.spawn(nil, d.build+"/bin/berth", "serve", "--config", file)
	}
}

// startContainerd starts containerd with its CRI plug-in as its authors ship it; only paths differ,
// and NRI is on as it ships.
func startContainerd(d *daemon) error {
	d.socket, d.nri = d.dir+"/cd.sock", d.dir+"/nri.sock"
	conf := `{"cniVersion":"1.0.0","name":"conformance","plugins":[{"type":"bridge","bridge":"` + bridge + `","isGateway":true,"ipMasq":true,` +
		`"ipam":{"type":"host-local","ranges":[[{"subnet":"` + subnet + `"}]],"routes":[{"dst":"0.0.0.0/0"}],"dataDir":"` + d.dir + `/ipam"}},` +
		`{"type":"portmap","capabilities":{"portMappings":true}}]}`
	if err := errors.Join(os.MkdirAll(d.dir+"/net.d", 0o700), os.WriteFile(d.dir+"/net.d/10-conformance.conflist", []byte(conf), 0o600)); err != nil {
		return err
	}
	images := ""
	if image := os.Getenv("CONFORMANCE_SANDBOX_IMAGE"); image != "" {
		images += fmt.Sprintf("[plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = %q\n", image)
	}
	if r := registries(); r != "" {
		images += fmt.Sprintf("[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = %q\n", r)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	return d.containerd(containerdPaths(d.dir) + containerdSockets(d.dir, d.socket) + images +
		fmt.Sprintf("[plugins.'io.containerd.nri.v1.nri']\nsocket_path = %q\nplugin_path = %q\nplugin_config_path = %q\n", d.nri, d.dir+"/nri", d.dir+"/nri.d") +
		// Root in a container often lacks CAP_SYS_RESOURCE, and could not start a pod otherwise.
		fmt.Sprintf("[plugins.'io.containerd.cri.v1.runtime']\nrestrict_oom_score_adj = %t\nnetns_mounts_under_state_dir = true\n", lacks(status, 24)) +
		fmt.Sprintf("[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = [%q]\nconf_dir = %q\n", d.build+"/cni", d.dir+"/net.d") +
		"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\nsandboxer = 'podsandbox'\n" +
		fmt.Sprintf("[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\nBinaryName = %q\nRoot = %q\n", d.build+"/libexec/runc", d.dir+"/runc"))
}

func containerdPaths(dir string) string {
	return fmt.Sprintf("version = 4\nroot = %q\nstate = %q\ntemp = %q\n", dir+"/cl", dir+"/c", dir+"/tmp")
}

func containerdSockets(dir, address string) string {
	return fmt.Sprintf("[plugins.'io.containerd.server.v1.grpc']\naddress = %q\n[plugins.'io.containerd.server.v1.ttrpc']\naddress = %q\n", address, address+".ttrpc") +
		fmt.Sprintf("[plugins.'io.containerd.shim.v1.manager']\nsocket_dir = %q\n[plugins.'io.containerd.internal.v1.opt']\npath = %q\n", dir+"/s", dir+"/opt")
}

// containerd starts the containerd of PATH, or else the one that make tools builds.
func (d *daemon) containerd(cfg string) error {
	file := d.dir + "/containerd.toml"
	if err := os.WriteFile(file, []byte(cfg), 0o600); err != nil {
		return err
	}
	found, _ := exec.LookPath("containerd")
	return d.spawn([]string{"PATH=" + d.build + "/libexec:" + os.Getenv("PATH")}, cmp.Or(found, d.build+"/libexec/containerd"), "--config", file)
}

// lacks reports whether a process lacks a capability, by its /proc/PID/status.
func lacks(status []byte, capability uint) bool {
	for line := range strings.Lines(string(status)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			var caps uint64
			_, err := fmt.Sscanf(strings.TrimSpace(hex), "%x", &caps)
			return err != nil || caps&(1<<capability) == 0
		}
	}
	return true
}

// already is a runtime that somebody else runs, whose sockets are there.
func already(o other) func(d *daemon) error {
	return func(d *daemon) error {
		d.socket, d.nri = o.socket, o.nri
		_, err := os.Stat(o.socket)
		if o.nri != "" && err == nil {
			_, err = os.Stat(o.nri)
		}
		return err
	}
}
