// SPDX-License-Identifier: Apache-2.0

// Package exec compares a program that berth-exec (internal/serve/join) runs in a container with
// one that the exec of an OCI runtime runs there, field by field: it makes containers with that
// runtime, runs a probe in each in both ways, and looks at it from inside and outside. The OCI
// runtime is runc, or the program that BERTH_OCI_RUNTIME names.
//
// The gate takes a quarter of its configurations, which depends on the commit, where nothing that
// it compares has changed for five commits: see Share in test/node. BERTH_PICK=all takes all of
// them.
//
// It needs root, gcc for the probe (testdata/probe.c), and the output of `make tools`. The same
// tests run in the guest, with cgroup v2 and AppArmor or SELinux: test/guest/tests test/exec
package exec
