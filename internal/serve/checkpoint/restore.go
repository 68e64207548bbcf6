// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// removeTimeout bounds one attempt to remove a pod whose restore failed.
const removeTimeout = time.Minute

// Maker makes and removes pods, as CRI's calls do.
type Maker interface {
	// RunNotedPodSandbox makes a sandbox. Before it makes anything, it calls note with the ID that
	// the sandbox is to have; with an error of note, nothing is made.
	RunNotedPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string, note func(id string) error) (string, error)
	CreateContainer(ctx context.Context, podID string, config *runtimeapi.ContainerConfig) (string, error)
	RemovePodSandbox(ctx context.Context, id string) error
	// ListPodSandbox answers from memory.
	ListPodSandbox(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox
}

// RestorerConfig holds the settings and ports of a Restorer.
type RestorerConfig struct {
	// Dir is a directory of the Restorer's own. It is made when it is needed.
	Dir  string
	Pods Maker
	// ImageID is the ID of the image on this node that a reference names, or "".
	ImageID func(ref string) string
	Logger  *slog.Logger
}

// Restorer makes pods from checkpoints of pods. Its methods may be called by any number of
// goroutines.
type Restorer struct {
	cfg  RestorerConfig
	half *unfinished // a file for each pod that is being made, by the hash of its name
}

// NewRestorer makes a Restorer. Run has to run for it, once the records are restored, to remove the
// pods that an earlier berth has left half-made.
func NewRestorer(cfg RestorerConfig) *Restorer {
	r := &Restorer{cfg: cfg}
	r.half = newUnfinished(unfinishedConfig{
		dir:    cfg.Dir,
		undo:   r.remove,
		undone: "a pod whose restore was cut off is removed",
		stays:  "a pod whose restore failed may still be there",
		logger: cfg.Logger,
	})
	return r
}

// Run removes the pods that a berth which was killed had made in part, and those that this berth
// could not remove. It tries until it succeeds, and ends with ctx.
func (r *Restorer) Run(ctx context.Context) error { return r.half.run(ctx) }

// RestorePod makes a sandbox, and in it a container for each that a checkpoint of a pod has, which
// are CREATED: the start of each restores its processes. The context must have a deadline. On an
// error nothing of the pod is left. The error is ErrInvalidArgument if the request does not agree
// with the checkpoint, or if the directory does not hold a checkpoint.
func (r *Restorer) RestorePod(ctx context.Context, req *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	resp, err := r.restorePod(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("restore pod %s from %s: %w", req.GetConfig().GetMetadata().GetName(), req.GetCheckpointPath(), err)
	}
	return resp, nil
}

func (r *Restorer) restorePod(ctx context.Context, req *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	if err := checkCall(ctx, req.GetOptions()); err != nil {
		return nil, err
	}
	configs, err := r.check(ctx, req)
	if err != nil {
		return nil, err
	}
	name := req.GetConfig().GetMetadata()
	key := keyOf(name)
	if !r.half.enter(key) {
		return nil, fmt.Errorf("another restore of it is under way: %w", errdefs.ErrFailedPrecondition)
	}
	defer r.half.leave(key)
	if p := r.find(name); p != nil {
		return nil, fmt.Errorf("there is a pod of that name, %s; remove it first: %w", p.GetId(), errdefs.ErrAlreadyExists)
	}
	// It is not cut off, because a half-made sandbox would have to be removed while it is still
	// being made.
	id, err := r.cfg.Pods.RunNotedPodSandbox(context.WithoutCancel(ctx), req.GetConfig(), req.GetRuntimeHandler(),
		func(id string) error { return r.mark(key, id) })
	if err != nil { // nothing of it is left
		return nil, errors.Join(err, r.unmark(key))
	}
	resp := &runtimeapi.RestorePodResponse{PodSandboxId: id}
	if err = ctx.Err(); err == nil {
		resp.RestoredContainers, err = r.containers(ctx, id, configs)
	}
	if err == nil {
		err = ctx.Err() // the caller would not learn what exists now
	}
	if err == nil {
		err = r.unmark(key)
	}
	if err != nil {
		return nil, errors.Join(err, r.remove(context.WithoutCancel(ctx), key))
	}
	return resp, nil
}

