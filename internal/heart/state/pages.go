// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	berrors "go.etcd.io/bbolt/errors"
)

// A file of bbolt's consists of pages. Pages 0 and 1 are its metas, which are written in turn: the
// valid one of the higher transaction points to the root. Each other page that is in use has leaves
// or branches: a header (ID, flags, count, overflow), an element for each key, and the keys and
// values, without a gap, in the order of the elements. So a page describes its layout twice, and a
// flipped bit in it is found, and repaired, by trying each.
//
// The layout is bbolt's version 2 of its file, which has not changed since 2016. bbolt itself
// panics at a page that it cannot read.
const (
	pageHeader  = 16
	pageElement = 16
	pageBranch  = 1
	pageLeaf    = 2
	boltMagic   = 0xED0CDAED
	boltVersion = 2
	metaLength  = 64
	inBucket    = 1 // of the flags of an element of a leaf
)

var little = binary.LittleEndian

// pages is the content of a database, read without bbolt.
type pages struct {
	b       []byte
	size    int    // of a page
	root    uint64 // the page of the root
	written uint64 // the number of the last transaction
	seen    map[uint64]bool

	links    []int    // where in b there is the number of a page
	mended   int      // repaired bits of pages
	values   int      // repaired bits of values, which bbolt does not look at
	faults   []string // the unreadable parts
	disorder bool     // a key is in the wrong place
}

// item is one element of a page, with the bytes between its key and the next one's.
type item struct {
	key, value []byte
	bucket     bool   // value is a bucket
	child      uint64 // of a branch
}

// readPages finds the root. The error is ErrInvalid of bbolt's for a file that is none of its.
func readPages(b []byte) (*pages, error) {
	p := &pages{b: b, seen: map[uint64]bool{}}
	found := false
	for _, size := range []int{4096, 16384, 65536, 8192, 32768, 1024, 2048} {
		for _, at := range []int{0, size} {
			if len(b) < at+pageHeader+metaLength {
				continue
			}
			m := b[at+pageHeader : at+pageHeader+metaLength]
			valid := func() bool {
				h := fnv.New64a()
				_, _ = h.Write(m[:metaLength-8])
				return little.Uint32(m) == boltMagic && little.Uint32(m[4:]) == boltVersion &&
					int(little.Uint32(m[8:])) == size && little.Uint64(m[metaLength-8:]) == h.Sum64()
			}
			if !valid() {
				if !flipped(m, valid) {
					continue
				}
				p.mended++
			}
			if tx := little.Uint64(m[48:]); !found || tx > p.written {
				found, p.written, p.size, p.root = true, tx, size, little.Uint64(m[16:])
			}
		}
		if found {
			return p, nil
		}
	}
	return nil, berrors.ErrInvalid
}

// flipped tries each bit of b, until ok. Then it stays flipped.
func flipped(b []byte, ok func() bool) bool {
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if ok() {
				return true
			}
			b[i] ^= 1 << bit
		}
	}
	return false
}

// layout reads a page of size bytes, and those that it overflows into, from the beginning of b. A
// bucket in a value is a page of size 0.
func layout(b []byte, id uint64, size int) (items []item, leaf bool, err error) {
	if len(b) < pageHeader {
		return nil, false, errors.New("it is beyond the end of the file")
	}
	flags, count := little.Uint16(b[8:]), int(little.Uint16(b[10:]))
	leaf = flags == pageLeaf
	end := pageHeader + pageElement*count
	if little.Uint64(b) != id || !leaf && flags != pageBranch || end > len(b) {
		return nil, leaf, errors.New("it has no header")
	}
	if count == 0 && len(b) >= end+pageElement && !bytes.Equal(b[end:end+pageElement], make([]byte, pageElement)) {
		return nil, leaf, errors.New("it has elements, and counts none")
	}
	for i := range count {
		at := pageHeader + pageElement*i
		e := b[at : at+pageElement]
		var it item
		var pos, key, value int
		if leaf {
			kind := little.Uint32(e)
			if kind > inBucket {
				return nil, leaf, errors.New("it has an element of an unknown kind")
			}
			it.bucket, pos, key, value = kind == inBucket, int(little.Uint32(e[4:])), int(little.Uint32(e[8:])), int(little.Uint32(e[12:]))
		} else {
			pos, key, it.child = int(little.Uint32(e)), int(little.Uint32(e[4:])), little.Uint64(e[8:])
		}
		if at+pos != end || key == 0 || key > len(b)-end || value > len(b)-end-key {
			return nil, leaf, errors.New("its elements are not where they should be")
		}
		it.key, it.value = b[end:end+key:end+key], b[end+key:end+key+value:end+key+value]
		if i == count-1 { // only its own length marks its end
			limit := len(b)
			if size > 0 {
				limit = min(limit, size*(int(little.Uint32(b[12:]))+1))
			}
			it.value = b[end+key : end+key+value : max(limit, end+key+value)]
		}
		end += key + value
		items = append(items, it)
	}
	if size > 0 && int(little.Uint32(b[12:])) != (end+size-1)/size-1 {
		return nil, leaf, errors.New("it has another length")
	}
	return items, leaf, nil
}

