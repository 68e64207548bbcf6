// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"berth/internal/base/event"
	"berth/internal/base/peercred"
)

// local are the credentials of a server on a Unix socket: nothing is encrypted, and the kernel
// identifies the client. Whom it cannot name is served all the same, because the mode of the socket
// decides who may connect.
type local struct{}

// whom is the information of local about a connection.
type whom struct {
	credentials.CommonAuthInfo
	client event.Client
}

// AuthType implements credentials.AuthInfo.
func (whom) AuthType() string { return "unix" }

// ServerHandshake implements credentials.TransportCredentials.
func (local) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	client, _ := clientOf(c)
	return c, whom{credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}, client}, nil
}

// ClientHandshake implements credentials.TransportCredentials. Only servers use these credentials.
func (local) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these are the credentials of a server")
}

// Info implements credentials.TransportCredentials.
func (local) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}

// Clone implements credentials.TransportCredentials.
func (local) Clone() credentials.TransportCredentials { return local{} }

// OverrideServerName implements credentials.TransportCredentials.
func (local) OverrideServerName(string) error { return nil }

// clientOf returns the process at the other end of a connection. The name of its program is read
// once for a connection; "" if it cannot be read.
func clientOf(c net.Conn) (event.Client, error) {
	counted, ok := c.(*conn)
	if ok {
		c = counted.Conn
	}
	s, ok := c.(syscall.Conn)
	if !ok {
		return event.Client{}, fmt.Errorf("the connection %T has no descriptor", c)
	}
	cred, err := peercred.Of(s)
	if err != nil {
		return event.Client{}, err
	}
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cred.Pid))
	return event.Client{Pid: cred.Pid, UID: cred.Uid, Name: strings.TrimSpace(string(name))}, nil
}

// called returns a context that carries the client of the call.
func called(ctx context.Context) context.Context {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ctx
	}
	w, ok := p.AuthInfo.(whom)
	if !ok || w.client.IsZero() {
		return ctx
	}
	return event.WithClient(ctx, w.client)
}
