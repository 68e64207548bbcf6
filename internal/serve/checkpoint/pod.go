// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
)

// podFile is the description of a pod in the directory of its checkpoint. It gets its name last: a
// directory without it holds no checkpoint.
const podFile = "pod.json"

// podVersion is the version of the layout of such a directory.
const podVersion = 1

// podConfig is podFile. The configurations are those that the pod and its containers were requested
// with.
type podConfig struct {
	Version        int                                  `json:"version"`
	ID             string                               `json:"id"`
	RuntimeHandler string                               `json:"runtimeHandler"`
	CheckpointTime time.Time                            `json:"checkpointedTime"`
	Config         inJSON[*runtimeapi.PodSandboxConfig] `json:"config"`
	Containers     []containerConfig                    `json:"containers"`
}

type containerConfig struct {
	ID string `json:"id"`
	// the name of its archive in the directory
	Archive string                              `json:"archive"`
	Config  inJSON[*runtimeapi.ContainerConfig] `json:"config"`
}

// inJSON is a message of CRI in podFile. Fields from a newer berth that this one does not know are
// ignored.
type inJSON[M proto.Message] struct{ message M }

func (j inJSON[M]) MarshalJSON() ([]byte, error) { return protojson.Marshal(j.message) }

func (j *inJSON[M]) UnmarshalJSON(text []byte) error {
	m, _ := j.message.ProtoReflect().New().Interface().(M) // it is of that type
	j.message = m
	return (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, m)
}

// isThere reports whether there was a message to read.
func (j inJSON[M]) isThere() bool { return j.message.ProtoReflect().IsValid() }

// CheckpointPod writes a checkpoint of containers of one pod into an empty directory: an archive of
// each, all of the same instant, and podFile. The containers go on. The context must have a
// deadline. The error is ErrInvalidArgument for an invalid request, ErrNotFound if there is no such
// pod, ErrFailedPrecondition if a container does not run or belongs to another pod, if the
// directory is not empty, or if CRIU is not installed. The directory is as it was then.
func (s *Service) CheckpointPod(ctx context.Context, req *runtimeapi.CheckpointPodRequest) error {
	id := req.GetPodSandboxId()
	p, err := s.cfg.Pods.Target(id)
	if err == nil && p.ID != p.PodID {
		err = fmt.Errorf("it is a container: %w", errdefs.ErrNotFound)
	}
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("checkpoint pod %q: %w", id, errdefs.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("checkpoint pod: %w", err)
	}
	if err := s.checkpointPod(ctx, p, req); err != nil {
		return fmt.Errorf("checkpoint pod %s: %w", p.ID, err)
	}
	return nil
}

func (s *Service) checkpointPod(ctx context.Context, p pod.Target, req *runtimeapi.CheckpointPodRequest) (err error) {
	if err := checkCall(ctx, req.GetOptions()); err != nil {
		return err
	}
	dir, err := openEmpty(req.GetOutputPath())
	if err != nil {
		return err
	}
	defer dir.Close()
	// Where nothing can be written, no container is paused for it.
	probe, err := writeUnnamed(dir, podFile, func(io.Writer) error { return nil })
	if err != nil {
		return fmt.Errorf("output_path: %w", err)
	}
	_ = probe.Close()
	if !p.Running {
		return fmt.Errorf("it is not ready: %w", errdefs.ErrFailedPrecondition)
	}
	targets, err := s.membersOf(p, req.GetContainerIds())
	if err != nil {
		return err
	}
	end, err := s.cfg.Begin(ctx, p, req.GetOutputPath())
	if err != nil {
		return err
	}
	defer func() { end(err) }()
	return s.capture(ctx, targets, func(ctx context.Context, dumps []dump) error {
		described, err := describePod(p, dumps)
		if err != nil {
			return err
		}
		return publishPod(ctx, dir, dumps, described)
	})
}

// checkCall makes the checks that the calls about pods have in common.
func checkCall(ctx context.Context, options map[string]string) error {
	if _, ok := ctx.Deadline(); !ok {
		return invalid("the call has no deadline; set one")
	}
	for k := range options {
		return invalid("options: %q is not an option of berth's, which has none", k)
	}
	return nil
}

// checkDir refuses a path that cannot be that of a directory.
func checkDir(field, path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return invalid("%s %q is not an absolute path without . and ..", field, path)
	}
	st, err := os.Stat(path)
	if err != nil {
		return invalid("%s: %v", field, err)
	}
	if !st.IsDir() {
		return invalid("%s %s is not a directory", field, path)
	}
	return nil
}

// openEmpty opens the directory for a checkpoint.
func openEmpty(path string) (*os.File, error) {
	if err := checkDir("output_path", path); err != nil {
		return nil, err
	}
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, invalid("output_path: %v", err)
	}
	names, err := dir.Readdirnames(1)
	if err == nil {
		err = fmt.Errorf("output_path %s is not empty: it has %q: %w", path, names[0], errdefs.ErrFailedPrecondition)
	}
	if !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// membersOf returns the containers of a pod that a request names.
