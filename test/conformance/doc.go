// SPDX-License-Identifier: Apache-2.0

// Command conformance writes docs/conformance.md: what critest says of berth, with containerd inside
// and beside it, and of the runtimes beside which it is compared on the same machine; and what this
// repository has of fields, promises and the last soak.
//
// critest is the one in PATH. Which images it takes is up to whoever runs it: CRITEST_FLAGS has more
// flags for critest, such as -test-images-file or -registry-prefix; CONFORMANCE_REGISTRIES is a
// directory in the certs.d layout for the runtimes that are started here; and
// CONFORMANCE_SANDBOX_IMAGE is the pause image of containerd's CRI.
//
// CRI-O is not started here: -runtime names the sockets of one that runs already. critest asks more of it
// than its defaults give: included_pod_metrics = ['all'] in its table crio.stats, net.ipv4.conf.*.route_localnet
// on its bridge with masquerading for 127.0.0.0/8, a pause image that ends on SIGTERM, and a process 1 that
// reaps at once what conmon leaves. Root without CAP_SYS_RESOURCE has to take it and a negative
// oom_score_adj out of what the OCI runtime gets.
//
// With -save it writes no page but the counts of one runtime, which need not be from this machine: what is
// in build/conformance-guest.json is taken for the row of the guest. So this makes that row, where the
// guest finds critest and its images as this host does:
//
//	test/guest/guest -t 7200 -o build -- build/bin/conformance -only inside -save build/conformance-guest.json
//
// With -d the guest has a disk. With TMPDIR on a file system of it, critest can also check what Linux 6.1
// cannot map to other users on a tmpfs.
//
// # What it promises
//
//   - What was not run is said as not run, with the reason, and so is a run of which no whole report
//     is there. A check that critest skipped is never counted as passed.
//   - What was saved elsewhere is shown with the kernel and the day that are in it.
//   - The page says when and with which versions it was made, on which kernel and on how large a
//     machine, and nothing else of where that was.
//   - What was started is ended, and what could not be removed is an error that names it.
package main
