// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes of a command that passes on the code of a process, as shells and docker have them. A
// process that a signal has ended has 128 and the signal's number, which comes from its shim.
const (
	exitItself        = 125 // berth itself failed: the process has no code
	exitNotExecutable = 126 // the program is there and cannot be run
	exitNotFound      = 127 // the program is not there
)

// passesCodeOn makes the errors of a command that passes on the code of a process tell apart from
// that code: those that have no code of their own get 126 or 127 where the program could not be
// run, and 125 otherwise. It is called when the command is complete. If given, codes reports
// whether an invocation passes a code on at all.
func passesCodeOn(cmd *cobra.Command, codes func() bool) {
	coded := func(err error) error {
		var e exitError
		if err == nil || errors.As(err, &e) || codes != nil && !codes() {
			return err
		}
		return exitError{codeOfRefusal(err), err}
	}
	run, args := cmd.RunE, cmd.Args
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return coded(run(cmd, args)) }
	cmd.Args = func(cmd *cobra.Command, a []string) error { return coded(args(cmd, a)) }
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return coded(err) })
}

// codeOfRefusal returns the exit code for an error of starting a process. OCI runtimes have no
// codes for their errors, so their texts have to do. An unknown one is 125, so that nothing is
// taken for the answer of a program that did not run.
func codeOfRefusal(err error) int {
	text := strings.ToLower(err.Error())
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	switch {
	case !has("exec:", "exec ", "executable", "execve"):
		return exitItself
	// runc, and crun
	case !has("unable to start container process", "executable file", "execve", "error executing"):
		return exitItself
	case has("chdir", "getcwd", "cwd"): // the working directory does not exist
		return exitItself
	case has("executable file not found", "not found in $path", "no such file or directory"):
		return exitNotFound
	case has("permission denied", "exec format error", "is a directory"):
		return exitNotExecutable
	}
	return exitItself
}
