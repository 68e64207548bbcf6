// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"berth/api/client"
	"berth/internal/host/network"
)

// The bridge and subnet differ from those of a berth that may already serve on this host.
const (
	bridge = "berth-demo0"
	subnet = "10.89.77.0/24"
)

type service struct {
	*client.Client
	Options
	dir, address string

	cmd  *exec.Cmd
	log  *os.File
	done chan error
}

// start starts berth in dir and waits until it is ready.
func start(ctx context.Context, o Options, dir string) (*service, error) {
	s := &service{Options: o, dir: dir, address: filepath.Join(dir, "berth.sock"), done: make(chan error, 1)}
	// empty, because the settings of this host are not for the demo
	settings := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(settings, nil, 0o600); err != nil {
		return nil, err
	}
	var err error
	if s.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	// systemd takes the controllers away from cgroups that it has not made, and with them the limits.
	_, err = os.Stat("/run/systemd/system")
	systemd := strconv.FormatBool(err == nil)
	s.cmd = exec.Command(o.Berth, "serve",
		"--config", settings,
		"--set", "runtimes.runc.systemd_cgroup="+systemd,
		"--root", filepath.Join(dir, "lib"),
		"--state", filepath.Join(dir, "run"),
		"--address", s.address,
		"--cni-conf-dir", filepath.Join(dir, "net.d"),
		"--set", "containerd.link=",
		"--set", "network.netns_dir="+filepath.Join(dir, "netns"),
		"--set", "network.default_bridge="+bridge,
		"--set", "network.default_subnet="+subnet)
	s.cmd.Stderr = io.Writer(s.log)
	if o.Verbose {
		s.cmd.Stderr = io.MultiWriter(s.log, o.Err)
	}
	// A Ctrl-C is for the demo, which stops berth after its pod is removed.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Berth, err)
	}
	ready := make(chan bool, 1)
	go func() {
		in := bufio.NewScanner(out)
		ready <- in.Scan() // the one line that serve prints, or its end
		_, _ = io.Copy(io.Discard, out)
		s.done <- s.cmd.Wait()
	}()
	select {
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), s.stop())
	case ok := <-ready:
		if !ok {
			text, _ := os.ReadFile(s.log.Name())
			return nil, errors.Join(fmt.Errorf("berth did not start; its log:\n%s", text), s.stop())
		}
	}
	fmt.Fprintf(o.Out, "berth serves CRI, containerd inside, ready in %s\n", time.Since(began).Round(time.Millisecond))
	if s.Client, err = client.Dial(s.address); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// berth runs one command of the started berth's CLI and shows it.
func (s *service) berth(ctx context.Context, args ...string) error {
	fmt.Fprintf(s.Out, "\n$ berth %s\n", display(s.dir, args))
	cmd := exec.CommandContext(ctx, s.Berth, append([]string{"--endpoint", s.address}, args...)...)
	cmd.Stdout, cmd.Stderr = s.Out, s.Err
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("berth %s: %w", args[0], err)
	}
	return nil
}

// stop ends berth as systemd would, and takes away the bridge and its rule, which stay for the next
// pod otherwise.
func (s *service) stop() error {
	if s.Client != nil {
		_ = s.Close()
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	err := <-s.done
	if l, lerr := netlink.LinkByName(bridge); lerr == nil {
		err = errors.Join(err, netlink.LinkDel(l))
	}
	pods := network.Bridge{Name: bridge, Subnet: subnet}
	err = errors.Join(err, pods.RemoveRules(context.Background()))
	_ = s.log.Close()
	if err == nil {
		fmt.Fprintln(s.Out, "berth stopped cleanly")
	}
	return err
}
