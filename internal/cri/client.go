// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxMessage is the largest message in either direction, in bytes.
const maxMessage = 32 << 20

// Client speaks CRI and berth.v1.Admin to one endpoint.
type Client struct {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
	conn *grpc.ClientConn
}

// Dial makes a client for an endpoint, which is unix:///PATH or /PATH. It connects at the first
// call. The caller closes the client.
func Dial(endpoint string) (*Client, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !strings.HasPrefix(path, "/") {
		return nil, invalid("endpoint %q is not a Unix socket; use unix:///PATH or /PATH", endpoint)
	}
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", endpoint, err)
	}
	return &Client{
		RuntimeServiceClient: runtimeapi.NewRuntimeServiceClient(conn),
		ImageServiceClient:   runtimeapi.NewImageServiceClient(conn),
		conn:                 conn,
	}, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }
