// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Probes are the probes of a container, complete with the defaults of Kubernetes; nil for none.
// Ports are numbers.
type Probes struct {
	Startup   *corev1.Probe
	Liveness  *corev1.Probe
	Readiness *corev1.Probe
}

// isProbe reports whether a field is a probe, or is inside one.
func isProbe(field string) bool {
	return slices.ContainsFunc([]string{".startupProbe", ".livenessProbe", ".readinessProbe"}, func(p string) bool {
		return strings.HasPrefix(field, "spec.containers[") && strings.Contains(field, p)
	})
}

func (t *translation) probes(field string, c *corev1.Container) Probes {
	if !t.options.Watched {
		return Probes{}
	}
	return Probes{
		Startup:   t.probe(field+".startupProbe", c, c.StartupProbe, false),
		Liveness:  t.probe(field+".livenessProbe", c, c.LivenessProbe, false),
		Readiness: t.probe(field+".readinessProbe", c, c.ReadinessProbe, true),
	}
}

// probe completes and checks a probe. twice is set if more than one success in a row may be
// required.
func (t *translation) probe(field string, c *corev1.Container, p *corev1.Probe, twice bool) *corev1.Probe {
	if p == nil {
		return nil
	}
	p = p.DeepCopy()
	for _, n := range []struct {
		name      string
		value     *int32
		otherwise int32
	}{
		{"initialDelaySeconds", &p.InitialDelaySeconds, 0},
		{"timeoutSeconds", &p.TimeoutSeconds, 1},
		{"periodSeconds", &p.PeriodSeconds, 10},
		{"successThreshold", &p.SuccessThreshold, 1},
		{"failureThreshold", &p.FailureThreshold, 3},
	} {
		if *n.value < 0 {
			t.bad(field+"."+n.name, "%d is negative", *n.value)
		}
		*n.value = cmp.Or(*n.value, n.otherwise)
	}
	if !twice && p.SuccessThreshold != 1 {
		t.bad(field+".successThreshold", "it has to be 1")
	}
	handlers := 0
	if p.Exec != nil {
		handlers++
		if len(p.Exec.Command) == 0 {
			t.bad(field+".exec.command", "it is missing")
		}
	}
	if h := p.HTTPGet; h != nil {
		handlers++
		h.Port = t.probePort(field+".httpGet.port", c, h.Port)
		if h.Scheme != "" && h.Scheme != corev1.URISchemeHTTP && h.Scheme != corev1.URISchemeHTTPS {
			t.bad(field+".httpGet.scheme", "%q is not HTTP or HTTPS", h.Scheme)
		}
	}
	if s := p.TCPSocket; s != nil {
		handlers++
		s.Port = t.probePort(field+".tcpSocket.port", c, s.Port)
	}
	if handlers != 1 && !t.options.IgnoreUnsupported {
		t.bad(field, "it has to have one of exec, httpGet and tcpSocket")
	}
	if handlers != 1 {
		return nil
	}
	return p
}

func (t *translation) probePort(field string, c *corev1.Container, port intstr.IntOrString) intstr.IntOrString {
	if port.Type == intstr.String {
		at := slices.IndexFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == port.StrVal })
		if at < 0 {
			t.bad(field, "the container has no port %q", port.StrVal)
			return port
		}
		port = intstr.FromInt32(c.Ports[at].ContainerPort)
	}
	if port.IntVal < 1 || port.IntVal > 65535 {
		t.bad(field, "%d is not a port", port.IntVal)
	}
	return port
}
