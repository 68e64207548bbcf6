// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/procfs"
)

// PROPERTIES 38: a pod with seven thousand interfaces made the node's metrics longer than a client
// takes. Its own interface is reported whatever it is called, and the log says what is left out.
func TestAPodWithManyInterfacesLeavesRoomForOthers(t *testing.T) {
	var log bytes.Buffer
	n := newNetworks(slog.New(slog.NewTextHandler(&log, nil)))
	n.enter = func(paths []string, visit func(int)) {
		for i := range paths {
			visit(i)
		}
	}
	n.read = func() (procfs.NetDev, error) {
		dev := procfs.NetDev{"lo": {Name: "lo"}, podInterface: {Name: podInterface}}
		for i := range 7000 {
			name := fmt.Sprintf("dummy%d", i)
			dev[name] = procfs.NetDevLine{Name: name}
		}
		return dev, nil
	}
	nets := n.of([]string{"/run/netns/many", "/run/netns/more"})
	for path, have := range nets {
		if len(have.list) != maxInterfaces || have.list[0].Name != podInterface {
			t.Errorf("%s: %d interfaces: %v", path, len(have.list), have.list)
		}
	}
	if got := networkUsage(nets["/run/netns/many"]); got.GetDefaultInterface().GetName() != podInterface || len(got.GetInterfaces()) != maxInterfaces-1 {
		t.Errorf("%v", got)
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "namespace=/run/netns/") || !strings.Contains(got, "interfaces=7001") {
		t.Errorf("the log says:\n%s", got)
	}
}
