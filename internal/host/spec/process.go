// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// process sets the arguments, the environment, the directory and the user.
func process(s *specs.Spec, in Container) error {
	var err error
	if s.Process.Args, err = arguments(in); err != nil {
		return err
	}
	if s.Process.Cwd, err = directory(in); err != nil {
		return err
	}
	env, err := environment(in)
	if err != nil {
		return err
	}
	user, home, err := resolveUser(in)
	if err != nil {
		return err
	}
	s.Process.User = user
	if !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, "HOME=") }) {
		env = append(env, "HOME="+home)
	}
	s.Process.Env = env
	return checkExec(s.Process.Args, env)
}

// arguments returns the command line: command and args of the configuration take the place of the
// image's entrypoint and cmd, and a command drops cmd, too.
func arguments(in Container) ([]string, error) {
	args := slices.Clone(in.Config.GetCommand())
	if len(args) == 0 {
		args = slices.Clone(in.Image.Entrypoint)
		if len(in.Config.GetArgs()) == 0 {
			args = append(args, in.Image.Cmd...)
		}
	}
	args = append(args, in.Config.GetArgs()...)
	if len(args) == 0 {
		return nil, fmt.Errorf("command: neither the configuration nor the image %s has one: %w", in.ImageName, errdefs.ErrInvalidArgument)
	}
	return args, nil
}

// directory returns the working directory. The kernel resolves it after the root has changed, but
// /proc/self/fd would resolve to a directory that the OCI runtime has open (CVE-2024-21626).
func directory(in Container) (string, error) {
	cwd := in.Config.GetWorkingDir()
	if cwd == "" {
		cwd = in.Image.WorkingDir
	}
	if cwd == "" {
		cwd = "/"
	}
	if !path.IsAbs(cwd) || strings.Contains(cwd, "\x00") {
		return "", fmt.Errorf("working_dir: %q is not an absolute path: %w", cwd, errdefs.ErrInvalidArgument)
	}
	cwd = path.Clean(cwd)
	if inProcFD(cwd) {
		return "", fmt.Errorf("working_dir: %q is a descriptor, not a directory: %w", cwd, errdefs.ErrInvalidArgument)
	}
	return cwd, nil
}

// inProcFD reports whether a clean path names a descriptor, or something below one, of any process.
func inProcFD(p string) bool {
	parts := strings.Split(strings.TrimPrefix(p, "/"), "/")
	return len(parts) >= 3 && parts[0] == "proc" && slices.Contains(parts[2:], "fd")
}

// environment returns the variables of the image and of the configuration, of which the latter win.
func environment(in Container) ([]string, error) {
	vars := envList{index: map[string]int{}}
	vars.set("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	vars.set("HOSTNAME=" + in.Hostname)
	if in.Config.GetTty() {
		vars.set("TERM=xterm")
	}
	if in.Base != nil && in.Base.Process != nil {
		for _, e := range in.Base.Process.Env {
			vars.set(e)
		}
	}
	for _, e := range in.Defaults.Env {
		vars.set(e)
	}
	for _, e := range in.Image.Env {
		vars.set(e)
	}
	for _, e := range in.Config.GetEnvs() {
		if err := checkEnv(e); err != nil {
			return nil, err
		}
		vars.set(e.GetKey() + "=" + string(e.GetValue()))
	}
	return vars.list, nil
}

func checkEnv(e *runtimeapi.KeyValue) error {
	if strings.ContainsAny(e.GetKey(), "=\x00") || e.GetKey() == "" || bytes.IndexByte(e.GetValue(), 0) >= 0 {
		return fmt.Errorf("envs: variable %q has a name or a value that an environment cannot hold: %w", e.GetKey(), errdefs.ErrInvalidArgument)
	}
	return nil
}

// envList is an environment in which each name is once.
type envList struct {
	list  []string
	index map[string]int // of each name in list
}

// set sets a variable, in place of an earlier one of the same name.
func (l *envList) set(e string) {
	key, _, _ := strings.Cut(e, "=")
	if i, ok := l.index[key]; ok {
		l.list[i] = e
		return
	}
	l.index[key] = len(l.list)
	l.list = append(l.list, e)
}
