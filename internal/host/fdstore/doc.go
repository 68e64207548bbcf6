// SPDX-License-Identifier: Apache-2.0

// Package fdstore hands file descriptors to the service manager (systemd), which keeps them for the
// next berth.
//
// A pidfd that is held open still says how its process ended when berth, containerd and the shim
// are all dead. systemd holds what a service hands over (sd_notify(3), FDSTORE=1) and passes it on
// when the service is started again (sd_listen_fds(3)).
//
// # Promises
//
//   - Keep and Drop do not block. What the manager does not take at once waits here, and only the
//     latest call for each ID counts.
//   - The manager has at most one descriptor for an ID, and none for an ID that was dropped, once
//     everything that waits was sent. At a clean stop of berth that is sent, too.
//   - Without a service manager that speaks this protocol, every function here is a no-op.
//   - What was inherited is closed on exec and taken out of the environment, so that no shim
//     inherits it.
//
// # Never
//
// It does not know what the descriptors refer to.
//
// # To look at it live
//
// systemctl show -p NFileDescriptorStore berth; systemd-analyze fdstore berth.
package fdstore