func (s *Service) membersOf(p pod.Target, ids []string) ([]pod.Target, error) {
	if len(ids) == 0 {
		return nil, invalid("container_ids: no container is named")
	}
	targets := make([]pod.Target, 0, len(ids))
	for _, id := range ids {
		t, err := s.cfg.Pods.Target(id)
		switch {
		case errdefs.IsNotFound(err) || err == nil && t.ID == t.PodID:
			return nil, fmt.Errorf("container %q: %w", id, errdefs.ErrNotFound)
		case err != nil:
			return nil, err
		case t.PodID != p.ID:
			return nil, of(t, fmt.Errorf("it belongs to pod %s: %w", t.PodID, errdefs.ErrFailedPrecondition))
		case slices.ContainsFunc(targets, func(o pod.Target) bool { return o.ID == t.ID }):
			return nil, invalid("container_ids: container %s is named twice", t.ID)
		}
		targets = append(targets, t)
	}
	return targets, nil
}

// describePod returns the content of podFile. The image of a container that was itself restored is
// the path of an archive in its configuration: its name is in its status.
func describePod(p pod.Target, dumps []dump) ([]byte, error) {
	d := podConfig{
		Version:        podVersion,
		ID:             p.ID,
		RuntimeHandler: p.Handler.Name,
		CheckpointTime: time.Now().UTC(),
		Config:         inJSON[*runtimeapi.PodSandboxConfig]{p.PodConfig},
	}
	for _, dumped := range dumps {
		c := proto.CloneOf(dumped.target.Config)
		c.Image.Image = dumped.status.GetImage().GetImage()
		d.Containers = append(d.Containers, containerConfig{
			ID:      dumped.target.ID,
			Archive: dumped.archive(),
			Config:  inJSON[*runtimeapi.ContainerConfig]{c},
		})
	}
	return json.Marshal(d)
}

// archive returns the name of the archive of a dump in the directory of a pod's checkpoint.
func (d dump) archive() string { return d.target.ID + ".tar" }

// publishPod writes the archives and podFile into dir. They get their names when all of them are on
// disk, and podFile the last.
func publishPod(ctx context.Context, dir *os.File, dumps []dump, described []byte) (err error) {
	files := make([]unnamed, 0, len(dumps)+1)
	defer func() {
		for _, f := range files {
			_ = f.Close() // it was synced
		}
	}()
	add := func(name string, write func(io.Writer) error) error {
		f, err := writeUnnamed(dir, name, write)
		if err == nil {
			files = append(files, f)
		}
		return err
	}
	for _, d := range dumps {
		if err := add(d.archive(), d.packer(ctx)); err != nil {
			return of(d.target, err)
		}
	}
	if err := add(podFile, func(w io.Writer) error { _, err := w.Write(described); return err }); err != nil {
		return err
	}
	named := 0
	for err == nil && named < len(files) {
		if err = files[named].link(dir); err == nil {
			named++
		}
	}
	if err == nil {
		err = dir.Sync()
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		for _, f := range files[:named] {
			err = errors.Join(err, unix.Unlinkat(int(dir.Fd()), f.name, 0))
		}
	}
	return err
}

// maxPodFile bounds podFile, which has a configuration of each container.
const maxPodFile = 64 << 20

// readPod reads podFile in a directory, which root alone may have written.
func readPod(dir string) (podConfig, error) {
	var d podConfig
	path := filepath.Join(dir, podFile)
	f, size, err := open(path)
	if errdefs.IsNotFound(err) {
		return d, invalid("it has no %s: it is not the checkpoint of a pod, or was never completed", podFile)
	}
	if err != nil {
		return d, fmt.Errorf("%s: %w", podFile, err)
	}
	defer f.Close()
	if size > maxPodFile {
		return d, invalid("%s has more than %d bytes", podFile, maxPodFile)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxPodFile))
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(b, &d); err != nil {
		return d, invalid("%s: %v", podFile, err)
	}
	if d.Version != podVersion {
		return d, invalid("%s is of version %d, and this berth reads version %d", podFile, d.Version, podVersion)
	}
	if !d.Config.isThere() || slices.ContainsFunc(d.Containers, func(c containerConfig) bool { return !c.Config.isThere() }) {
		return d, invalid("%s lacks a configuration", podFile)
	}
	return d, nil
}

// ReadPod returns the request that makes the pod of a checkpoint once more, as it was asked for.
// The error is ErrInvalidArgument for a directory that has no checkpoint, ErrFailedPrecondition
// when others than root may have written it.
func ReadPod(dir string) (*runtimeapi.RestorePodRequest, error) {
	said, err := readPod(dir)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", dir, err)
	}
	req := &runtimeapi.RestorePodRequest{
		CheckpointPath: dir,
		Config:         said.Config.message,
		RuntimeHandler: said.RuntimeHandler,
	}
	for _, c := range said.Containers {
		req.ContainerConfigs = append(req.ContainerConfigs, c.Config.message)
	}
	return req, nil
}
