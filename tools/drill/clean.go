// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
)

// remove removes a pod of this drill with its container.
func (d *drill) remove(ctx context.Context, pod string) error {
	_, err := d.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
	return err
}

// drills returns the pods of drills: of the one with a name, or of all if it is "".
func (d *drill) drills(ctx context.Context, name string) ([]*runtimeapi.PodSandbox, error) {
	list, err := d.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.GetItems(), func(p *runtimeapi.PodSandbox) bool {
		of := p.GetLabels()[label]
		return p.GetMetadata().GetNamespace() != namespace || of == "" || name != "" && of != name
	}), nil
}

// sweep removes the pods of a drill that was killed. One that may still go on is left alone.
func (d *drill) sweep(ctx context.Context) {
	pods, err := d.drills(ctx, "")
	if err != nil {
		return // the first step reports it
	}
	for _, p := range pods {
		if time.Since(time.Unix(0, p.GetCreatedAt())) > 2*max(d.o.Within, Within) {
			_ = d.remove(ctx, p.GetId()) // a pod that cannot be removed does no harm
		}
	}
}

// clean removes everything that the drill has made, and returns the remains, or the places that
// could not be checked. It takes as long as d.cleaning at most, even if berth does not answer.
func (d *drill) clean(ctx context.Context) (left []string) {
	say := func(format string, args ...any) { left = append(left, fmt.Sprintf(format, args...)) }
	asking, done := context.WithTimeout(ctx, d.cleaning()-d.cleaningHere())
	defer done()
	d.cleanPods(asking, say)
	d.cleanImage(asking, say)

	here, done := context.WithTimeout(ctx, d.cleaningHere())
	defer done()
	for _, at := range d.mounted {
		if _, err := program(here, "umount", at); err != nil {
			say("a small file system, which umount %s unmounts: %v", at, err)
		}
	}
	if d.dir != "" {
		if err := os.RemoveAll(d.dir); err != nil { // a mount that is still there keeps its directory
			say("files, which rm -r %s removes: %v", d.dir, err)
		}
	}
	d.cleanCgroup(here, say)
	return left
}

// cleanPods removes the pods. berth goes on with one whose making was cut off, so it is asked for
// it again, which waits for the result: only then it is certain that none comes later.
func (d *drill) cleanPods(ctx context.Context, say func(string, ...any)) {
	for _, p := range d.cutOff {
		_, err := d.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: p})
		if ctx.Err() != nil { // any other answer means that the call is over
			say("the pod %s, perhaps, which berth pods lists in the namespace %s and berth rm -f removes: %v", p.GetMetadata().GetName(), namespace, client.Explain(err))
			return
		}
	}
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		pods, err := d.drills(ctx, d.name)
		if err != nil {
			say("pods, perhaps, which berth pods lists in the namespace %s and berth rm -f removes: %v", namespace, client.Explain(err))
			return
		}
		if len(pods) == 0 {
			return
		}
		var wg sync.WaitGroup
		for _, p := range pods {
			wg.Go(func() { _ = d.remove(ctx, p.GetId()) })
		}
		wg.Wait()
		select {
		case <-ctx.Done():
			for _, p := range pods {
				say("the pod %s, which berth rm -f %s removes", p.GetMetadata().GetName(), p.GetId())
			}
			return
		case <-t.C:
		}
	}
}

func (d *drill) cleanImage(ctx context.Context, say func(string, ...any)) {
	if !d.ours {
		return
	}
	spec := &runtimeapi.ImageSpec{Image: d.image}
	_, err := d.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec})
	if err == nil {
		var st *runtimeapi.ImageStatusResponse
		if st, err = d.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec}); err == nil && st.GetImage() == nil {
			return
		}
	}
	if err == nil {
		say("the image %s, which berth images rm %s removes", d.image, d.image)
	} else {
		say("the image %s, perhaps, which berth images rm %s removes: %v", d.image, d.image, client.Explain(err))
	}
}

// cleanCgroup removes the cgroup above the drill's pods, because berth leaves it to the client that
// named it.
func (d *drill) cleanCgroup(ctx context.Context, say func(string, ...any)) {
	if d.parent == "" {
		return
	}
	if d.systemd {
		_, _ = program(ctx, "systemctl", "stop", d.parent) // it is looked for below
	}
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		groups, err := d.cgroups()
		if err != nil {
			say("cgroups, perhaps, which are named %s: %v", d.name, err)
			return
		}
		if len(groups) == 0 {
			return
		}
		for _, g := range groups {
			_ = unix.Rmdir(g) // a process in it may take a moment to end
		}
		select {
		case <-ctx.Done():
			for _, g := range groups {
				say("the cgroup %s, which find %s -depth -type d -delete removes once its pod is gone", g, g)
			}
			return
		case <-t.C:
		}
	}
}

// cgroups returns the cgroups above the drill's pods, one for each hierarchy. berth may itself be
// in a cgroup, and the drill's below that.
func (d *drill) cgroups() ([]string, error) {
	var found []string
	name := filepath.Base(d.parent)
	for _, pattern := range []string{"/sys/fs/cgroup/" + name, "/sys/fs/cgroup/*/" + name, "/sys/fs/cgroup/*/*/" + name} {
		groups, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		found = append(found, groups...)
	}
	return found, nil
}
