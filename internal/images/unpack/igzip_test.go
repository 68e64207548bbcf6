// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/test/testimage"
)

// gzipOf returns the gzip of bytes, in members of at most that size.
func gzipOf(t *testing.T, b []byte, most int) []byte {
	t.Helper()
	var z bytes.Buffer
	for part := range slices.Chunk(b, most) {
		w := gzip.NewWriter(&z)
		_, err := w.Write(part)
		try(t, errors.Join(err, w.Close()))
	}
	return z.Bytes()
}

// largeLayer is the tar of a layer that is large enough for igzip.
func largeLayer(t *testing.T) []byte {
	t.Helper()
	body := make([]byte, igzipFrom+512<<10)
	_, _ = rand.Read(body[:igzipFrom+256<<10])
	return tarOf(t, testimage.File{Name: "file", Mode: 0o644, Body: body})
}

// A host without igzip, and one whose igzip is none, unpack what a host with it does, and refuse
// what that refuses: a layer that was cut was whole.
func TestALayerIsTheSameWithAndWithoutIgzip(t *testing.T) {
	plain := largeLayer(t)
	whole := gzipOf(t, plain, len(plain))
	damaged, checksum := slices.Clone(whole), slices.Clone(whole)
	damaged[len(damaged)-100<<10] ^= 0x55
	checksum[len(checksum)-6] ^= 1
	members := gzipOf(t, plain, 1<<20)
	paths := []string{os.Getenv("PATH"), t.TempDir()}
	for name, program := range map[string]string{"a script, which it cannot run": "#!/bin/sh\nexec cat\n", "another program": ""} {
		dir := filepath.Join(t.TempDir(), name)
		paths = append(paths, dir)
		try(t, os.Mkdir(dir, 0o700))
		if program != "" {
			try(t, os.WriteFile(filepath.Join(dir, "igzip"), []byte(program), 0o700))
		} else {
			try(t, os.Symlink("/bin/echo", filepath.Join(dir, "igzip")))
		}
	}
	for n, path := range paths {
		t.Setenv("PATH", path)
		for name, c := range map[string]struct {
			layer []byte
			right bool
		}{
			"whole":                       {whole, true},
			"of many members":             {members, true},
			"not compressed at all":       {plain, true},
			"of zstd, called gzip":        {zstdOf(t, plain), true},
			"cut":                         {whole[:len(whole)/2], false},
			"without the last byte":       {whole[:len(whole)-1], false},
			"without the last member":     {members[:len(members)-20], false},
			"with a wrong byte":           {damaged, false},
			"with a wrong sum at the end": {checksum, false},
		} {
			if n > 1 && name != "whole" {
				continue // Go decompresses it, as without igzip
			}
			desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Size: max(igzipFrom, int64(len(c.layer)))}
			got, err := Applier{Layers: &blob{b: c.layer}}.Into(t.Context(), desc, Target{Dir: t.TempDir()})
			if c.right && (err != nil || got.Digest != digest.FromBytes(plain)) || !c.right && err == nil {
				t.Errorf("PATH %s, a layer %s: %v %v", path, name, got.Digest, err)
			}
		}
	}
}

// PROPERTIES 12: a layer is read by igzip with no more rights than it needs. If that is killed, the
// layer is an error, and if the call ends, both processes do.
func TestIgzipIsConfinedAndEndsWithItsLayer(t *testing.T) {
	if findIgzip(t.Context(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Size: igzipFrom}) == "" {
		t.Fatal("igzip is missing: install Debian's package isal")
	}
	whole := gzipOf(t, largeLayer(t), 1<<30)
	over := errors.New("enough")
	for want, does := range map[string]func(pid int, cancel context.CancelCauseFunc) error{
		"igzip was ended: signal: killed": func(pid int, _ context.CancelCauseFunc) error { return unix.Kill(pid, unix.SIGKILL) },
		over.Error():                      func(_ int, cancel context.CancelCauseFunc) error { cancel(over); return nil },
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		l := &blob{b: whole}
		var pid int
		reads := 0
		l.reading = func() {
			if reads++; reads == 2 { // the first bytes are on their way
				pid = igzipOf(t)
				unprivileged(t, pid)
				try(t, does(pid, cancel))
			}
		}
		_, err := Applier{Layers: l}.Into(ctx, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Size: igzipFrom}, Target{Dir: t.TempDir()})
		cancel(nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		for end := time.Now().Add(time.Minute); strings.HasPrefix(status(pid, "State"), "R") || strings.HasPrefix(status(pid, "State"), "S"); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("igzip is left as process %d", pid)
			}
		}
	}
}

// igzipOf waits until the process that unpacks a layer has igzip read the layer, and returns its
// number.
func igzipOf(t *testing.T) int {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		parent := child(t)
		layer, _ := os.Readlink("/proc/" + parent + "/fd/0")
		lists, _ := filepath.Glob("/proc/" + parent + "/task/*/children")
		for _, list := range lists {
			b, _ := os.ReadFile(list) // the thread may have ended
			for pid := range strings.FieldsSeq(string(b)) {
				started, _ := os.ReadFile("/proc/" + pid + "/cmdline")
				if reads, err := os.Readlink("/proc/" + pid + "/fd/0"); err == nil && reads == layer && strings.HasSuffix(string(started), "igzip\x00-d\x00-c\x00") {
					n, err := strconv.Atoi(pid)
					try(t, err)
					return n
				}
			}
		}
	}
	t.Fatal("igzip is not started")
	return 0
}

// unprivileged checks the rights of igzip.
func unprivileged(t *testing.T, pid int) {
	t.Helper()
	user := "0"
	if capabilities() != 0 {
		user = strconv.Itoa(nobody)
	}
	for name, want := range map[string]string{"NoNewPrivs": "1", "CapPrm": "0000000000000000", "Uid": user, "Gid": user, "Groups": ""} {
		if got, _, _ := strings.Cut(status(pid, name), "\t"); got != want && (name != "Groups" || capabilities() != 0) {
			t.Errorf("%s of igzip is %q, want %q", name, got, want)
		}
	}
}

// status returns what the kernel says of a process, or "" if that is gone.
func status(pid int, name string) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, s, _ := strings.Cut(string(b), name+":\t")
	s, _, _ = strings.Cut(s, "\n")
	return strings.TrimSpace(s)
}
