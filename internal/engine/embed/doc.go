// SPDX-License-Identifier: Apache-2.0

// Package embed runs containerd's server inside the berth process.
//
// # What it is for
//
// A node without a containerd of its own: one process, one data directory. Start opens the
// directories and returns a Server; Server.Client is an ordinary containerd client whose services
// are plain function calls in this process. Services that are not plain function calls (the sandbox
// controllers, the version and health services) go through the server's own unix socket, so that
// every method of the client works. The in-memory services read the namespace from the context of
// each call: wrap it with namespaces.WithNamespace(ctx, embed.Namespace).
//
// # What it promises
//
//   - Only the parts listed in plugins.go are loaded, even if others are linked into the binary: no
//     CRI, restart, NRI or cgroup metrics plug-in. A part that cannot be loaded fails Start; none
//     is skipped in silence.
//   - Stop and a crash leave shims and containers alive. The next Start on the same directories
//     finds them again.
//   - Start waits for no shim that hangs, and runs no OCI runtime: it connects to each shim, and
//     that is all. Containerd is given the task of a running shim at the first request for it
//     (Server.SetAside), or in the background after Adopt; if the shim does not answer, once it
//     does. They live on meanwhile. Only shims to which a connection is not enough, because they do
//     not serve a pod, are asked in Start, which takes a fifth of a second.
//   - Two servers never share a directory: the second Start fails at once with an error that names
//     the directory and the process that holds it.
//   - A Start that fails closes all that it opened.
//   - Root is 0700, State is 0711 (user-namespaced containers must be able to traverse it to their
//     rootfs), the shim socket directory is 0700, and the API sockets are 0600.
//   - An encrypted layer is decrypted here, with the keys that come with the request to unpack it
//     and that are not kept.
//   - containerd never ends the process: a fatal error of its API listeners is logged and reported
//     on Server.Failed.
//
// # What it never does
//
// It does not make the process a child subreaper: with PR_SET_CHILD_SUBREAPER the shims of a
// daemonized start would become berth's children, and reaping them with wait4(-1) would steal the
// exit status of os/exec's children. Shims belong to the host's init. It does not change the OOM
// score, the cgroup or TMPDIR of the process either: those are the service manager's business. This
// is also why the loader here is berth's own and not cmd/containerd/server: that one closes nothing
// when it fails half-way, registers metrics that panic when it starts a second time, and waits for
// ever for a database that another process holds.
//
// # One at a time
//
// containerd keeps plug-in registrations, time-outs and the logger in process-wide variables: only
// one Server can run in a process. Start, Stop and Start again works. Stop cannot end some things,
// because containerd offers no way to: the connection to each running shim with its two goroutines,
// two descriptors and log pipe, until that shim ends (closing it would make containerd believe that
// the shim died, and kill the container), and one idle goroutine of the event exchange. A process
// that ends after Stop, as berth does, never notices; in one that goes on, the stopped server's own
// clean-up runs once more when such a shim ends, and finds nothing left to do.
//
// # Logs
//
// containerd logs through logrus; BridgeLog sends that to a slog.Logger, levels and fields kept.
// The shims' own lines are copied by containerd straight to the standard error of the process.
//
// # Looking at it live
//
//	ctr --address /run/berth/containerd/containerd.sock -n k8s.io tasks ls
//
// or the same with any containerd client: Server.Address is a full API endpoint.
package embed
