// SPDX-License-Identifier: Apache-2.0

// Package kubelet runs pods on berth the way nodes do: a kubelet, built from tools/lab/kubelet,
// reads the manifests of static pods from a directory, and has berth run them. There is no API
// server; the kubelet's own HTTP API reports its view.
//
// The tests check a kubelet's use of berth: probes, hooks, the order of init containers and
// sidecars, restarts and their back-off, termination messages, limits, grace periods, logs and
// their rotation, statistics and metrics, streams, resizes in place, the static CPU manager, and
// pods that go on while the kubelet or berth is killed. The effect of berth's events is also
// checked in the kubelet's cache, through tools/lab/kubelet/pleg, which is the kubelet's own code
// for that. They need root, and programs that `make test-kubelet` builds within minutes before it
// runs them.
package kubelet
