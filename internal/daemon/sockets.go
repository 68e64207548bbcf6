// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"net"
	"os"
	"sync"
	"time"

	"berth/internal/base/retry"
)

// socketInterval is how often berth looks whether clients still find its sockets.
const socketInterval = 2 * time.Second

// socket is a listener that clients find by the path of a file, which anybody who may write to its
// directory can remove or replace: whoever is connected stays so, and nobody else comes.
type socket struct {
	of   string // names it for people
	lis  net.Listener
	path string
	kept string // its name in the descriptor store; "" if it is not to be kept there
	err  string // why it cannot be made again
}

// unix returns the listener itself.
func (s *socket) unix() *net.UnixListener {
	if u, ok := s.lis.(unlinking); ok {
		return u.Listener.(*net.UnixListener)
	}
	return s.lis.(*net.UnixListener)
}

// criSockets are the sockets on which CRI is served.
func (d *daemon) criSockets() []*socket {
	const of = "a socket of CRI"
	sockets := []*socket{{of: of, lis: d.lis, path: d.lis.Addr().String(), kept: keptListener}}
	for _, lis := range d.also {
		path := lis.Addr().String()
		sockets = append(sockets, &socket{of: of, lis: lis, path: path, kept: alsoName(path)})
	}
	return sockets
}

// keepSockets makes each of these sockets again whose file has gone or is another one, until ctx
// ends. serve is called with each listener that it makes, and returns when that was closed.
func (d *daemon) keepSockets(ctx context.Context, sockets []*socket, serve func(net.Listener)) {
	var served sync.WaitGroup
	var again []net.Listener
	defer func() { // most often the server has closed them
		for _, lis := range again {
			_ = lis.Close()
		}
		served.Wait()
	}()
	for retry.Sleep(ctx.Done(), socketInterval) {
		for _, s := range sockets {
			if d.renew(s) {
				lis := s.lis
				again = append(again, s.unix())
				served.Go(func() { serve(lis) })
			}
		}
	}
}

// renew looks whether clients find a socket by its path, and reports whether it had to be made
// again. The listener that nobody finds any more stays open, with the clients that it has.
func (d *daemon) renew(s *socket) bool {
	if same, err := leadsTo(s.path, s.unix()); same || err != nil {
		return false // what cannot be told is asked again
	}
	lis, err := newListener(s.path)
	if err != nil {
		if err.Error() != s.err {
			d.log.Error(s.of+" was removed or replaced by another process, and cannot be made again; trying again", "socket", s.path, "err", err)
		}
		s.err = err.Error()
		return false
	}
	s.err, s.lis = "", unlinking{lis, s.path}
	if s.kept != "" && os.Getenv("NOTIFY_SOCKET") != "" {
		s.lis = lis
		d.kept.Drop(s.kept)
		if err := keep(d.kept, s.kept, lis); err != nil {
			d.log.Error(s.of+" was removed or replaced by another process, and cannot be made again; trying again", "socket", s.path, "err", err)
			return false
		}
	}
	d.log.Warn(s.of+" was removed or replaced by another process; it is made again", "socket", s.path)
	return true
}
