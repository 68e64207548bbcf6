// SPDX-License-Identifier: Apache-2.0

// Package install puts an unpacked archive of berth into the directories of a host, and takes it
// away again: berth install.
//
// # Promises
//
//   - The manifest of the files to be written, with their sums, is written first. So an install
//     that was cut off at any point can be repeated or undone.
//   - A file is there whole, in its old or its new version. Programs that run are replaced and not
//     written to.
//   - A file from another source is not touched unless that is requested: neither by Install, nor
//     by Uninstall, which leaves changed files and reports them. A configuration that exists stays.
//   - An installed berth that runs is restarted once the new one is whole, and pods live on.
//   - The same archive installed twice changes nothing the second time.
//
// # Never
//
// It does not touch the records, the images or the pods of a berth, and starts none that does not
// run.
//
// # Files
//
// install.go has both ways, manifest.go the record, and host.go the operations that a running berth
// forbids.
package install
