// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/errkind"
)

// upperless are the file systems on which overlayfs cannot have its upper directory.
var upperless = map[int64]string{
	unix.NFS_SUPER_MAGIC:       "NFS",
	unix.OVERLAYFS_SUPER_MAGIC: "overlayfs",
	unix.MSDOS_SUPER_MAGIC:     "FAT",
	unix.SMB_SUPER_MAGIC:       "SMB",
	unix.CIFS_SUPER_MAGIC:      "CIFS",
	unix.SMB2_SUPER_MAGIC:      "CIFS",
	unix.FUSE_SUPER_MAGIC:      "FUSE",
	unix.V9FS_MAGIC:            "9p",
	unix.ECRYPTFS_SUPER_MAGIC:  "eCryptfs",
	0x5346544e:                 "NTFS",
	0x2011bab0:                 "exFAT",
}

// directory is a directory of berth's.
type directory struct{ key, path string }

func (m *machine) directories() []directory {
	return []directory{{"root", m.cfg.Root}, {"state", m.cfg.State}}
}

func askMounts(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	for _, d := range m.directories() {
		fs, err := m.Statfs(m.path(m.nearest(d.path)))
		if err != nil {
			f.unasked(err)
			continue
		}
		name := upperless[fs.Type]
		if name != "" && d.key == "root" && m.cfg.Containerd.Snapshotter == "overlayfs" {
			f.add(Error, "put root on a file system such as ext4, XFS or Btrfs, or set containerd.snapshotter to native",
				"%s is on %s, where overlayfs cannot have writable layers: no container can be made", d.path, name)
		}
		for _, flag := range []struct {
			bit        int64
			name, what string
		}{
			{unix.ST_RDONLY, "ro", "nothing can be kept there, and berth cannot start"},
			{unix.ST_NOEXEC, "noexec", "programs of images cannot be executed"},
			{unix.ST_NODEV, "nodev", "devices in layers of images cannot be used"},
			{unix.ST_NOSUID, "nosuid", "programs of images that change the user, such as sudo, do not work"},
		} {
			// /run is nosuid and nodev, and no layer is there
			usual := d.key == "state" && flag.bit != unix.ST_RDONLY
			if fs.Flags&flag.bit == 0 || usual {
				continue
			}
			s := Error
			if flag.bit == unix.ST_NODEV || flag.bit == unix.ST_NOSUID {
				s = Warning
			}
			f.add(s, "mount it without "+flag.name+", in /etc/fstab too", "%s is mounted with %s: %s", d.path, flag.name, flag.what)
		}
	}
	all, err := m.mounts()
	if err != nil {
		f.unasked(err)
		return f.result()
	}
	if mt := mountOf(all, m.cfg.State); !slices.Contains([]string{"tmpfs", "ramfs", ""}, mt.kind) {
		f.add(Warning, "mount a tmpfs on /run", "%s is on %s and not on a tmpfs: each boot finds sockets and files of pods that are gone", m.cfg.State, mt.kind)
	}
	if mt := mountOf(all, "/"); mt.point == "/" && !mt.shared {
		f.add(Warning, "run mount --make-rshared / before berth, as systemd does at boot",
			"the mount / is not shared: volumes with mountPropagation do not see later mounts, such as those of CSI drivers")
	}
	return f.result()
}

// share is the free part, in percent.
func share(free, of uint64) float64 { return 100 * float64(free) / float64(of) }

func askSpace(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	const do = "remove what is not used: berth df shows what takes the room, and berth images prune removes images"
	severity := func(percent, warn, fail float64) Severity {
		switch {
		case percent < fail:
			return Error
		case percent < warn:
			return Warning
		}
		return ""
	}
	for _, d := range m.directories() {
		fs, err := m.Statfs(m.path(m.nearest(d.path)))
		if err != nil {
			f.unasked(err)
			continue
		}
		if fs.Bytes > 0 {
			left := share(fs.Free, fs.Bytes)
			if s := severity(left, 10, 2); s != "" { // the kubelet evicts at 10 % itself
				f.add(s, do, "the disk of %s has %.1f %% of its room left, %d MiB", d.path, left, fs.Free>>20)
			}
		}
		if fs.Files > 0 {
			left := share(fs.FreeFiles, fs.Files)
			if s := severity(left, 5, 1); s != "" {
				f.add(s, do, "the disk of %s has %.1f %% of its inodes left, %d", d.path, left, fs.FreeFiles)
			}
		}
	}
	return f.result()
}

// How long a small file may take to the disk.
const (
	slowSync   = 100 * time.Millisecond
	deadlySlow = time.Second
)

func askLatency(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	for _, d := range m.directories() {
		dir := m.nearest(d.path)
		took, err := m.Sync(m.path(dir))
		switch {
		case errors.Is(err, syscall.EROFS):
			f.add(Error, "mount it for writing; the kernel's log says whether an error of the disk made it so", "%s cannot be written to: its file system is read-only", dir)
		case errkind.Full(err):
			f.add(Error, "make room", "%s cannot be written to: its disk is full", dir)
		case errors.Is(err, syscall.EIO):
			f.add(Error, "look into the kernel's log, and replace the disk", "writing to %s fails with an error of the disk", dir)
		case err != nil:
			f.unasked(fmt.Errorf("write to the disk of %s: %s", dir, strings.ReplaceAll(err.Error(), m.path(dir), dir)))
		case took >= slowSync:
			s := Warning
			if took >= deadlySlow {
				s = Error
			}
			f.add(s, "give root a disk of its own, or a faster one: each exit is written to it before it is told",
				"the disk of %s takes %s to make 4 KiB durable: that long is each exit delayed", dir, took.Round(time.Millisecond))
		}
	}
	return f.result()
}
