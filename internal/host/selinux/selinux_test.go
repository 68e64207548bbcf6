// SPDX-License-Identifier: Apache-2.0

package selinux

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fake stands for go-selinux: it counts categories up and remembers which are taken.
type fake struct {
	next       int
	taken      map[string]bool
	relabelled []string
}

func labels() (*Labels, *fake) {
	f := &fake{taken: map[string]bool{}}
	level := func(l string) (string, error) {
		_, v, ok := strings.Cut(l, "@")
		if !ok && l != "" {
			return "", errors.New("not a label")
		}
		return v, nil
	}
	return newLabels(library{
		init: func(options []string) (string, string, error) {
			v := ""
			for _, o := range options {
				switch {
				case o == "disable":
					return "", "files@any", nil
				case o == "level:bad":
					return "", "", errors.New("no such level")
				case strings.HasPrefix(o, "level:"):
					v = strings.TrimPrefix(o, "level:")
				}
			}
			if v == "" {
				f.next++
				v = fmt.Sprint("c", f.next)
			}
			f.taken[v] = true
			return "process@" + v, "files@" + v, nil
		},
		known: func(l string) error {
			if strings.HasPrefix(l, "process@unknown") {
				return unix.EINVAL
			}
			return nil
		},
		dup:     func(l string) ([]string, error) { v, err := level(l); return []string{"level:" + v}, err },
		level:   level,
		share:   func(l string) (string, error) { kind, _, _ := strings.Cut(l, "@"); return kind, nil },
		reserve: func(l string) error { v, err := level(l); f.taken[v] = true; return err },
		release: func(l string) { v, _ := level(l); delete(f.taken, v) },
		relabel: func(path, label string) error {
			if path == "/nfs" {
				return &os.PathError{Op: "lsetxattr", Path: path, Err: unix.ENOTSUP}
			}
			f.relabelled = append(f.relabelled, path+": "+label)
			return nil
		},
		labelOf: func(path string) (string, error) {
			if len(f.relabelled) > 0 && strings.HasPrefix(f.relabelled[0], path+": ") {
				return strings.TrimPrefix(f.relabelled[0], path+": "), nil
			}
			return "", unix.ENODATA
		},
	}), f
}

func TestACategoryIsFreeOnceEverybodyReleasedIt(t *testing.T) {
	l, f := labels()
	pod, _, err := l.Init(nil)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := l.Init(nil)
	if err != nil || other == pod {
		t.Fatalf("two pods share %q (%v)", pod, err)
	}
	options, err := l.OptionsOf(pod)
	if err != nil {
		t.Fatal(err)
	}
	container, _, err := l.Init(options)
	if err != nil || container != pod {
		t.Fatalf("a container has %q, its pod %q (%v)", container, pod, err)
	}
	l.Release(container)
	if !f.taken["c1"] {
		t.Error("the category of the pod is free while the pod has it")
	}
	for range 3 {
		l.Release(pod)
	}
	if f.taken["c1"] || !f.taken["c2"] || len(l.held) != 1 {
		t.Errorf("taken %v, held %v", f.taken, l.held)
	}
}

func TestLabelsOfWhatRunsAreReserved(t *testing.T) {
	l, f := labels()
	for _, p := range []string{"process@c7", "", "process@"} {
		if err := l.Reserve(p); err != nil {
			t.Errorf("%q: %v", p, err)
		}
	}
	if !f.taken["c7"] || len(l.held) != 1 {
		t.Errorf("taken %v, held %v", f.taken, l.held)
	}
	if err := l.Reserve("nonsense"); err == nil {
		t.Error("reserved nonsense")
	}
	l.Release("nonsense")
	if _, _, err := l.Init([]string{"level:bad"}); err == nil || len(l.held) != 1 {
		t.Errorf("%v, held %v", err, l.held)
	}
	if p, _, err := l.Init([]string{"disable"}); p != "" || err != nil || len(l.held) != 1 {
		t.Errorf("%q %v, held %v", p, err, l.held)
	}
}

// A pod whose label the policy does not have failed in the OCI runtime, with an error of a file of
// the kernel's, and not as an invalid request.
func TestALabelThatThePolicyDoesNotHaveIsRefused(t *testing.T) {
	l, f := labels()
	if _, _, err := l.Init([]string{"level:unknown"}); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), `"process@unknown"`) {
		t.Error(err)
	}
	if len(f.taken) != 0 || len(l.held) != 0 {
		t.Errorf("taken %v, held %v", f.taken, l.held)
	}
}

// The layers of images are labelled once. A label that no other pod's containers could use would
// keep them from starting.
func TestFilesForEveryContainerAreLabelledOnce(t *testing.T) {
	l, f := labels()
	l.readOnly = "layers"
	for range 2 {
		if err := l.Publish("/layers"); err != nil {
			t.Error(err)
		}
	}
	if got := f.relabelled; len(got) != 1 || got[0] != "/layers: layers" {
		t.Errorf("labelled: %q", got)
	}
	if got, err := l.Shared("files@c1"); got != "files" || err != nil {
		t.Errorf("the shared label is %q %v", got, err)
	}
	if got, err := l.Shared(""); got != "" || err != nil {
		t.Errorf("without a label it is %q %v", got, err)
	}
}

func TestFileSystemsWithoutLabelsAreLeftAsTheyAre(t *testing.T) {
	l, _ := labels()
	if err := l.Relabel("/nfs", "files@c1"); err != nil {
		t.Error(err)
	}
}
