// SPDX-License-Identifier: Apache-2.0

// Package peercred identifies the process at the other end of a Unix socket.
//
// It returns the credentials that the kernel has noted, and asks no other source: for a client,
// those of the caller of connect(2); for a listener, those of the caller of listen(2). See
// SO_PEERCRED in unix(7).
package peercred

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// Of returns the process at the other end of a connection, and its user and group. It keeps nothing
// of the connection. It returns the kernel's errors, and an error for a closed connection.
func Of(conn syscall.Conn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(cerr, err); err != nil {
		return nil, err
	}
	return cred, nil
}
