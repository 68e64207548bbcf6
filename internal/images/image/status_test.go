// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const oneTag = "docker.io/library/one:latest"

var oneDigest = "docker.io/library/one@" + manifestID.String()

// A pod showed an image ID as its image, and whoever waited for a changed image waited for ever. A
// tag that was moved to another image does not name the first one any more.
//
// A container that was created as one:v2 was shown as one:latest, which its image is called as
// well.
func TestAnImageIsNamedAsItWasAskedForElseByItsFirstTagElseItsDigestElseItsID(t *testing.T) {
	f := newFake()
	s := New(f, Config{Logger: slog.New(slog.DiscardHandler)})
	other := "sha256:" + strings.Repeat("b", 64)
	named := func(when, id, asked, want string) {
		t.Helper()
		if got := s.Name(id, asked); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	expect := func(when, id, want string) {
		t.Helper()
		named(when, id, imageID, want)
	}
	set := func(name, id string) {
		t.Helper()
		f.names[name] = stored(name, id)
		if id == "" {
			delete(f.names, name)
		}
		if err := s.refreshName(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	expect("unknown", imageID, imageID)
	set(imageID, imageID)
	expect("ID alone", imageID, imageID)
	set(oneDigest, imageID)
	expect("digest", imageID, oneDigest)
	set(oneTag, imageID)
	set("docker.io/library/one:v2", imageID)
	expect("two tags", imageID, oneTag)
	named("two tags, asked for by the other", imageID, "one:v2", "docker.io/library/one:v2")
	named("asked for by the digest", imageID, oneDigest, oneDigest)
	named("asked for by a name of another image", imageID, "two:v2", oneTag)
	set(other, other)
	set(oneTag, other)
	expect("the tag was moved", imageID, "docker.io/library/one:v2")
	expect("to the other", other, oneTag)
	set("docker.io/library/one:v2", "")
	expect("the other tag was removed", imageID, oneDigest)
	set(oneDigest, "")
	set(imageID, "")
	expect("the image was removed", imageID, imageID)
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("all read again", other, oneTag)
	if len(s.loaded.mu.index.byID) != 1 || len(s.loaded.mu.index.names) != 1 {
		t.Errorf("left: %v", s.loaded.mu.index)
	}
}

// An answer of the store that is older than the one in memory took its place: an image that was
// pulled while all were read anew was gone.
func TestAnOlderAnswerDoesNotReplaceANewerOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &slowList{fake: newFake(), release: make(chan struct{})}
		s := New(f, Config{Logger: slog.New(slog.DiscardHandler)})
		done := make(chan error, 2)
		go func() { done <- s.Refresh(t.Context()) }()
		synctest.Wait()
		go func() {
			f.put(stored(oneTag, imageID))
			done <- s.refreshName(t.Context(), oneTag)
		}()
		synctest.Wait()
		close(f.release)
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if _, err := s.Resolve(oneTag); err != nil {
			t.Error(err)
		}
	})
}

// slowList lists what there was when it was called, once it is released.
type slowList struct {
	*fake
	release chan struct{}
}

func (f *slowList) List(ctx context.Context) ([]Stored, error) {
	all, err := f.fake.List(ctx)
	<-f.release
	return all, err
}

// While usage is measured, which may take long, images that others pull appear.
func TestMeasuringDelaysNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &slowUsage{fake: newFake()}
		s := New(f, Config{Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Run(ctx) }()
		defer func() { cancel(); <-done }()
		synctest.Wait()
		f.put(stored("r.example/new:1", imageID))
		s.Changed("r.example/new:1")
		synctest.Wait()
		if _, err := s.Resolve("r.example/new:1"); err != nil {
			t.Error(err)
		}
	})
}

// slowUsage is an image store whose usage takes until its caller gives up.
type slowUsage struct{ *fake }

func (f *slowUsage) Usage(ctx context.Context) (Usage, error) {
	<-ctx.Done()
	return Usage{}, ctx.Err()
}

func TestUsageOfImagesAndOfContainersIsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := service(t, newFake())
		fs := s.FsInfo(t.Context())
		if i, c := fs.ImageFilesystems[0].UsedBytes.Value, fs.ContainerFilesystems[0].UsedBytes.Value; i != 1 || c != 2 {
			t.Errorf("images %d, containers %d", i, c)
		}
	})
}

// At rest it walked the writable layers of all containers twice a minute. PROPERTIES 80.
func TestUsageThatNobodyAsksForIsSeldomMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := service(t, newFake())
		age := func(after time.Duration) time.Duration {
			time.Sleep(after)
			synctest.Wait()
			return time.Since(time.Unix(0, s.FsInfo(t.Context()).GetImageFilesystems()[0].GetTimestamp()))
		}
		age(0)
		if at := age(2 * restInterval); at <= usageInterval || at > restInterval+usageInterval {
			t.Errorf("at rest it is %v old", at)
		}
		if at := age(usageInterval); at > usageInterval {
			t.Errorf("it is %v old after a call", at)
		}
	})
}

// A kubelet asks for the usage when it starts, and does not start when that is an error.
func TestUsageThatWasNotMeasuredIsLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(&slowUsage{fake: newFake()}, Config{Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Run(ctx) }()
		defer func() { cancel(); <-done }()
		if fs := s.FsInfo(t.Context()); len(fs.GetImageFilesystems())+len(fs.GetContainerFilesystems()) > 0 {
			t.Errorf("got %v", fs)
		}
	})
}

// The garbage collection of the kubelet leaves what is pinned. As CRI has it, somebody who asks for
// the removal of a pinned image gets it.
func TestTheImageOfSandboxesIsPinned(t *testing.T) {
	f := newFake()
	s := New(f, Config{Logger: slog.New(slog.DiscardHandler), Needed: []string{"pause", "not a reference"}})
	pinned := func() (ids []string) {
		t.Helper()
		list, err := s.List(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list {
			if i.GetPinned() {
				ids = append(ids, i.GetId())
			}
		}
		return ids
	}
	const other = "sha256:other"
	f.put(stored("docker.io/library/app:1", other))
	if err := s.Refresh(t.Context()); err != nil || len(pinned()) != 0 {
		t.Fatalf("pinned: %q %v", pinned(), err)
	}
	pause := stored("docker.io/library/pause:latest", imageID)
	f.put(pause)
	if err := s.known(t.Context(), pause); err != nil {
		t.Fatal(err)
	}
	if got := pinned(); len(got) != 1 || got[0] != imageID {
		t.Errorf("pinned when it came: %q", got)
	}
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := pinned(); len(got) != 1 || got[0] != imageID {
		t.Errorf("pinned when all are read: %q", got)
	}
	if err := s.Remove(t.Context(), "pause"); err != nil || len(pinned()) != 0 {
		t.Errorf("removed: %q %v", pinned(), err)
	}
}
