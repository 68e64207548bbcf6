// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/token"
	"slices"
	"testing"
)

// opens reports whether a node opens, reads or lists a file by its path, and follows links there.
func opens(n ast.Node) bool {
	pkg, name := calls(n)
	switch pkg {
	case "os":
		return slices.Contains([]string{"Open", "OpenFile", "ReadFile", "ReadDir", "Create", "WriteFile", "OpenRoot"}, name)
	case "unix":
		return slices.Contains([]string{"Open", "Openat", "Openat2"}, name)
	}
	return false
}

// The path of a log leads through directories that a pod may write to, if it mounts /var/log/pods:
// a link there made berth read another file of the host as root. logs writes logs, and everything
// that reads one opens it with inroot.OpenLog. So a function that knows the path of a log opens
// nothing by itself.
func TestALogIsOpenedInOnePlace(t *testing.T) {
	named := []string{"GetLogPath", "GetLogDirectory", "LogPath", "LogDirectory", "OpenLog"}
	functions := 0
	for _, f := range source(t) {
		if f.test || !inside(f.room, "internal", "tools") || inside(f.room, "internal/host/logs", "internal/base/inroot") {
			continue
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			knows, opened := false, token.NoPos
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && slices.Contains(named, id.Name) {
					knows = true
				}
				if n != nil && opens(n) {
					opened = n.Pos()
				}
				return true
			})
			if knows {
				functions++
			}
			if knows && opened.IsValid() {
				t.Errorf("%s: %s knows the path of a log, and opens a file by its path: use inroot.OpenLog", fset.Position(opened), fn.Name.Name)
			}
		}
	}
	if functions < 5 {
		t.Fatalf("only %d functions know the path of a log: the test looks for the wrong names", functions)
	}
}

// A room that opens files by their paths is on this list, with who makes what it opens. If others
// than root, berth and the kernel do, the room opens it with inroot, os.Root or without following
// links, and docs/security.md has a row for it in "Who could have made this?".
func TestEachRoomThatOpensFilesKnowsWhoMakesThem(t *testing.T) {
	const (
		kernel = "the kernel: /proc, /sys and cgroup file systems"
		own    = "berth, in directories that are closed to others"
		root   = "root: settings and programs of the host"
		image  = "an image, of which links are not followed"
	)
	makers := map[string][]string{
		"internal/base/config":      {root},
		"internal/base/inroot":      {"anybody: it is the opener"},
		"internal/base/wholefile":   {own},
		"internal/daemon":           {own, kernel, root},
		"internal/daemon/adoption":  {root, "containerd's CRI plug-in, as root"},
		"internal/engine/aside":     {"shims of berth's containerd, as root"},
		"internal/engine/ctrd":      {"the OCI runtime, in a directory of berth's own"},
		"internal/engine/embed":     {own},
		"internal/engine/layers":    {own},
		"internal/engine/shims":     {own, kernel, "shims of berth's containerd, as root"},
		"internal/heart/state":      {own},
		"internal/history/recorder": {own},
		"internal/host/apparmor":    {kernel},
		"internal/host/cdi":         {"device plug-ins, as root: it lists their directories alone"},
		"internal/host/cgroup":      {kernel},
		"internal/host/logs":        {own, "a pod that may write to /var/log/pods: it follows no link there"},
		"internal/host/namespace":   {kernel},
		"internal/host/network":     {root, kernel},
		"internal/host/pidfd":       {kernel},
		"internal/host/pins":        {own, kernel},
		"internal/host/podfiles":    {own, image},
		"internal/host/spec":        {kernel, root},
		"internal/images/artifact":  {own, image},
		"internal/images/durable":   {own, image, kernel},
		"internal/images/image":     {own, "root: archives that are imported"},
		"internal/images/imagestore": {
			own, image, "root: keys, and archives that are imported",
		},
		"internal/images/peer":      {root},
		"internal/host/kernelclock": {kernel},
		"internal/images/policy":    {root, own},
		"internal/images/unpack":    {own, image, kernel},
		"internal/serve/access":     {own},
		"internal/serve/cadvisor":   {own},
		"internal/serve/checkpoint": {own, "an archive, of which links are not followed"},
		"internal/serve/cri":        {kernel},
		"internal/serve/join":       {kernel, own},
		"internal/serve/nodeapi":    {own},
		"internal/serve/stats":      {kernel},
		"internal/serve/stream":     {own},
	}
	found := map[string]bool{}
	for _, f := range source(t) {
		if f.test || !inside(f.room, "internal") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if n != nil && opens(n) {
				found[f.room] = true
				if len(makers[f.room]) == 0 {
					t.Errorf("%s opens a file by its path: say here who makes it, and open what others can make with inroot", at(n))
				}
			}
			return true
		})
	}
	for room := range makers {
		if !found[room] {
			t.Errorf("%s opens no file by its path: take it off the list", room)
		}
	}
}
