// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"sync"

	"golang.org/x/sys/unix"
)

// mounts knows which pins were there when the mounts of this process changed last. Pins are mounts:
// as long as no mount changes, they are there, and 500 pods at rest cost one question to the kernel
// for each, instead of five.
type mounts struct {
	mu  sync.Mutex
	fd  int    // of the list of mounts; 0 before the first question
	now uint64 // grows with each change
	at  map[string]uint64
}

// look returns a number that stays the same as long as no mount changes, and whether the pins of an
// ID were there at that number. If the kernel cannot be asked, it is another number each time.
func (m *mounts) look(id string) (now uint64, there bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fd <= 0 {
		m.fd, _ = unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	asked := []unix.PollFd{{Fd: int32(m.fd), Events: unix.POLLPRI}}
	if n, err := unix.Poll(asked, 0); m.fd <= 0 || err != nil || n > 0 { // proc_pid_mounts(5)
		m.now++
	}
	at, ok := m.at[id]
	return m.now, ok && at == m.now
}

// note notes that the pins of an ID were there after look had returned that number.
func (m *mounts) note(id string, now uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at == nil {
		m.at = map[string]uint64{}
	}
	m.at[id] = now
}

// forget forgets the pins of an ID.
func (m *mounts) forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.at, id)
}
