// SPDX-License-Identifier: Apache-2.0

// Package archtest keeps the rules about who may import whom: see ARCHITECTURE.md.
package archtest

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// imports are the packages that each room's own files import, tests left out.
func imports(t *testing.T) map[string]map[string]string {
	t.Helper()
	root := "../.."
	rooms := map[string]map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "build" || d.Name() == "tools" || d.Name() == ".git") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, filepath.Dir(path))
		if rooms[rel] == nil {
			rooms[rel] = map[string]string{}
		}
		for _, i := range f.Imports {
			p, _ := strconv.Unquote(i.Path.Value)
			rooms[rel][p] = path
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(rooms) < 15 {
		t.Fatalf("only %d rooms found: the test looks in the wrong place", len(rooms))
	}
	return rooms
}

func standard(p string) bool {
	first, _, _ := strings.Cut(p, "/")
	return !strings.Contains(first, ".")
}

func TestPureRoomsUseTheStandardLibraryAlone(t *testing.T) {
	rooms := imports(t)
	for _, room := range []string{"internal/lane", "internal/exit"} {
		for p, file := range rooms[room] {
			if !standard(p) || strings.HasPrefix(p, "berth/") {
				t.Errorf("%s imports %s", file, p)
			}
		}
	}
}

func TestRoomsWithoutSiblings(t *testing.T) {
	rooms := imports(t)
	for _, room := range []string{"internal/lane", "internal/exit", "internal/spec", "internal/feed", "internal/network", "internal/logs", "internal/cgroup", "internal/config", "internal/timeline"} {
		if rooms[room] == nil {
			t.Errorf("%s is gone: take it off the list", room)
		}
		for p, file := range rooms[room] {
			if strings.HasPrefix(p, "berth/") {
				t.Errorf("%s imports its sibling %s", file, p)
			}
		}
	}
}

// inside reports whether room is one of these, or below one.
func inside(room string, list ...string) bool {
	return slices.ContainsFunc(list, func(l string) bool { return room == l || strings.HasPrefix(room, l+"/") })
}

func TestContainerdIsImportedByItsAdapterAlone(t *testing.T) {
	for room, ps := range imports(t) {
		for p, file := range ps {
			for _, part := range []string{"client", "core", "cmd", "plugins"} {
				of := "github.com/containerd/containerd/v2/" + part
				if (p == of || strings.HasPrefix(p, of+"/")) && !inside(room, "internal/ctrd", "internal/embed", "test/sim", "test/bench") { // test/sim fakes it
					t.Errorf("%s imports %s", file, p)
				}
			}
		}
	}
}

func TestGRPCIsImportedByCRIAndDaemonAlone(t *testing.T) {
	for room, ps := range imports(t) {
		for p, file := range ps {
			if (p == "google.golang.org/grpc" || strings.HasPrefix(p, "google.golang.org/grpc/")) && !inside(room, "internal/cri", "internal/daemon", "test") {
				t.Errorf("%s imports %s", file, p)
			}
		}
	}
}

func TestLinuxOnlyAndNoRoomOfEverything(t *testing.T) {
	for room := range imports(t) {
		if slices.Contains([]string{"util", "utils", "common", "helpers", "manager", "types"}, filepath.Base(room)) {
			t.Errorf("%s: a room has a name that says what it is for", room)
		}
	}
	_ = filepath.WalkDir("../../internal", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_other.go") {
			t.Errorf("%s: berth is for Linux", path)
		}
		return nil
	})
}

func TestEveryRoomSaysWhatItPromises(t *testing.T) {
	for room := range imports(t) {
		if !strings.HasPrefix(room, "internal/") || inside(room, "internal/archtest", "internal/version", "internal/timeline", "internal/embed/embedtest", "internal/testimage/testregistry") {
			continue
		}
		if _, err := os.Stat(filepath.Join("../..", room, "doc.go")); err != nil {
			t.Errorf("%s has no doc.go", room)
		}
	}
}
