// SPDX-License-Identifier: Apache-2.0

package image

import "sync"

// overhead is the least that an entry of a Cache counts, in bytes: its key and its place.
const overhead = 256

// Cache remembers values that never change, within a bound of bytes. Its methods may be called from
// any goroutine.
type Cache[V any] struct {
	mu          sync.Mutex
	limit, held int
	by          map[string]V
}

// NewCache makes a cache that holds at most limit bytes.
func NewCache[V any](limit int) *Cache[V] { return &Cache[V]{limit: limit, by: map[string]V{}} }

// Get returns the value of key, if it is still held.
func (c *Cache[V]) Get(key string) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.by[key]
	return v, ok
}

// Put remembers a value of so many bytes. When there is no room everything else is forgotten: that
// is rare, and cheap to read again. A value that takes more than an eighth of the room is not kept,
// so that one image cannot push out all others.
func (c *Cache[V]) Put(key string, v V, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	size += overhead
	if _, known := c.by[key]; known || size > c.limit/8 {
		return
	}
	if c.held+size > c.limit {
		clear(c.by)
		c.held = 0
	}
	c.by[key] = v
	c.held += size
}

// Len returns how many values are held.
func (c *Cache[V]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.by)
}
