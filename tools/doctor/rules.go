// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// portRule is a rule that leads a host port to a pod of berth's own bridge, with the ID of the pod,
// as the portmap plug-in notes it.
var portRule = regexp.MustCompile(`^-A (.*--comment "dnat name: \\"berth\\" id: \\"([0-9a-f]{64})\\"".*)$`)

// askRules looks for rules of pods that are not there, in both firewalls of the kernel: their ports
// lead to the pod that has the address by now.
func askRules(ctx context.Context, m *machine) ([]Finding, error) {
	var f findings
	var rules []string
	asked := false
	for _, program := range []string{"iptables-nft", "iptables-legacy"} {
		path, err := m.which(program, searchPath...)
		f.unasked(err)
		if path == "" {
			continue
		}
		if program == "iptables-legacy" { // asking would make the table
			tables, err := m.read("/proc/net/ip_tables_names")
			if !absent(err) {
				f.unasked(err)
			}
			if !slices.Contains(strings.Fields(tables), "nat") {
				continue
			}
		}
		asked = true
		out, err := m.Runs(ctx, path, "-w", "-t", "nat", "-S")
		f.unasked(err)
		for line := range strings.Lines(string(out)) {
			if line = strings.TrimSpace(line); portRule.MatchString(line) {
				rules = append(rules, program+" "+line)
			}
		}
	}
	switch {
	case len(rules) == 0 && asked:
		return f.result()
	case len(rules) == 0:
		return nil, errNothing("no iptables is here")
	case m.Pods == nil || !m.runs():
		return f.found, fmt.Errorf("there are %d rules of host ports, and no berth that knows their pods", len(rules))
	}
	pods, err := m.Pods(ctx)
	if err != nil {
		return f.found, err
	}
	for _, r := range rules {
		program, line, _ := strings.Cut(r, " ")
		parts := portRule.FindStringSubmatch(line)
		if !slices.Contains(pods, parts[2]) {
			f.add(Warning, "run "+program+" -t nat -D "+parts[1],
				"a rule of %s publishes ports of the pod %.12s, which is not there: they lead to the pod that has its address now", program, parts[2])
		}
	}
	return f.result()
}
