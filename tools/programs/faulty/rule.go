// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// base is the directory that holds real and rules.
func base() string {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return filepath.Dir(filepath.Dir(exe))
}

// rule is the fault for one step.
type rule struct {
	path   string
	action string
	arg    string
}

// find reads the rule for a step of id. ok is false when there is none, or it is not about this id,
// or used up.
func find(step, id string) (r rule, ok bool) {
	r.path = filepath.Join(base(), "rules", step)
	b, err := os.ReadFile(r.path)
	if err != nil {
		return r, false
	}
	first, rest, _ := strings.Cut(string(b), "\n")
	r.action, r.arg, _ = strings.Cut(first, " ")
	limited, meant, times := false, false, 0
	for line := range strings.Lines(rest) {
		word, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "id":
			limited = true
			meant = meant || strings.HasPrefix(id, value)
		case "times":
			if times, err = strconv.Atoi(value); err != nil {
				complain("%s: times %q is not a number", r.path, value)
			}
		case "":
		default:
			complain("%s: %q is not known", r.path, word)
		}
	}
	if limited && !meant || times > 0 && !claim(r.path, times) {
		return r, false
	}
	hits, err := os.OpenFile(r.path+".hits", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		complain("%v", err)
		return r, true
	}
	_, _ = fmt.Fprintf(hits, "%d %s\n", os.Getpid(), id)
	_ = hits.Close()
	return r, true
}

// claim takes one of a rule's times, among all processes.
func claim(path string, times int) bool {
	for i := range times {
		f, err := os.OpenFile(fmt.Sprintf("%s.used%d", path, i), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			_ = f.Close()
			return true
		}
	}
	return false
}

func complain(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "faulty: "+format+"\n", args...)
}

// errSwallowed means that the step is not to be done, and that it succeeds.
var errSwallowed = errors.New("swallowed")

// before carries out the part of a rule that precedes its step. An error other than errSwallowed is
// the step's.
func (r rule) before() error {
	switch r.action {
	case "stall":
		r.stall()
	case "fail":
		return errors.New(r.arg)
	case "die":
		die()
	case "swallow":
		return errSwallowed
	}
	return nil
}

// after carries out the part of a rule that follows its step.
func (r rule) after() error {
	switch r.action {
	case "stall-after":
		r.stall()
	case "fail-after":
		return errors.New(r.arg)
	case "die-after":
		die()
	}
	return nil
}

// isAfter reports whether the rule needs the step to be done in this process's lifetime.
func (r rule) isAfter() bool { return strings.HasSuffix(r.action, "-after") }

// stall waits until the rule's file is gone.
func (r rule) stall() {
	var end <-chan time.Time
	if r.arg != "" {
		d, err := time.ParseDuration(r.arg)
		if err != nil {
			complain("%s: %v", r.path, err)
		}
		end = time.After(d)
	}
	for {
		if _, err := os.Stat(r.path); err != nil {
			return
		}
		select {
		case <-end:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
