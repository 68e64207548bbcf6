// SPDX-License-Identifier: Apache-2.0

// Package peer gives the blobs of images to other berths and gets them from there. A [Server] is a
// read-only registry (OCI distribution, /v2/) over mutual TLS. A [Client] looks for a blob at a few
// of the peers and copies it from one that has it.
//
// # Promises
//
//   - Each side of a connection shows a certificate that the authority has signed and that has the
//     name of peers. Others learn nothing, not even whether a blob is here.
//   - A peer is given a blob under the name of a repository of which an image here has that blob,
//     and under no other name: a manifest that lists the digest of somebody else's layer gets
//     nothing.
//   - There are digests only. The registry is asked for the target of a tag.
//   - No credentials of a registry are sent to a peer, and no peer is followed elsewhere.
//   - A peer that stalls, dribbles or dies costs its time-out at most, and is put aside. The caller
//     keeps the bytes that it has sent, and goes on elsewhere from there.
//   - Asking costs one time-out of its own, a fifth of that of a transfer, however many peers are
//     asked.
//   - Serving is bounded: connections, blobs at the same time, each with a share per peer. One blob
//     more is refused at once, and the peer goes elsewhere.
//   - A name of peers that cannot be resolved now means that there are no peers now.
//
// # Never
//
// It does not decide whether bytes are right: their store compares the digest, and tells
// [Client.Lied] about peers that sent wrong ones. It does not know the store, nor the registry.
//
// # Looking at it live
//
//	curl --cacert ca.pem --cert node.pem --key node-key.pem --resolve berth-peer:5443:10.0.0.7 \
//	    https://berth-peer:5443/v2/
//
// # Files
//
// server.go serves, tls.go has the certificates, client.go finds and copies, transfer.go is one
// transfer, addresses.go says who the peers are, and aside.go which of them are left alone for a
// while.
package peer
