// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"
	"testing"
)

func translateProbe(t *testing.T, probe string) (*Plan, error) {
	t.Helper()
	pod, err := Parse([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n" +
		"  - {name: c, image: a, ports: [{name: web, containerPort: 8080}], livenessProbe: " + probe + "}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return Translate(pod, Options{UID: "u", Watched: true})
}

func TestProbesAreCompleted(t *testing.T) {
	plan, err := translateProbe(t, "{httpGet: {port: web}}")
	if err != nil {
		t.Fatal(err)
	}
	p := plan.Containers[0].Probes.Liveness
	if p.HTTPGet.Port.IntValue() != 8080 || p.PeriodSeconds != 10 || p.TimeoutSeconds != 1 || p.FailureThreshold != 3 || p.SuccessThreshold != 1 {
		t.Errorf("got %+v", p)
	}
}

// PROPERTIES 22
func TestProbesThatCannotBeHonouredAreRefused(t *testing.T) {
	for probe, want := range map[string]string{
		"{httpGet: {port: nowhere}}":                    `livenessProbe.httpGet.port: the container has no port "nowhere"`,
		"{tcpSocket: {port: 0}}":                        "livenessProbe.tcpSocket.port: 0 is not a port",
		"{exec: {command: []}}":                         "livenessProbe.exec.command: it is missing",
		"{periodSeconds: 5}":                            "livenessProbe: it has to have one of",
		"{exec: {command: [a]}, successThreshold: 2}":   "livenessProbe.successThreshold",
		"{exec: {command: [a]}, periodSeconds: -1}":     "livenessProbe.periodSeconds: -1 is negative",
		"{grpc: {port: 80}}":                            "livenessProbe.grpc",
		"{exec: {command: [a]}, tcpSocket: {port: 80}}": "livenessProbe: it has to have one of",
		"{httpGet: {port: 80, scheme: FTP}}":            `livenessProbe.httpGet.scheme: "FTP"`,
	} {
		if _, err := translateProbe(t, probe); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", probe, err, want)
		}
	}
}
