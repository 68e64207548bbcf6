// SPDX-License-Identifier: Apache-2.0

// Package fdstore hands file descriptors to the service manager (systemd), which keeps them for the
// next berth.
//
// A pidfd that is held open still has the exit status of its process when berth, containerd and the
// shim are all dead. systemd holds the descriptors that a service sends to it (sd_notify(3),
// FDSTORE=1) and passes them on when the service is started again (sd_listen_fds(3)).
//
// # Promises
//
//   - Keep and Drop do not block. Descriptors that the manager cannot take at once are queued here,
//     and only the latest call for each ID counts.
//   - The manager has at most one descriptor for an ID, and none for an ID that was dropped, once
//     everything that waits was sent. At a clean stop of berth that is sent, too.
//   - Without a service manager that speaks this protocol, every function here is a no-op.
//   - Inherited descriptors are set close-on-exec and removed from the environment, so that no shim
//     inherits them.
//
// # Never
//
// It does not know to which objects the descriptors refer.
//
// # To look at it live
//
// systemctl show -p NFileDescriptorStore berth; systemd-analyze fdstore berth.
package fdstore