// at returns the bytes from the beginning of a page.
func (p *pages) at(id uint64) []byte {
	if id < 2 || id >= uint64(len(p.b)/p.size+1) {
		return nil
	}
	return p.b[id*uint64(p.size):]
}

// page reads a page, after repairing one bit of its header and elements if necessary.
func (p *pages) page(id uint64) (items []item, leaf bool, err error) {
	b := p.at(id)
	items, leaf, err = layout(b, id, p.size)
	if err == nil && (id != p.root || !slices.ContainsFunc(items, item.isNoBucket)) || len(b) < pageHeader {
		return items, leaf, err
	}
	// Two bits can explain a border that is in the wrong place. The right one leaves all items whole.
	whole := func() bool {
		items, leaf, err := layout(b, id, p.size)
		return err == nil && leaf && !slices.ContainsFunc(items, func(it item) bool {
			return it.isNoBucket() && (!isKey(it.key) || !isSealed(it.value))
		})
	}
	possible := func() bool { _, _, err := layout(b, id, p.size); return err == nil }
	if head := b[:min(len(b), p.size)]; flipped(head, whole) || err != nil && flipped(head, possible) {
		p.mended++
		return layout(b, id, p.size)
	}
	return items, leaf, err
}

// isNoBucket reports whether an item is not one of the buckets that there are, or a cut one.
func (it item) isNoBucket() bool {
	known := slices.ContainsFunc(buckets, func(name []byte) bool { return distance(it.key, name) <= 1 })
	return !known || len(it.value) < pageHeader || len(it.value) > pageHeader && little.Uint64(it.value) != 0
}

// walk calls each for the items of the leaves below a page, in their order.
func (p *pages) walk(id uint64, each func(item)) {
	if p.seen[id] {
		p.faults = append(p.faults, fmt.Sprintf("page %d: two pages lead to it", id))
		return
	}
	p.seen[id] = true
	items, leaf, err := p.page(id)
	if err != nil {
		p.faults = append(p.faults, fmt.Sprintf("page %d: %v", id, err))
		return
	}
	for i := range items {
		if leaf {
			each(items[i])
		} else {
			p.links = append(p.links, int(id)*p.size+pageHeader+pageElement*i+8)
			p.walk(p.child(&items[i]), each)
		}
	}
}

// child returns the page that an element of a branch leads to. The first key of that page is the
// element's key.
func (p *pages) child(it *item) uint64 {
	leads := func(id uint64) bool {
		below, _, err := layout(p.at(id), id, p.size)
		return err == nil && len(below) > 0 && bytes.Equal(below[0].key, it.key)
	}
	id, ok := p.link(it.child, leads)
	if !ok {
		p.disorder = true // the key here or there is another one
	}
	return id
}

// link returns the page that a number stands for, or the one of which the number differs by one
// bit. The page itself may have to be repaired: an earlier version of it is a page, too.
func (p *pages) link(id uint64, leads func(uint64) bool) (uint64, bool) {
	if leads(id) {
		return id, true
	}
	before := p.mended
	if _, _, err := p.page(id); err == nil && (leads(id) || p.mended > before) {
		return id, leads(id)
	}
	for bit := range 64 {
		if near := id ^ 1<<bit; leads(near) && !p.seen[near] {
			p.mended++
			return near, true
		}
	}
	return id, false
}

// bucket calls each for the items of a bucket, which is stored as the value of an item.
func (p *pages) bucket(value []byte, each func(item)) {
	if len(value) < pageHeader {
		p.faults = append(p.faults, "a bucket is cut off")
		return
	}
	if root := little.Uint64(value); root != 0 {
		p.walk(p.rootOf(root), each)
		return
	}
	inline := value[pageHeader:] // behind the number of the root and a sequence
	items, _, err := layout(inline, 0, 0)
	if err != nil && flipped(inline, func() bool { _, leaf, err := layout(inline, 0, 0); return err == nil && leaf }) {
		p.mended++
		items, _, err = layout(inline, 0, 0)
	}
	if err != nil {
		p.faults = append(p.faults, "a bucket: "+err.Error())
	}
	for _, it := range items {
		each(it)
	}
}

// rootOf returns the page that the root of a bucket is in.
func (p *pages) rootOf(id uint64) uint64 {
	id, _ = p.link(id, func(id uint64) bool {
		_, _, err := layout(p.at(id), id, p.size)
		return err == nil && !p.seen[id]
	})
	return id
}
