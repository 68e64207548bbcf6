// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// dialTimeout bounds the connection to a port of a pod on this node.
const dialTimeout = 10 * time.Second

// dialIn connects to a port of the loopback in a network namespace; "" is the host's.
func dialIn(ctx context.Context, netns string, port int) (halfConn, error) {
	return dialThrough(ctx, enterNetNS, netns, port)
}

// enterNetNS calls f on a thread that is in a network namespace, and that does nothing else
// meanwhile.
func enterNetNS(path string, f func() error) error {
	return ns.WithNetNSPath(path, func(ns.NetNS) error { return f() })
}

// dialThrough connects to a port of the loopback, IPv4 first and then IPv6.
func dialThrough(ctx context.Context, enter func(path string, f func() error) error, netns string, port int) (halfConn, error) {
	var errs []error
	for _, to := range []unix.Sockaddr{
		&unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}},
		&unix.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}},
	} {
		conn, err := dialOne(ctx, enter, netns, to)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, fmt.Errorf("connect to %s: %w", name(to), err))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// name writes an address for people.
func name(at unix.Sockaddr) string {
	if four, ok := at.(*unix.SockaddrInet4); ok {
		return fmt.Sprintf("127.0.0.1:%d", four.Port)
	}
	return fmt.Sprintf("[::1]:%d", at.(*unix.SockaddrInet6).Port)
}

// dialOne connects to an address. A socket belongs to the namespace in which it is made, wherever
// it is used later: the namespace is left before the connection is made, which takes as long as the
// pod pleases.
func dialOne(ctx context.Context, enter func(path string, f func() error) error, netns string, to unix.Sockaddr) (halfConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	fd := -1
	open := func() (err error) {
		family := unix.AF_INET
		if _, ok := to.(*unix.SockaddrInet6); ok {
			family = unix.AF_INET6
		}
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return err
	}
	var err error
	if netns == "" {
		err = open()
	} else {
		err = enter(netns, open)
	}
	if err != nil {
		return nil, err
	}
	err = unix.Connect(fd, to)
	socket := os.NewFile(uintptr(fd), name(to))
	defer socket.Close()
	if err != nil && !errors.Is(err, unix.EINPROGRESS) && !errors.Is(err, unix.EINTR) {
		return nil, err
	}
	if err := awaitConnected(ctx, socket); err != nil {
		return nil, err
	}
	conn, err := net.FileConn(socket) // a copy
	if err != nil {
		return nil, err
	}
	if conn.LocalAddr().String() == conn.RemoteAddr().String() {
		// There is no listener: the kernel chose the very port for this end, and connected it with
		// itself.
		_ = conn.Close()
		return nil, unix.ECONNREFUSED
	}
	return conn.(*net.TCPConn), nil // TCP connections have this type
}

// awaitConnected waits until a socket is connected.
func awaitConnected(ctx context.Context, socket *os.File) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			failed = err
			return true
		}
		if code != 0 {
			failed = unix.Errno(code)
			return true
		}
		_, err = unix.Getpeername(int(fd))
		return err == nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, failed)
}
