// SPDX-License-Identifier: Apache-2.0

// Package archtest keeps the rules of this repository as tests: who may import and call what,
// and that the documents are true. ARCHITECTURE.md has the rules in words.
//
// The package reads the source; it runs nothing. A rule that is broken names the file and says
// what to do. An exception stands beside the rule, with its reason.
package archtest
