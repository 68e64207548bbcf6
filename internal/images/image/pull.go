// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type pullKey struct {
	ref   string
	creds Credentials
	pass  Pass
	// snapshotter is the one that the image is unpacked in; "" for that of most images.
	snapshotter string
}

// Pull makes sure that the image is here in the version that the registry has now, and returns its
// ID. While an archive that is known to have the image is imported, the pull waits for that, and
// then fetches the missing parts. ErrPermissionDenied: the policy does not let the image in.
func (s *Service) Pull(ctx context.Context, ref string, auth *runtimeapi.AuthConfig, who Caller) (string, error) {
	name, err := Normalize(ref)
	if err != nil {
		return "", err
	}
	pass, err := s.judge(name, who)
	if err != nil {
		return "", fmt.Errorf("pull %s: %w", name, err)
	}
	creds, err := credentials(name, auth)
	if err != nil {
		return "", fmt.Errorf("pull %s: %w", name, err)
	}
	key := pullKey{name, creds, pass, who.Snapshotter}
	id, err := s.pulls.join(ctx, key, who.Name, func(ctx context.Context, cancel context.CancelCauseFunc) (string, error) {
		ctx, t := s.transfers.begin(ctx, KindPull, name, key)
		defer t.end()
		if err := s.awaitArchive(ctx, t); err != nil {
			return "", because(ctx, err)
		}
		began := time.Now()
		id, err := Contain(s.cfg.Logger, s.cfg.Panicked, name, func() (string, error) { return s.pull(ctx, cancel, t) })
		if s.cfg.Pulled != nil {
			s.cfg.Pulled(Pulled{
				Took:  time.Since(began),
				Bytes: t.received(),
				Err:   err,
			})
		}
		return id, err
	})
	if err != nil {
		return "", fmt.Errorf("pull %s: %w", name, redact(err))
	}
	return id, nil
}

func (s *Service) pull(ctx context.Context, cancel context.CancelCauseFunc, t *transfer) (string, error) {
	p := newPatience(s.cfg.PullTimeout, s.cfg.UnpackTimeout, s.cfg.MinBytesPerMinute, cancel)
	defer p.end()
	w := &watch{transfer: t, patience: p}
	st, err := s.backend.Pull(ctx, t.key.ref, t.key.creds, t.key.snapshotter, w)
	if w.refused != nil {
		err = refusal(w.refused) // the backend's translation knows other errors
	}
	if err == nil {
		err = s.known(ctx, st)
	}
	if err != nil {
		return "", because(ctx, err)
	}
	return st.ID, nil
}

// watch is the sink of a pull: it passes the progress on to the list of transfers, and to the
// patience that ends a pull without progress.
type watch struct {
	transfer *transfer
	patience *patience
	refused  error // why the policy does not let the image in
}

// Received implements Sink.
func (w *watch) Received(n int) {
	w.transfer.bytes(n)
	w.patience.bytes(n)
}

// Needs implements Sink.
func (w *watch) Needs(blobs []Blob) { w.transfer.needs(blobs) }

// Layer implements Sink.
func (w *watch) Layer(step LayerStep) {
	unpacking, queued := step.change()
	w.transfer.layers(unpacking, queued)
	w.patience.change(unpacking, queued)
}

// Resolved implements Sink.
func (w *watch) Resolved(ctx context.Context, target ocispec.Descriptor, from Registry) error {
	if w.transfer.key.pass == nil {
		return nil
	}
	w.refused = w.transfer.key.pass.Pass(ctx, w.transfer.key.ref, target, from)
	return w.refused
}

// because puts the reason why ctx was cancelled before an error that came of it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}
