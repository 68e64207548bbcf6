// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"berth/internal/base/asynclog"
	"berth/internal/base/retry"
	"berth/internal/host/fdstore"
)

// socketInterval is how often berth looks whether clients still find its sockets.
const socketInterval = 2 * time.Second

// socket is a listener that clients find by the path of a file, which anybody who may write to its
// directory can remove or replace: clients stay connected, and no further one comes.
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

// sockets are those on which CRI is served, and the descriptors that the service manager keeps for
// the next berth.
type sockets struct {
	log       *asynclog.Log
	kept      *fdstore.Store
	inherited map[string]int // descriptors that an earlier berth has left, but for those of listeners
	lis       net.Listener
	also      []net.Listener // of cri.sockets
}

// openSockets takes the descriptors that the service manager, or an earlier berth, has left open,
// and takes or opens the CRI sockets.
func openSockets(b base) (s *sockets, err error) {
	s = &sockets{log: b.log}
	var p passed
	p, s.inherited = takePassed()
	if s.kept, err = fdstore.Open(b.log.Logger); err != nil {
		return nil, err
	}
	if s.lis, err = p.listen(b.cfg.Address, s.kept, b.log.Logger); err != nil {
		return nil, err
	}
	b.undo.add(func() error {
		if err := s.lis.Close(); !errors.Is(err, net.ErrClosed) { // the server has closed it if it has served
			return err
		}
		return nil
	})
	s.also = p.listenAlso(b.cfg.CRI.Sockets, s.kept, b.log.Logger)
	b.undo.add(func() error {
		for _, lis := range s.also {
			_ = lis.Close() // most often the server has closed it
		}
		return nil
	})
	return s, nil
}

// cri returns the sockets on which CRI is served.
func (s *sockets) cri() []*socket {
	const of = "a socket of CRI"
	all := []*socket{{of: of, lis: s.lis, path: s.lis.Addr().String(), kept: keptListener}}
	for _, lis := range s.also {
		path := lis.Addr().String()
		all = append(all, &socket{of: of, lis: lis, path: path, kept: alsoName(path)})
	}
	return all
}

// keep makes each of these sockets again whose file has gone or is another one, until ctx
// ends. serve is called with each listener that it makes, and returns when that was closed.
func (s *sockets) keep(ctx context.Context, these []*socket, serve func(net.Listener)) {
	var served sync.WaitGroup
	var again []net.Listener
	defer func() { // most often the server has closed them
		for _, lis := range again {
			_ = lis.Close()
		}
		served.Wait()
	}()
	for retry.Sleep(ctx.Done(), socketInterval) {
		for _, k := range these {
			if s.renew(k) {
				lis := k.lis
				again = append(again, k.unix())
				served.Go(func() { serve(lis) })
			}
		}
	}
}

// serve opens a socket for root alone at a path, if there is one, and makes it again whenever
// clients do not find it. f serves on each listener until ctx ends. of names the socket for people.
func (s *sockets) serve(ctx context.Context, of, path string, f func(net.Listener) error) error {
	if path == "" {
		<-ctx.Done()
		return nil
	}
	lis, err := newListener(path)
	if err != nil {
		return err
	}
	k := &socket{of: of, lis: unlinking{lis, path}, path: path}
	first := k.lis
	var kept sync.WaitGroup
	defer kept.Wait()
	watching, unwatch := context.WithCancel(ctx)
	defer unwatch() // also if f fails
	kept.Go(func() {
		s.keep(watching, []*socket{k}, func(lis net.Listener) {
			if err := f(lis); err != nil && watching.Err() == nil {
				s.log.Error(of+" is no longer served on a socket that was made again", "socket", path, "err", err)
			}
		})
	})
	if err := f(first); ctx.Err() == nil {
		return err
	}
	return nil
}

// renew looks whether clients find a socket by its path, and reports whether it had to be made
// again. The listener without a file stays open, with the clients that it has.
func (s *sockets) renew(k *socket) bool {
	if same, err := leadsTo(k.path, k.unix()); same || err != nil {
		return false // what cannot be told is asked again
	}
	lis, err := newListener(k.path)
	if err != nil {
		if err.Error() != k.err {
			s.log.Error(k.of+" was removed or replaced by another process, and cannot be made again; trying again", "socket", k.path, "err", err)
		}
		k.err = err.Error()
		return false
	}
	k.err, k.lis = "", unlinking{lis, k.path}
	if k.kept != "" && os.Getenv("NOTIFY_SOCKET") != "" {
		k.lis = lis
		s.kept.Drop(k.kept)
		if err := keep(s.kept, k.kept, lis); err != nil {
			s.log.Error(k.of+" was removed or replaced by another process, and cannot be made again; trying again", "socket", k.path, "err", err)
			return false
		}
	}
	s.log.Warn(k.of+" was removed or replaced by another process; it is made again", "socket", k.path)
	return true
}
