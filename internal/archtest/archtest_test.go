// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	module     = "berth"
	containerd = "github.com/containerd/containerd/v2"
	grpc       = "google.golang.org/grpc"
	cri        = "k8s.io/cri-api"
)

func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".") && first != module
}

func TestPureRoomsImportTheStandardLibraryAlone(t *testing.T) {
	for _, room := range []string{"internal/base/lane", "internal/base/exit", "internal/base/retry", "internal/base/frame"} {
		for _, f := range rooms(t)[room] {
			for _, p := range f.imports() {
				if !standard(p) && p != module+"/internal/base/clock" { // instants are values
					t.Errorf("%s imports %s: %s is standard library only", f.path, p, room)
				}
			}
		}
	}
}

// A room on this list can be read, tested and moved by itself. All may use retry, frame, namespace
// inroot and cri138, each of which is a handful of lines that import nothing of berth, and clock,
// because instants are values of every room.
func TestRoomsImportNoSibling(t *testing.T) {
	siblings := map[string][]string{
		"internal/base/lane":        nil,
		"internal/base/exit":        nil,
		"internal/host/spec":        nil,
		"internal/heart/feed":       nil,
		"internal/host/network":     {"berth/internal/base/ops"},   // it lists the calls of plug-ins
		"internal/host/logs":        {"berth/internal/base/event"}, // it says what happens to output
		"internal/base/event":       {"berth/internal/base/exit"},
		"internal/host/cgroup":      {"berth/internal/host/pidfd"}, // it ends processes
		"internal/base/config":      nil,
		"internal/history/recorder": {"berth/internal/base/event"}, // it keeps events
		"internal/host/pins":        nil,
		"internal/host/podfiles":    nil,
		"internal/images/peer":      nil,
		"tools/manifest":            nil,
		"internal/host/pidfd":       {"berth/internal/base/exit"}, // it reports facts
		"internal/host/apparmor":    nil,

		"internal/host/namespace": nil,
		"internal/base/inroot":    nil,
		"internal/base/cri138":    nil,
		"internal/engine/shims":   {"berth/internal/host/cgroup", "berth/internal/base/connection", "berth/internal/host/pidfd"},
	}
	small := []string{"berth/internal/base/retry", "berth/internal/base/frame", "berth/internal/host/namespace", "berth/internal/base/inroot", "berth/internal/base/cri138", "berth/internal/base/clock"}
	for room, allowed := range siblings {
		for _, f := range rooms(t)[room] {
			for _, p := range f.imports() {
				if strings.HasPrefix(p, module+"/") && !slices.Contains(append(allowed, small...), p) {
					t.Errorf("%s imports %s: %s knows no sibling; declare an interface there and let daemon plug it in", f.path, p, room)
				}
			}
		}
	}
}

// importers fails for each file, tests left out, that imports a package below one of paths and is
// in none of allowed.
func importers(t *testing.T, paths, allowed []string, why string) {
	t.Helper()
	for _, f := range source(t) {
		if f.test || inside(f.room, allowed...) {
			continue
		}
		for _, p := range f.imports() {
			if inside(p, paths...) {
				t.Errorf("%s imports %s: %s", f.path, p, why)
			}
		}
	}
}

func TestContainerdIsImportedByItsAdapterAlone(t *testing.T) {
	importers(t,
		[]string{containerd + "/client", containerd + "/core", containerd + "/cmd", containerd + "/plugins"},
		[]string{"internal/engine/aside", "internal/base/connection", "internal/engine/ctrd", "internal/engine/embed", "internal/engine/layers", "internal/images/imagestore", "internal/images/unpack", "test/world", "test/bench", "test/embedtest"}, // test/world and test/embedtest fake parts of it, test/bench starts it
		"only connection, ctrd, layers, imagestore, embed, aside and unpack know containerd, and translate its errors")
}

func TestGRPCIsImportedByFewRooms(t *testing.T) {
	importers(t, []string{grpc},
		[]string{"internal/serve/cadvisor", "internal/base/connection", "internal/serve/cri", "internal/serve/nodeapi", "api", "internal/engine/ctrd", "internal/engine/embed", "internal/history/observe", "test"},
		"only cri, nodeapi and cadvisor serve gRPC, api, connection, ctrd and embed call it, and observe counts and traces the calls; other rooms return errors of containerd/errdefs")
}

func TestFakesAreNotAPartOfBerth(t *testing.T) {
	importers(t, []string{module + "/test"}, []string{"test", "tools/demo"}, "what only tests need stays out of the program; the demo makes its image as tests do")
}

// CRI's messages are the words of the rooms that carry out what CRI asks for, and of no other.
func TestCRIMessagesStayOutOfTheRoomsBelow(t *testing.T) {
	below := []string{
		"internal/base/lane", "internal/base/exit", "internal/host/pidfd", "internal/host/cgroup", "internal/host/fdstore", "internal/host/logs",
		"internal/host/network", "internal/host/pins", "internal/host/podfiles", "internal/history/recorder", "internal/base/event", "internal/base/config", "internal/engine/embed",
	}
	for _, f := range source(t) {
		for _, p := range f.imports() {
			if inside(f.room, below...) && inside(p, cri) {
				t.Errorf("%s imports %s: %s takes values, not messages of CRI", f.path, p, f.room)
			}
		}
	}
}

// What is mounted has to be in a record and unmounted again, so few rooms may mount. The mounts of
// cgroup and of join are in no place, and end with their descriptors; those of rootless end with
// their namespace, and berth rm unmounts the volumes that manifest has mounted.
func TestFewRoomsMount(t *testing.T) {
	mounting := []string{"Mount", "Unmount", "MountSetattr", "MoveMount", "Fsmount", "OpenTree", "PivotRoot"}
	for _, f := range source(t) {
		if f.test || inside(f.room, "internal/host/podfiles", "internal/host/pins", "internal/host/namespace", "internal/engine/shims", "internal/engine/layers", "internal/images/imagestore", "internal/host/cgroup", "internal/serve/join", "tools/rootless", "tools/manifest", "test") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if pkg, name := calls(n); (pkg == "unix" || pkg == "syscall") && slices.Contains(mounting, name) {
				t.Errorf("%s calls %s.%s: only podfiles, pins, namespace, shims, layers, imagestore, cgroup, join, rootless and manifest mount", at(n), pkg, name)
			}
			return true
		})
	}
}

// Whoever waits for what a lane brings about needs a waiter of the lane, so that he does not sit
// out a back-off: the types of package lane see to that. What they cannot see is here: the life of
// a unit is in no other channels, and few react to an event without waiting for it.
func TestWhoWaitsForAUnitPokesItsLane(t *testing.T) {
	reacts := []string{
		"internal/heart/pod/gap.go",      // a deletion lets the shim publish the end first, which no lane brings about
		"internal/heart/pod/target.go",   // an exec is cut off when its container has ended
		"internal/heart/pod/teardown.go", // a release does not wait for its turn once it was asked for
	}
	var waits, units int
	for _, f := range rooms(t)["internal/heart/pod"] {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Notice" {
				waits++
				if !slices.Contains(reacts, f.path) {
					t.Errorf("%s takes the channel of an event without a waiter: wait with lanes.wait", at(n))
				}
			}
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != "unit" {
				return true
			}
			units++
			ast.Inspect(spec, func(n ast.Node) bool {
				if _, ok := n.(*ast.ChanType); ok {
					t.Errorf("%s is a channel of a unit: it is a lane.Event, so that whoever waits for it pokes the lane", at(n))
				}
				return true
			})
			return false
		})
	}
	if waits == 0 || units != 1 {
		t.Fatalf("%d events and %d types found: the test looks for the wrong names", waits, units)
	}
}

// A test sleeps in virtual time (testing/synctest), or in a loop that waits for a condition. A test
// that sleeps once and hopes fails on a slow machine and wastes time on a fast one.
func TestTestsDoNotSleepAndHope(t *testing.T) {
	exceptions := map[string]string{
		"test/fault/rounds_test.go": "it kills at instants chosen at random",
		"test/soak/soak_test.go":    "so does it",
	}
	virtual := map[string]bool{} // packages whose tests run in virtual time
	for _, f := range source(t) {
		if slices.Contains(f.imports(), "testing/synctest") {
			virtual[f.room] = true
		}
	}
	for _, f := range source(t) {
		if !f.test && !inside(f.room, "test") || inside(f.room, "test/bench") || virtual[f.room] || exceptions[f.path] != "" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n.(type) {
			case *ast.ForStmt, *ast.RangeStmt:
				return false
			}
			if pkg, name := calls(n); pkg == "time" && name == "Sleep" {
				t.Errorf("%s sleeps: wait for a condition, or use testing/synctest", at(n))
			}
			return true
		})
	}
}

// A program that a test starts and that never ends takes more than its test with it. What
// test/command starts has a deadline; so has a context that is not simply that of the test.
func TestNoTestStartsAProgramWithoutADeadline(t *testing.T) {
	exceptions := map[string]string{
		"test/node/process.go":          "it starts what tests end, and bounds how long they wait",
		"test/browser/chromium_test.go": "the browser ends with its test",
	}
	for _, f := range source(t) {
		if !inside(f.room, "test") || inside(f.room, "test/command", "test/bench", "test/conformance") || exceptions[f.path] != "" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			pkg, name := calls(n)
			if pkg != "exec" {
				return true
			}
			bounded := name != "Command"
			if name == "CommandContext" {
				_, of := calls(n.(*ast.CallExpr).Args[0])
				bounded = of != "Context"
			}
			if !bounded {
				t.Errorf("%s starts a program without a deadline: use test/command, or a context that has one", at(n))
			}
			return true
		})
	}
}

// What an error says about a process, package pidfd decides: an error that means "I could not ask"
// is easily taken for "it is gone".
func TestProcessesAreAskedForInOneRoom(t *testing.T) {
	questions := []string{"PidfdOpen", "PidfdSendSignal", "PidfdGetfd"}
	for _, f := range source(t) {
		if f.test || inside(f.room, "internal/host/pidfd", "test") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if pkg, name := calls(n); (pkg == "unix" || pkg == "syscall") && slices.Contains(questions, name) {
				t.Errorf("%s calls %s.%s: only pidfd asks the kernel about a process; use pidfd.Open and pidfd.Send", at(n), pkg, name)
			}
			return true
		})
	}
}

func TestNamesSayWhatARoomIsFor(t *testing.T) {
	for _, f := range source(t) {
		if slices.Contains([]string{"util", "utils", "common", "helpers", "manager", "types"}, filepath.Base(f.room)) {
			t.Errorf("%s: a package has a name that says what it is for", f.path)
		}
		if strings.HasSuffix(f.path, "_other.go") {
			t.Errorf("%s: berth is for Linux alone", f.path)
		}
	}
}

// A room of one file says in that file what it promises; a larger one has a doc.go.
func TestEveryRoomSaysWhatItPromises(t *testing.T) {
	for room, files := range rooms(t) {
		i := slices.IndexFunc(files, func(f file) bool { return f.ast.Doc != nil })
		switch {
		case i < 0:
			t.Errorf("%s has no package comment", room)
		case len(files) > 1 && filepath.Base(files[i].path) != "doc.go":
			t.Errorf("%s has no doc.go; its package comment is in %s", room, files[i].path)
		}
	}
}
