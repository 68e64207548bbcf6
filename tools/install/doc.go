// SPDX-License-Identifier: Apache-2.0

// Package install puts an unpacked archive of berth into the directories of a host, and takes it away
// again: berth install.
//
// # Promises
//
//   - What is written first is the manifest of what is about to be written, with its sums. So an
//     install that was cut off can be repeated or taken back, whatever it had done.
//   - A file is there whole, in its old or its new version. Programs that run are replaced and not
//     written to.
//   - A file that somebody else wrote is not touched unless that is asked for: neither by Install, nor
//     by Uninstall, which leaves what was changed and says so. A configuration that exists stays.
//   - An installed berth that runs is restarted once the new one is whole, and pods live on.
//   - The same archive installed twice changes nothing the second time.
//
// # Never
//
// It does not touch the records, the images or the pods of a berth, and starts none that does not run.
//
// # Files
//
// install.go has both ways, manifest.go what is on record, and host.go what a running berth forbids.
package install
