// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
)

// MaxMessage is the largest message in either direction, in bytes.
const MaxMessage = 32 << 20

// Client speaks CRI and the services of berth.v1 to one endpoint.
type Client struct {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
	Node    berthv1.NodeClient
	Control berthv1.ControlClient

	conn *grpc.ClientConn
}

// Dial makes a client for an endpoint, which is unix:///PATH, unix:PATH or PATH; a path that is not
// absolute is below the working directory. It connects at the first call. The caller closes the
// client. The error is InvalidArgument for an endpoint that cannot be a Unix socket. Tests add more
// options.
func Dial(endpoint string, more ...grpc.DialOption) (*Client, error) {
	path, err := socketPath(endpoint)
	if err != nil {
		return nil, err
	}
	// gRPC takes the target for a URL, in which a path may have a % or # only if it is escaped.
	target := url.URL{Scheme: "unix", Path: path}
	conn, err := grpc.NewClient(target.String(), append(more, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)))...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", endpoint, err)
	}
	return &Client{
		RuntimeServiceClient: runtimeapi.NewRuntimeServiceClient(conn),
		ImageServiceClient:   runtimeapi.NewImageServiceClient(conn),
		Node:                 berthv1.NewNodeClient(conn),
		Control:              berthv1.NewControlClient(conn),
		conn:                 conn,
	}, nil
}

// hostPort matches an address of the network, as opposed to a path.
var hostPort = regexp.MustCompile(`^[^/]*:\d+$`)

// socketPath returns the absolute path of the socket that an endpoint names.
func socketPath(endpoint string) (string, error) {
	path, whole := strings.CutPrefix(endpoint, "unix://")
	if !whole {
		path = strings.TrimPrefix(endpoint, "unix:")
	}
	switch {
	case path == "":
		return "", invalid("endpoint %q names no Unix socket; use unix:///PATH or PATH", endpoint)
	case whole && !strings.HasPrefix(path, "/"):
		return "", invalid("endpoint %q has a host in place of a path; use unix:///PATH with three slashes, or PATH", endpoint)
	case strings.Contains(path, "://"), hostPort.MatchString(path):
		return "", invalid("endpoint %q is not a Unix socket; use unix:///PATH or PATH", endpoint)
	case strings.ContainsRune(path, 0):
		return "", invalid("endpoint %q has a zero byte in it; use unix:///PATH or PATH", endpoint)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	if len(path) > maxSocketPath {
		return "", invalid("endpoint %q: the path %s has %d bytes, and that of a Unix socket has at most %d; use a link", endpoint, path, len(path), maxSocketPath)
	}
	// otherwise the error of the connection is more precise
	if st, err := os.Stat(path); err == nil && st.Mode()&os.ModeSocket == 0 {
		return "", invalid("endpoint %q: %s is not a socket", endpoint, path)
	}
	return path, nil
}

// maxSocketPath is how long the path of a Unix socket can be on Linux, in bytes.
const maxSocketPath = 107

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }
