// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"slices"
	"strings"
	"testing"
)

// A tool speaks api/berth/v1 and CRI, so that it can live without the runtime. It may use the values of
// base, which know nothing of the runtime, and what is on this list, each row with the reason; a row goes
// once the contract has what the tool needs.
func TestToolsSpeakTheAPIAndNotToRooms(t *testing.T) {
	exceptions := map[string]map[string]string{
		"tools/ctl": {
			"internal/engine/adopt":     "berth adopt runs while no daemon does, and prints the plan",
			"internal/history/journal":  "berth serve writes its log to systemd's journal",
			"internal/history/recorder": "berth bundle --root reads the history of a daemon that does not run",
			"internal/images/policy":    "berth policy checks a file before a daemon has it",
			"internal/serve/access":     "berth audit verifies a file of accesses, also one of another node",
			"internal/serve/checkpoint": "berth checkpoint reads an archive on the disk of its user",
		},
		"tools/demo":   {"internal/host/network": "it removes the bridge of its own berth"},
		"tools/doctor": {"internal/engine/probe": "it asks the OCI runtimes of a host without a daemon", "internal/host/pidfd": "the same of the kernel"},
		"tools/drill":  {"internal/host/pidfd": "it kills its own processes and no others"},
	}
	used := map[string]map[string]bool{}
	for _, f := range source(t) {
		if f.test || !inside(f.room, "tools") {
			continue
		}
		for _, p := range f.imports() {
			room := strings.TrimPrefix(p, module+"/")
			if !inside(room, "internal") || inside(room, "internal/base") {
				continue
			}
			if exceptions[f.room][room] == "" {
				t.Errorf("%s imports %s: a tool speaks api/berth/v1 and CRI; give the contract what it needs, or say here why it cannot", f.path, p)
			}
			if used[f.room] == nil {
				used[f.room] = map[string]bool{}
			}
			used[f.room][room] = true
		}
	}
	var rows int
	for tool, rooms := range exceptions {
		rows += len(rooms)
		for room := range rooms {
			if !used[tool][room] {
				t.Errorf("%s does not import %s any more: take the row off the list", tool, room)
			}
		}
	}
	if rows == 0 || len(used) == 0 {
		t.Fatal("no tool was found")
	}
}

// The services are the same for each client, so the room that serves CRI knows nothing of the node's own.
func TestCRIKnowsNothingOfTheNodesServices(t *testing.T) {
	for _, f := range rooms(t)["internal/serve/cri"] {
		for _, p := range f.imports() {
			if slices.Contains([]string{"berth/internal/serve/nodeapi", "berth/tools/bundle", "berth/internal/history/recorder", "berth/internal/history/why"}, p) {
				t.Errorf("%s imports %s: the methods of berth.v1 are nodeapi's", f.path, p)
			}
		}
	}
}
