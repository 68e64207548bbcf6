// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type pullKey struct {
	ref   string
	creds Credentials
}

// Pull makes sure that the image is here in the version that the registry has now, and returns its
// ID. who is what the caller is called in the list of transfers: the pod that the pull is for, as
// NAMESPACE/NAME, or another word. While an archive that is known to have the image is imported,
// the pull waits for that, and fetches what is missing then.
func (s *Service) Pull(ctx context.Context, ref string, auth *runtimeapi.AuthConfig, who string) (string, error) {
	name, err := Normalize(ref)
	if err != nil {
		return "", err
	}
	creds, err := credentials(name, auth)
	if err != nil {
		return "", fmt.Errorf("pull %s: %w", name, err)
	}
	key := pullKey{name, creds}
	id, err := s.pulls.join(ctx, key, who, func(ctx context.Context, cancel context.CancelCauseFunc) (string, error) {
		t := s.transfers.begin(KindPull, name, key)
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
	st, err := s.backend.Pull(ctx, t.key.ref, t.key.creds, Watch{
		Bytes: func(n int) {
			t.bytes(n)
			p.bytes(n)
		},
		Unpacking: func() func() {
			done := p.unpacking()
			t.layers(1, 0)
			return func() {
				t.layers(-1, 0)
				done()
			}
		},
		Waiting: func() func() {
			over := p.waiting()
			t.layers(-1, 1)
			return func() {
				t.layers(1, -1)
				over()
			}
		},
		Needs: t.needs,
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
