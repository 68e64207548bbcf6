// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/user"
	"strconv"

	"berth/internal/base/config"
	"berth/internal/serve/cri"
	"berth/internal/serve/nodeapi"
)

// readersMode is the mode of api.read_socket: its group reads, and is not root.
const readersMode = 0o660

// serveReaders serves berth.v1.Node, which changes nothing, on the socket of the settings, if there
// is one. Its server has neither CRI nor berth.v1.Control, so that a member of the group cannot
// reach them by any method.
func serveReaders(ctx context.Context, s *sockets, cfg config.API, node *nodeapi.Node, log *slog.Logger, observer cri.Observer) error {
	group, err := groupID(cfg.ReadGroup)
	if err != nil {
		return err
	}
	srv := cri.NewServerWithoutCRI(log, observer, node.Ops)
	nodeapi.RegisterNode(srv, node)
	defer context.AfterFunc(ctx, func() { srv.Stop() })()
	return s.serve(ctx, "api.read_socket", cfg.ReadSocket, func(lis net.Listener) error {
		// The socket is for root alone until its group is known: first the owner, then the mode.
		path := lis.Addr().String()
		if err := errors.Join(os.Lchown(path, 0, group), os.Chmod(path, readersMode)); err != nil {
			return fmt.Errorf("give api.read_socket to its group: %w", err)
		}
		return srv.Serve(lis)
	})
}

// groupID returns the number of a group by its name or number; that of root for none.
func groupID(name string) (int, error) {
	if name == "" {
		return 0, nil
	}
	if id, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(id), nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, fmt.Errorf("api.read_group: %w", err)
	}
	return strconv.Atoi(g.Gid)
}