// containers makes the containers of a pod.
func (r *Restorer) containers(ctx context.Context, podID string, configs []*runtimeapi.ContainerConfig) ([]*runtimeapi.RestoredContainer, error) {
	made := make([]*runtimeapi.RestoredContainer, 0, len(configs))
	for _, c := range configs {
		id, err := r.cfg.Pods.CreateContainer(ctx, podID, c)
		if err != nil {
			return nil, err
		}
		made = append(made, &runtimeapi.RestoredContainer{Name: c.GetMetadata().GetName(), ContainerId: id})
	}
	return made, nil
}

// check compares a request with the checkpoint, before anything is made. It returns the
// configurations of the containers, whose images are their archives.
func (r *Restorer) check(ctx context.Context, req *runtimeapi.RestorePodRequest) ([]*runtimeapi.ContainerConfig, error) {
	dir := req.GetCheckpointPath()
	if err := checkDir("checkpoint_path", dir); err != nil {
		return nil, err
	}
	said, err := readPod(dir)
	if err != nil {
		return nil, err
	}
	if err := sameNamespaces(said.Config.message, req.GetConfig()); err != nil {
		return nil, err
	}
	asked := map[string]*runtimeapi.ContainerConfig{}
	for _, c := range req.GetContainerConfigs() {
		name := c.GetMetadata().GetName()
		if name == "" {
			return nil, invalid("container_configs: one has no metadata.name")
		}
		if asked[name] != nil {
			return nil, invalid("container_configs: %q is there twice", name)
		}
		asked[name] = c
	}
	archives := map[string]string{} // by the name of the container
	for _, c := range said.Containers {
		was := c.Config.message
		name := was.GetMetadata().GetName()
		archive := filepath.Join(dir, c.Archive)
		switch {
		case c.Archive == "" || filepath.Base(c.Archive) != c.Archive || archives[name] != "":
			return nil, invalid("%s: the archive of container %q is %q, or it is there twice", podFile, name, c.Archive)
		case asked[name] == nil:
			return nil, invalid("container_configs: %q is missing, which the checkpoint has", name)
		}
		archives[name] = archive
		if err := r.compare(ctx, c.ID, archive, was, asked[name]); err != nil {
			return nil, fmt.Errorf("container %q: %w", name, err)
		}
	}
	configs := make([]*runtimeapi.ContainerConfig, 0, len(asked))
	for _, c := range req.GetContainerConfigs() {
		name := c.GetMetadata().GetName()
		if archives[name] == "" {
			return nil, invalid("container_configs: the checkpoint has no container %q; it has %q", name, slices.Sorted(maps.Keys(archives)))
		}
		c = proto.CloneOf(c)
		if c.Image == nil {
			c.Image = &runtimeapi.ImageSpec{}
		}
		c.Image.Image = archives[name]
		configs = append(configs, c)
	}
	if len(configs) == 0 {
		return nil, invalid("container_configs: there is none")
	}
	return configs, nil
}

// sameNamespaces refuses a pod whose namespaces are others than those that its processes were in.
func sameNamespaces(was, asked *runtimeapi.PodSandboxConfig) error {
	w, a := was.GetLinux().GetSecurityContext().GetNamespaceOptions(), asked.GetLinux().GetSecurityContext().GetNamespaceOptions()
	for _, ns := range []struct {
		field      string
		was, asked runtimeapi.NamespaceMode
	}{
		{"network", w.GetNetwork(), a.GetNetwork()},
		{"pid", w.GetPid(), a.GetPid()},
		{"ipc", w.GetIpc(), a.GetIpc()},
	} {
		if ns.was != ns.asked {
			return invalid("config: %s is %s, and was %s in the checkpoint", ns.field, ns.asked, ns.was)
		}
	}
	return nil
}

