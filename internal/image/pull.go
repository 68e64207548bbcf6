// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type pullKey struct {
	ref   string
	creds Credentials
}

// Pull makes sure that the image is here in the version that the registry has now, and returns its
// ID.
func (s *Service) Pull(ctx context.Context, ref string, auth *runtimeapi.AuthConfig) (string, error) {
	name, err := Normalize(ref)
	if err != nil {
		return "", err
	}
	creds, err := credentials(name, auth)
	if err != nil {
		return "", fmt.Errorf("pull %s: %w", name, err)
	}
	id, err := s.pulls.join(ctx, pullKey{name, creds}, func(ctx context.Context, cancel context.CancelCauseFunc) (string, error) {
		return Contain(s.cfg.Logger, s.cfg.Panicked, name, func() (string, error) {
			return s.pull(ctx, cancel, pullKey{name, creds})
		})
	})
	if err != nil {
		return "", fmt.Errorf("pull %s: %w", name, redact(err))
	}
	return id, nil
}

func (s *Service) pull(ctx context.Context, cancel context.CancelCauseFunc, key pullKey) (string, error) {
	p := newPatience(s.cfg.PullTimeout, s.cfg.UnpackTimeout, s.cfg.MinBytesPerMinute, cancel)
	defer p.end()
	needs, end := s.progress.begin(key.ref)
	defer end()
	st, err := s.backend.Pull(ctx, key.ref, key.creds, Watch{
		Bytes:     p.bytes,
		Unpacking: p.unpacking,
		Waiting:   p.waiting,
		Needs:     needs,
	})
	if err == nil {
		err = s.keep(ctx, st)
	}
	if err != nil {
		return "", because(ctx, err)
	}
	return st.ID, nil
}

// because puts the reason why ctx was cancelled before an error that came of it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}
