// SPDX-License-Identifier: Apache-2.0

// Package access keeps a record of each use of a container: each exec, attach, port-forward and
// checkpoint, with the command, the client, the time, the code and the bytes. It goes into the
// timeline, and into a file of which each line is chained to the one before, if one is configured.
//
// # Use
//
//	l := access.New(access.Config{File: "/var/log/berth/audit.log", Note: obs.Note})
//	err := l.Run(ctx)                   // writes
//	visit, err := l.Begin(access)       // an error: it is refused
//	visit.End(code, nil, in, out)
//
//	v := access.NewVerifier("")         // anybody, at any time
//	err = v.Add(file)
//	report, err := v.Result()
//
// # Promises
//
//   - A command that a client called kubelet asks for with ExecSync and a timeout is a probe. It is
//     counted, and in the file when it runs in a container for the first time since berth has
//     started; it never waits for the disk and is never refused. All other accesses are in the
//     timeline and in the file, when they begin and when they end, including hooks and commands by
//     way of the kubelet's /run, because they have no timeout.
//   - The first line about an access is on the disk before the access begins. If it cannot be
//     written within two seconds, the access is refused, unless the configuration lets it in; then
//     the file records later how many lines are missing.
//   - A line about the end of an access waits for the disk in memory, within a bound.
//   - A line is JSON, and has the SHA-256 of the line before. A line that is changed, inserted or
//     taken out anywhere but at the end breaks the chain. Lines taken from the end are noticed only
//     with a saved hash of a later line, which Result returns: the chain alone cannot show it.
//   - The file is only appended to. It may be renamed at any time (logrotate): the next line goes
//     into a new one, whose first line is chained to the last of the old one.
//   - A start that finds a torn last line, as a power cut leaves it, ends it, records that in the
//     next line and goes on with the chain.
//   - A terminal's session is kept as an asciicast, if a directory for that is configured, up to a
//     bound. The client's input is not recorded, but the terminal's output is.
//
// # Never
//
// No step of a container's life waits for this package.
//
// # To look at it live
//
// berth timeline NAME, and berth audit verify FILE.
package access
