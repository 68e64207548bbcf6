// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/api/client"
	"berth/tools/page"
)

func uiCommand(svc *service) *cobra.Command {
	since, listen := pageSince, "127.0.0.1:0"
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Serve a page that shows what happens on the node, for this machine alone",
		Long: "Serve the page of `berth report`, live and read only, and print its URL, which has a token that nobody can guess.\n" +
			"It ends with Ctrl-C. From another machine it is reached through ssh: `ssh -L 8080:127.0.0.1:PORT NODE`.",
		Args: cobra.NoArgs,
	}
	cmd.Flags().DurationVar(&since, "since", since, "how far back it goes, such as 2h")
	cmd.Flags().StringVar(&listen, "listen", listen, "address of the loopback with a port, or unix:///PATH")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if since <= 0 {
			return fmt.Errorf("--since %s is not positive", since)
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			l, url, err := listenLocally(ctx, listen)
			if err != nil {
				return err
			}
			defer l.Close()
			token := page.NewToken()
			source := page.Source{Model: newCollector(c, since).model, Why: whyOf(c), Log: logOf(c)}
			server := &http.Server{
				Handler:           page.NewHandler(token, source),
				ReadHeaderTimeout: 5 * time.Second,
				ReadTimeout:       10 * time.Second,
				WriteTimeout:      time.Minute,
				IdleTimeout:       time.Minute,
				MaxHeaderBytes:    16 << 10,
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s/?token=%s\n", url, token)
			stop := context.AfterFunc(ctx, func() { _ = server.Close() })
			defer stop()
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve the page on %s: %w", listen, err)
			}
			return nil
		})
	}
	return cmd
}

// listenLocally listens at an address that other machines cannot reach, and returns the beginning
// of the URL.
func listenLocally(ctx context.Context, address string) (net.Listener, string, error) {
	var cfg net.ListenConfig
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		if !strings.HasPrefix(path, "/") {
			return nil, "", fmt.Errorf("--listen %s: the path is not absolute", address)
		}
		l, err := listenPrivately(ctx, path)
		if err != nil {
			return nil, "", fmt.Errorf("--listen %s: %w", address, err)
		}
		return l, "http://localhost", nil
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().IsLoopback() {
		return nil, "", fmt.Errorf("--listen %s: it is neither an address of the loopback with a port, such as 127.0.0.1:8080, nor unix:///PATH", address)
	}
	l, err := cfg.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, "", err
	}
	return l, "http://" + l.Addr().String(), nil
}

// listenPrivately listens on a socket that never has another mode than 0600: it is made in a
// directory that other users may not enter, and moved to its place, which has to be free.
func listenPrivately(ctx context.Context, path string) (net.Listener, error) {
	if _, err := os.Lstat(path); err == nil {
		return nil, errors.New("something is there already; remove it, or choose another path")
	}
	dir, err := os.MkdirTemp(parentOf(path), ".berth-ui-*") // with mode 0700
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var cfg net.ListenConfig
	l, err := cfg.Listen(ctx, "unix", dir+"/s")
	if err != nil {
		return nil, err
	}
	unixListener, ok := l.(*net.UnixListener)
	if ok {
		unixListener.SetUnlinkOnClose(false)
	}
	if err = os.Chmod(dir+"/s", 0o600); err == nil {
		err = os.Link(dir+"/s", path)
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return &ownSocket{l, path}, nil
}

func parentOf(path string) string { return path[:strings.LastIndexByte(path, '/')+1] }

// ownSocket removes its file when it is closed.
type ownSocket struct {
	net.Listener
	path string
}

// Close closes the socket.
func (s *ownSocket) Close() error {
	err := s.Listener.Close()
	_ = os.Remove(s.path)
	return err
}
