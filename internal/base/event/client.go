// SPDX-License-Identifier: Apache-2.0

package event

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// Client is the process that called berth, as the kernel knows it from its connection. Only root
// can connect. The zero Client is one that could not be asked for.
type Client struct {
	Pid int32  `json:"pid,omitempty"`
	UID uint32 `json:"uid,omitempty"`
	// Name is the name of its program, as it was when it connected. A program can choose it.
	Name string `json:"name,omitempty"`
}

// IsZero reports whether nothing is known of the client.
func (c Client) IsZero() bool { return c == Client{} }

// String returns the client for a line of a log, or "".
func (c Client) String() string {
	switch {
	case c.Name != "":
		return fmt.Sprintf("%s[%d]", c.Name, c.Pid)
	case c.Pid != 0:
		return fmt.Sprintf("pid %d", c.Pid)
	}
	return ""
}

// attrs returns the attributes of a line, and the client as the last one if it is known.
func (c Client) attrs(attrs ...slog.Attr) []slog.Attr {
	if s := c.String(); s != "" {
		attrs = append(attrs, slog.String("by", s))
	}
	return attrs
}

type clientKey struct{}

// WithClient returns a context for a call of c.
func WithClient(ctx context.Context, c Client) context.Context {
	return context.WithValue(ctx, clientKey{}, c)
}

// ClientOf returns whose call a context belongs to. It is the zero Client if the context does not
// belong to a call.
func ClientOf(ctx context.Context) Client {
	c, _ := ctx.Value(clientKey{}).(Client)
	return c
}

// IsKubelet reports whether the client's name is that of a kubelet. Some distributions have it in a
// program of their own.
func (c Client) IsKubelet() bool {
	for _, name := range []string{"kubelet", "k3s", "rke2", "k0s", "microk8s"} {
		if strings.HasPrefix(c.Name, name) {
			return true
		}
	}
	return false
}
