// SPDX-License-Identifier: Apache-2.0

// Package fdstore has the service manager (systemd) keep descriptors for the berth that comes after this one.
//
// A pidfd that somebody holds open can still tell how its process ended when berth, containerd and the shim are all dead. systemd
// holds what a service hands it (sd_notify(3), FDSTORE=1) and passes it on at the service's next start (sd_listen_fds(3)).
//
// # Promises
//
//   - Keep and Drop never block: what the manager does not take at once waits here, the latest word for each name.
//   - Nothing is handed over twice, and what was dropped before it was handed over never is.
//   - Without a service manager that speaks this protocol everything here is a no-op.
//   - What was inherited is closed on exec and out of the environment, so that no shim inherits it.
//
// # To look at it live
//
// systemctl show -p NFileDescriptorStore berth; systemd-analyze fdstore berth.
package fdstore
