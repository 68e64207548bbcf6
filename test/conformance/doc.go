// SPDX-License-Identifier: Apache-2.0

// Command conformance writes docs/conformance.md: the results of critest for berth, with containerd
// inside and beside it, and for the runtimes that it is compared with on the same machine; and this
// repository's figures of fields, promises and the last soak.
//
// critest is the one in PATH. Its images are chosen by the environment: CRITEST_FLAGS has more
// flags for critest, such as -test-images-file or -registry-prefix; CONFORMANCE_REGISTRIES is a
// directory in the certs.d layout for the runtimes that are started here; and
// CONFORMANCE_SANDBOX_IMAGE is the pause image of containerd's CRI.
//
// CRI-O is not started here: -runtime names the sockets of one that runs already. critest asks more
// of it than its defaults give: included_pod_metrics = ['all'] in its table crio.stats,
// net.ipv4.conf.*.route_localnet on its bridge with masquerading for 127.0.0.0/8, a pause image
// that ends on SIGTERM, and a process 1 that reaps at once the processes that conmon leaves. Root
// without CAP_SYS_RESOURCE has to remove it and a negative oom_score_adj from the input of the OCI
// runtime.
//
// With -save it writes no page but the counts of one runtime, which need not be from this machine:
// build/conformance-guest.json is used for the row of the guest. So this makes that row, where the
// guest finds critest and its images as this host does:
//
//	test/guest/guest -t 7200 -o build -- \
//	    build/bin/conformance -only inside -save build/conformance-guest.json
//
// With -d the guest has a disk. With TMPDIR on a file system of it, critest can also check the
// mappings that Linux 6.1 cannot make on a tmpfs.
//
// # What it promises
//
//   - A runtime that was not run is shown as not run, with the reason, and so is a run without a
//     complete report. A check that critest skipped is never counted as passed.
//   - Results that were saved elsewhere are shown with the kernel and the day that are in them.
//   - The page contains its date, the versions, the kernel and the size of the machine, and nothing
//     else about the place.
//   - Everything that was started is ended, and an object that could not be removed is an error
//     that names it.
package main
