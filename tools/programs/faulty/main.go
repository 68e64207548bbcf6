// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/pkg/shim"
)

func main() {
	name := filepath.Base(os.Args[0])
	switch {
	case strings.HasPrefix(name, "containerd-shim"):
		shim.RunShim(context.Background(), newManager())
	case name == "held":
		hold(os.Args[1:])
	case os.Getenv("CNI_COMMAND") != "":
		stand(name, os.Getenv("CNI_COMMAND"), os.Getenv("CNI_CONTAINERID"), cniError)
	default:
		command, id := runcStep(os.Args[1:])
		stand(name, command, id, runcError)
	}
}

// runcStep finds the command and the container's ID in runc's arguments.
func runcStep(args []string) (command, id string) {
	commands := []string{"create", "start", "run", "kill", "delete", "state", "exec", "pause", "resume", "ps", "update", "events", "checkpoint", "restore", "features"}
	i := slices.IndexFunc(args, func(a string) bool { return slices.Contains(commands, a) })
	if i < 0 {
		return "none", ""
	}
	command = args[i]
	for _, a := range args[i+1:] { // berth's IDs are the only arguments of this length
		if len(a) == 64 && !strings.ContainsAny(a, "/-") {
			id = a
		}
	}
	return command, id
}

// runcError reports an error as runc does: on standard error, and in the file of --log.
func runcError(err error) {
	fmt.Fprintln(os.Stderr, err)
	i := slices.Index(os.Args, "--log")
	if i < 0 || i+1 == len(os.Args) {
		return
	}
	f, oerr := os.OpenFile(os.Args[i+1], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if oerr != nil {
		complain("%v", oerr)
		return
	}
	defer f.Close()
	_ = json.NewEncoder(f).Encode(map[string]string{"level": "error", "msg": err.Error(), "time": time.Now().Format(time.RFC3339Nano)})
}

// cniError reports an error in CNI's form, on standard output.
func cniError(err error) {
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": "1.0.0", "code": 100, "msg": err.Error()})
}

// stand runs the real program, or applies the rule.
func stand(name, step, id string, report func(error)) {
	r, ok := find(name+"."+step, id)
	if ok {
		err := r.before()
		if errors.Is(err, errSwallowed) {
			os.Exit(0)
		}
		if err != nil {
			report(err)
			os.Exit(1)
		}
	}
	path := filepath.Join(base(), "real", name)
	if !ok || !r.isAfter() {
		err := syscall.Exec(path, append([]string{path}, os.Args[1:]...), os.Environ())
		report(fmt.Errorf("run %s: %w", path, err))
		os.Exit(1)
	}
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	if aerr := r.after(); aerr != nil {
		report(aerr)
		os.Exit(1)
	}
	if err != nil {
		os.Exit(max(cmd.ProcessState.ExitCode(), 1))
	}
}
