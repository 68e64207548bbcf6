// SPDX-License-Identifier: Apache-2.0

// Package migrate turns the settings of containerd's CRI plug-in and of CRI-O into berth's, and says
// what they have that berth has not.
//
// # Files
//
// containerd.go and crio.go turn the settings of the old runtime into berth's, without looking at
// the node; tree.go, settings.go and registries.go are what both need.
package migrate
