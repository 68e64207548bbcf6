// SPDX-License-Identifier: Apache-2.0

// Package rollout computes, in virtual time, the cost of bringing a new image to thousands of
// nodes: the bytes that the registry sends, and when the last node has the image, with and without
// peers. Its program prints the table of docs/scale.md:
//
//	go test ./test/rollout -run TestTable -v -args -nodes 5000
//
// # What is assumed
//
//   - A sender shares its bandwidth evenly among its transfers, and so does a receiver; the network
//     between them bears everything. A transfer gets the least of both shares.
//   - The nodes of a step begin within two seconds of each other, as the watch of the API server
//     reaches them. The next step begins when all of them have the image.
//   - A node fetches three layers at the same time. Before each blob it asks peers as package peer
//     does: those that had a blob of the image, and others at random, and again every five seconds
//     while the registry sends the blob: a peer that has it then sends the rest.
//   - A peer offers only complete blobs, and sends at most 16 at the same time.
//     Peers do not fail, and none of the nodes has the image before, unless the scenario has it so.
//   - Questions, handshakes and unpacking take no time. Only bytes of layers are counted.
package rollout
