// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
)

// Plug-ins that have a resolver for pods did not learn which servers a pod asks for. PROPERTIES 22.
func TestPluginsGetWhatTheyDeclare(t *testing.T) {
	bin, notes := fake(t)
	conf := `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"fake","capabilities":{"dns":true,"cgroupPath":true,"io.kubernetes.cri.pod-annotations":true}}]}`
	n := build(t, func(c *Config) {
		c.BinDirs, c.Default = []string{bin}, nil
		if err := errors.Join(os.MkdirAll(c.ConfDir, 0o755), os.WriteFile(c.ConfDir+"/1.conflist", []byte(conf), 0o600)); err != nil {
			t.Fatal(err)
		}
	})
	all := Pod{
		ID:           "a",
		Name:         "a",
		NetNS:        pinned(t),
		Annotations:  map[string]string{"k": "v"},
		CgroupParent: "/pods/a",
		DNS:          DNS{Servers: []string{"10.0.0.1"}, Searches: []string{"example.org"}, Options: []string{"ndots:5"}},
	}
	none := Pod{ID: "b", Name: "b", NetNS: pinned(t)}
	for _, p := range []Pod{all, none} {
		_, err := n.Setup(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(notes)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(string(b), "\n")
	for _, part := range []string{
		`"dns":{"servers":["10.0.0.1"],"searches":["example.org"],"options":["ndots:5"]}`, `"cgroupPath":"/pods/a"`,
		`"io.kubernetes.cri.pod-annotations":{"k":"v"}`,
	} {
		if !strings.Contains(got[0], part) {
			t.Errorf("the plug-in got %s, without %s", got[0], part)
		}
	}
	if strings.Contains(got[1], "runtimeConfig") {
		t.Errorf("of a pod that asks for nothing the plug-in got %s", got[1])
	}
}

// The limits of a pod's traffic were dropped. They go to the plug-ins that declare the capability,
// and where there is none the log says that the pod is not limited. PROPERTIES 22.
func TestTheBandwidthOfAPodGoesToThePluginsThatCanLimitIt(t *testing.T) {
	for _, capable := range []bool{true, false} {
		bin, notes := fake(t)
		conf := `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"fake","mark":"plain"}]}`
		if capable {
			conf = strings.TrimSuffix(conf, "]}") + `,{"type":"fake","mark":"shaper","capabilities":{"bandwidth":true}}]}`
		}
		var log bytes.Buffer
		n := build(t, func(c *Config) {
			c.BinDirs, c.Default, c.Logger = []string{bin}, nil, slog.New(slog.NewTextHandler(&log, nil))
			if err := errors.Join(os.MkdirAll(c.ConfDir, 0o755), os.WriteFile(c.ConfDir+"/1.conflist", []byte(conf), 0o600)); err != nil {
				t.Fatal(err)
			}
		})
		p := Pod{ID: "a", Name: "a", NetNS: pinned(t), Bandwidth: Bandwidth{Ingress: 1e6, Egress: 2e6}}
		r, err := n.Setup(t.Context(), p)
		if err := errors.Join(err, n.Teardown(t.Context(), p, r)); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(notes)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			shaper := strings.Contains(line, "shaper")
			for _, part := range []string{`"ingressRate":1000000`, `"egressRate":2000000`} {
				if strings.Contains(line, part) != shaper {
					t.Errorf("the plug-in got %s", line)
				}
			}
		}
		if strings.Contains(string(b), "shaper") != capable {
			t.Errorf("the plug-ins got %s", b)
		}
		if said := strings.Contains(log.String(), "capability=bandwidth"); said == capable {
			t.Errorf("capable %v: the log says %q", capable, log.String())
		}
	}
}
