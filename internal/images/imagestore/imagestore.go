// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"time"

	"berth/internal/base/connection"
	"berth/internal/images/durable"
	"berth/internal/images/image"
)

// Store is containerd's image store: its parts put together by [New]. It does nothing itself, and
// no part knows it.
type Store struct {
	*core
	*registries
	*jobs
	*views
	*Names
	*Durability
	*Reader
	*served
	*Verifier
	*Puller
}

// New makes the image store of a connection, which the caller closes. There is one in a
// process: where images are mounted is a setting of containerd's packages as a whole.
func New(conn *connection.Connection, cfg Config) (*Store, error) {
	if err := prepareMounts(cfg.MountDir, cfg.Logger); err != nil {
		return nil, err
	}
	return open(conn, cfg), nil
}

// open puts the parts together, each of those that are complete.
func open(conn *connection.Connection, cfg Config) *Store {
	c := &core{client: conn, cfg: cfg, early: newEarlyBlobs(cfg.Root, cfg.WriteLate)}
	rs, ks := &registries{core: c}, &keys{c}
	ns := &Names{core: c, parsed: image.NewCache[parsed](maxParsed)}
	js := &jobs{core: c}
	vs := &views{core: c, jobs: js}
	as := &artifacts{core: c, jobs: js}
	ls := &imageLayers{core: c, names: ns, views: vs, opened: time.Now()}
	rp := &repairer{core: c, names: ns, layers: ls, artifacts: as, keys: ks}
	if cfg.Boot != nil {
		rp.items = durable.NewItems(cfg.Boot)
	}
	d := openDurability(c, ls, rp)
	rd := &Reader{core: c, names: ns, jobs: js, views: vs, durability: d}
	s := &served{core: c, names: ns, durability: d, images: image.NewCache[members](maxServed)}
	u := &unpacker{core: c, names: ns, artifacts: as, keys: ks, durability: d}
	v := &Verifier{core: c, names: ns, layers: ls, items: rp.items, repairer: rp, durability: d, unpacker: u}
	p := &Puller{
		core:       c,
		registries: rs,
		names:      ns,
		jobs:       js,
		durability: d,
		served:     s,
		unpacker:   u,
		verifier:   v,
		askAgain:   askAgain,
	}
	return &Store{c, rs, js, vs, ns, d, rd, s, v, p}
}