// compare refuses a request for a container that describes another process than the checkpoint
// does, where it specifies one.
func (r *Restorer) compare(ctx context.Context, id, archive string, was, asked *runtimeapi.ContainerConfig) error {
	said, err := inspect(ctx, archive)
	switch {
	case errdefs.IsNotFound(err):
		return invalid("%s, its archive, is not in the checkpoint", filepath.Base(archive))
	case err != nil:
		return fmt.Errorf("%s: %w", filepath.Base(archive), err)
	case said.ID != id:
		return invalid("%s is the archive of container %q, and not of %s", filepath.Base(archive), said.ID, id)
	}
	if ref := asked.GetImage().GetImage(); !r.sameImage(ref, said) {
		return invalid("image %q is not known to be %s, which the checkpoint was made with; if it is another name of it, pull it first",
			ref, cmp.Or(said.RootfsImageName, said.RootfsImageRef))
	}
	for _, f := range []struct {
		name string
		same bool
	}{
		{"command", slices.Equal(was.GetCommand(), asked.GetCommand())},
		{"args", slices.Equal(was.GetArgs(), asked.GetArgs())},
		{"working_dir", was.GetWorkingDir() == asked.GetWorkingDir()},
		{"envs", maps.Equal(environment(was), environment(asked))},
		{"tty", was.GetTty() == asked.GetTty()},
		// CRIU restores users, groups, capabilities, filters and labels as they were.
		{"linux.security_context", proto.Equal(security(was), security(asked))},
	} {
		if !f.same {
			return invalid("%s differs from that of the process in the checkpoint, and cannot be changed", f.name)
		}
	}
	return nil
}

// sameImage reports whether a reference names the image that a checkpoint was made with.
func (r *Restorer) sameImage(ref string, said config) bool {
	exact := cmp.Or(said.RootfsImageRef, said.RootfsImageName)
	if ref == "" || ref == said.RootfsImageName || ref == exact {
		return ref != ""
	}
	id := r.cfg.ImageID(ref)
	return id != "" && id == r.cfg.ImageID(exact)
}

func security(c *runtimeapi.ContainerConfig) *runtimeapi.LinuxContainerSecurityContext {
	return cmp.Or(c.GetLinux().GetSecurityContext(), &runtimeapi.LinuxContainerSecurityContext{})
}

func environment(c *runtimeapi.ContainerConfig) map[string]string {
	all := map[string]string{}
	for _, kv := range c.GetEnvs() {
		all[kv.GetKey()] = string(kv.GetValue())
	}
	return all
}

// keyOf returns the name of the file that notes a pod while it is being made.
func keyOf(m *runtimeapi.PodSandboxMetadata) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%d", m.GetNamespace(), m.GetName(), m.GetUid(), m.GetAttempt()))
	return hex.EncodeToString(sum[:])
}

// find returns the sandbox of a name, or nil. A name has one at most.
func (r *Restorer) find(m *runtimeapi.PodSandboxMetadata) *runtimeapi.PodSandbox {
	for _, p := range r.cfg.Pods.ListPodSandbox(nil) {
		if proto.Equal(p.GetMetadata(), m) {
			return p
		}
	}
	return nil
}

// halfMade is the note of a pod that is being made.
type halfMade struct {
	ID string `json:"id"` // of its sandbox
}

// mark notes a pod that is about to be made, so that its remains are removed after a kill.
func (r *Restorer) mark(key, id string) error {
	text, err := json.Marshal(halfMade{ID: id})
	return errors.Join(err, os.MkdirAll(r.cfg.Dir, 0o700), os.WriteFile(r.half.note(key), text, 0o600))
}

func (r *Restorer) unmark(key string) error {
	if err := os.Remove(r.half.note(key)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// remove removes a pod that was made in part. If it cannot, Run tries again. A pod of the same name
// with another ID was made by another client, and a note that was cut off has no pod yet.
func (r *Restorer) remove(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	text, err := os.ReadFile(r.half.note(key))
	if err != nil {
		return err
	}
	var made halfMade
	if err := json.Unmarshal(text, &made); err != nil || made.ID == "" {
		return r.unmark(key)
	}
	if err := r.cfg.Pods.RemovePodSandbox(ctx, made.ID); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("the pod may stay until its removal succeeds, which berth tries again: %w", err)
	}
	return r.unmark(key)
}
