// SPDX-License-Identifier: Apache-2.0

// Package soak kills berth with SIGKILL many times while clients make pods, start, update, stop and
// remove containers, execute commands in them, and pull, import and remove images. Each client
// repeats a call until it is answered, as a kubelet does.
//
// It shows that no exit code is wrong, that no program is started twice, that no event and no byte
// of a log is lost, that each call can be repeated, and that nothing is left when all is removed.
// It prints figures: how much was done, and the longest times until berth was ready and until an
// end was visible.
//
// `make soak` runs it with 1000 kills; BERTH_KILLS is another number. BERTH_SEED takes back the
// seed that is printed. It needs root and the output of `make tools build`. berth's log stays in
// build/soak if a test fails.
package soak
