// SPDX-License-Identifier: Apache-2.0

// Package image serves images: it lists them from memory, pulls, imports and removes them, and follows
// what others do to them in containerd.
//
// # Promises
//
//   - List, Status and Resolve take no trip to containerd.
//   - One pull per image and credentials, however many ask; it ends when all who asked have gone, or when
//     no byte has come for [Config].PullTimeout.
//   - Credentials go to the registry that they were given for and to no other.
//   - Names are those that the ecosystem reads: each image is known under its tag, its digest and its ID.
//
// # Never
//
// It speaks no containerd itself: [Backend] does.
package image
