// SPDX-License-Identifier: Apache-2.0

// Package ctl contains all commands of berth, in groups by what people do: look, explain, images,
// pods and node (groups in cli.go). A command is a function in the file of its noun. It takes the
// few things that it needs: the service that it speaks to, and the printer of its answer.
//
// Every command except serve, config, demo, install, migrate and images allowed speaks CRI to a
// running service over its socket, as the kubelet does; import, pulls, images, df, timeline, why,
// bundle, debug, stop and rm also use the services of api/berth/v1 on the same socket.
//
// # Promises
//
//   - Tables are for people; -o json and -o yaml are for programs.
//   - An error is one sentence on standard error that names the object and the remedy.
//   - stop and rm print after two seconds what they are waiting for, with the last error. Ctrl-C
//     ends the wait, and the command prints which work goes on without it. A second Ctrl-C ends the
//     process at once.
//   - play removes the objects that it made if it cannot finish, unless it is asked to keep them.
//   - serve never waits for the reader of its output: see package asynclog.
package ctl
