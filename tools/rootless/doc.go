// SPDX-License-Identifier: Apache-2.0

// Package rootless runs berth for a user without root: berth rootless. It makes a user namespace in
// which the user is root, with namespaces of its own for mounts, processes, networks, IPC, the
// hostname and cgroups, and runs a command in it, such as berth serve.
//
//	user     Run ───── newuidmap, newgidmap, slirp4netns ─────┐
//	                                                          v
//	inside        Inside: waits until the IDs are mapped, and executes itself again;
//	              cgroups, mounts, the loopback; then starts the command, and waits for it
//
// The kernel gives a process that is executed without a mapped ID no capability, and one that is
// executed by the root of the namespace all of them: hence two steps.
//
// # Promises
//
//   - It takes nothing that root has not given to the user: IDs of /etc/subuid and /etc/subgid,
//     which newuidmap and newgidmap check, and the cgroup that it is started in. If something is
//     missing, the error names the step that root has to take.
//   - It leaves nothing: when the command or berth rootless itself ends, however it ends, the
//     kernel ends every process and every mount with the namespaces. The cgroups are removed as
//     well. If berth rootless was killed, the service that delegated the cgroup, such as systemd,
//     removes them.
//   - A berth serve that is killed inside is started again, and its pods go on. Pods do not outlive
//     berth rootless.
//
// # Never
//
// The package changes nothing outside the namespaces but that cgroup. It knows nothing of pods.
//
// # To look at it live
//
// The commands of berth find the user's socket by themselves ([Address]), and beside it the one for
// exec, attach and port-forward. nsenter(1) enters the namespaces, with the process ID that berth
// rootless prints.
package rootless
