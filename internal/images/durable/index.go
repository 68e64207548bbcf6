// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"
)

// ErrWrong says that a layer is not as it was made.
var ErrWrong = errors.New("not as it was made")

// ErrNoIndex says that a layer has no index that is whole.
var ErrNoIndex = errors.New("there is no whole index")

// An index is a header, an entry for each name in the layer, an entry without a name, the number of
// names, and a checksum of all that, so that an index which was cut off is never taken for a whole
// one. The checksums find losses of a disk. They are not meant to withstand a person who makes two
// files of the same sum, because only root writes to a layer.
const (
	indexHeader = "berth-index 1\n"
	// maxName bounds a name that is read, in bytes: no path is longer.
	maxName = 1 << 16
	chunk   = 256 << 10 // bytes that are read at a time
)

// entry describes one name in the index. Numbers have a fixed size.
type entry struct {
	Mode, UID, GID uint32
	Size           int64  // of a regular file; otherwise 0
	Device         uint64 // that a device node stands for
	Seconds, Nanos int64  // of the last change
	Sum            uint64 // of the content of a regular file or a symbolic link
	Attributes     uint64 // sum of the extended attributes
}

// indexer describes files. One of them describes the files of one layer.
type indexer struct {
	buf  []byte
	sums map[uint64]uint64 // of files with several names, by inode
}

func newIndexer() *indexer {
	return &indexer{buf: make([]byte, chunk), sums: map[uint64]uint64{}}
}

// describe returns the entry of a name. Without contents, Sum of a regular file is 0.
func (x *indexer) describe(path string, root, contents bool) (entry, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return entry{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	e := entry{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Seconds: st.Mtim.Sec, Nanos: st.Mtim.Nsec}
	if root { // its time is that of the last name in it, which an index that lies elsewhere does not change
		e.Seconds, e.Nanos = 0, 0
	}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Size = st.Size
		if contents {
			e.Sum, err = x.sum(path, &st)
		}
	case unix.S_IFLNK:
		var target string
		target, err = os.Readlink(path)
		e.Sum = xxhash.Sum64String(target)
	case unix.S_IFCHR, unix.S_IFBLK:
		e.Device = st.Rdev
	}
	if err != nil {
		return entry{}, err
	}
	e.Attributes, err = x.attributes(path)
	return e, err
}

// sum reads a regular file.
func (x *indexer) sum(path string, st *unix.Stat_t) (uint64, error) {
	if sum, ok := x.sums[st.Ino]; ok && st.Nlink > 1 {
		return sum, nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	d := xxhash.New()
	for left := st.Size; left >= 0; {
		n, err := unix.Read(fd, x.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			break
		}
		_, _ = d.Write(x.buf[:n])
		if left -= int64(n); left == 0 { // most often, and no need to read its end
			break
		}
	}
	if st.Nlink > 1 {
		x.sums[st.Ino] = d.Sum64()
	}
	return d.Sum64(), nil
}

// foreign reports whether an attribute is not the layer's: a security policy of the host sets it,
// or overlayfs for itself.
func foreign(name string) bool {
	switch name {
	case "security.selinux", "security.ima", "security.evm":
		return true
	}
	return strings.HasPrefix(name, "trusted.overlay.") && name != "trusted.overlay.opaque"
}

func (x *indexer) attributes(path string) (uint64, error) {
	n, err := unix.Llistxattr(path, x.buf)
	if errors.Is(err, unix.ENOTSUP) {
		return 0, nil
	}
	if err != nil {
		return 0, &fs.PathError{Op: "listxattr", Path: path, Err: err}
	}
	if n == 0 {
		return 0, nil
	}
	names := strings.Split(strings.TrimSuffix(string(x.buf[:n]), "\x00"), "\x00")
	slices.Sort(names)
	d, own := xxhash.New(), false
	for _, name := range names {
		if foreign(name) {
			continue
		}
		own = true
		n, err := unix.Lgetxattr(path, name, x.buf)
		if err != nil {
			return 0, &fs.PathError{Op: "getxattr", Path: path, Err: err}
		}
		_, _ = d.WriteString(name)
		_, _ = d.Write([]byte{0})
		_, _ = d.Write(binary.LittleEndian.AppendUint64(nil, uint64(n)))
		_, _ = d.Write(x.buf[:n])
	}
	if !own {
		return 0, nil
	}
	return d.Sum64(), nil
}

// walk calls f with each name below dir, and with "." first. A directory comes before its content.
// Names of one directory are read some at a time: a layer may have millions of them.
func walk(dir string, f func(name string, isDir bool) error) error {
	if err := f(".", true); err != nil {
		return err
	}
	for todo := []string{"."}; len(todo) > 0; {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		d, err := os.Open(filepath.Join(dir, at))
		if err != nil {
			return err
		}
		for {
			entries, err := d.ReadDir(1024)
			for _, e := range entries {
				name := filepath.Join(at, e.Name())
				if e.IsDir() {
					todo = append(todo, name)
				}
				if err := f(name, e.IsDir()); err != nil {
					d.Close()
					return err
				}
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				d.Close()
				return err
			}
		}
		d.Close()
	}
	return nil
}

// WriteIndex describes the layer in dir in the file at path. It does not sync the file: an index
// that was cut off is not a whole one.
func WriteIndex(dir, path string) error {
	if err := writeIndex(dir, path+".new"); err != nil {
		return fmt.Errorf("write index %s: %w", path, err)
	}
	return os.Rename(path+".new", path)
}

func writeIndex(dir, path string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	d := xxhash.New()
	file := bufio.NewWriterSize(f, chunk)
	w := io.MultiWriter(file, d)
	var count uint64
	var line []byte
	put := func(name string, e entry) error {
		line = binary.LittleEndian.AppendUint32(line[:0], uint32(len(name)))
		line = append(line, name...)
		if line, err = binary.Append(line, binary.LittleEndian, e); err != nil {
			return err
		}
		_, err := w.Write(line)
		return err
	}
	if _, err := io.WriteString(w, indexHeader); err != nil {
		return err
	}
	x := newIndexer()
	err = walk(dir, func(name string, _ bool) error {
		e, err := x.describe(filepath.Join(dir, name), name == ".", true)
		if err != nil {
			return err
		}
		count++
		return put(name, e)
	})
	if err != nil {
		return err
	}
	if err := put("", entry{}); err != nil {
		return err
	}
	if _, err := w.Write(binary.LittleEndian.AppendUint64(nil, count)); err != nil {
		return err
	}
	if _, err := file.Write(binary.LittleEndian.AppendUint64(nil, d.Sum64())); err != nil {
		return err
	}
	return file.Flush()
}

// openIndex opens an index that is whole. The caller closes it. Its entries follow.
func openIndex(path string) (*os.File, *bufio.Reader, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%w: %w", ErrNoIndex, err)
	}
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	const tail = 8
	d := xxhash.New()
	sum := make([]byte, tail)
	var header string
	if st.Size() >= tail {
		b := make([]byte, min(len(indexHeader), int(st.Size()-tail)))
		if _, err = f.ReadAt(b, 0); err == nil {
			header = string(b)
			_, err = io.Copy(d, io.NewSectionReader(f, 0, st.Size()-tail))
		}
		if err == nil {
			_, err = f.ReadAt(sum, st.Size()-tail)
		}
		if err != nil {
			f.Close()
			return nil, nil, err
		}
	}
	if header != indexHeader || binary.LittleEndian.Uint64(sum) != d.Sum64() {
		f.Close()
		return nil, nil, fmt.Errorf("%w: %s was cut off", ErrNoIndex, path)
	}
	r := bufio.NewReaderSize(io.NewSectionReader(f, int64(len(indexHeader)), st.Size()), chunk)
	return f, r, nil
}

// CheckIndex compares the layer in dir with the index at path: all of it, or only whether each name
// of the index is there, with its size and the other attributes that stat tells. That takes little
// memory, however large the layer is. It returns ErrWrong with the first difference, ErrNoIndex, or
// the error for which it cannot tell.
func CheckIndex(dir, path string, contents bool) error {
	f, r, err := openIndex(path)
	if err != nil {
		return err
	}
	defer f.Close()
	x := newIndexer()
	size := make([]byte, binary.Size(entry{}))
	var names uint64
	for {
		var n [4]byte
		if _, err := io.ReadFull(r, n[:]); err != nil {
			return fmt.Errorf("%w: %w", ErrNoIndex, err)
		}
		length := binary.LittleEndian.Uint32(n[:])
		if length > maxName {
			return fmt.Errorf("%w: a name of %d bytes", ErrNoIndex, length)
		}
		name := make([]byte, length)
		var want entry
		if _, err := io.ReadFull(r, name); err != nil {
			return fmt.Errorf("%w: %w", ErrNoIndex, err)
		}
		if _, err := io.ReadFull(r, size); err != nil {
			return fmt.Errorf("%w: %w", ErrNoIndex, err)
		}
		if _, err := binary.Decode(size, binary.LittleEndian, &want); err != nil {
			return err
		}
		if length == 0 {
			break
		}
		names++
		if err := x.compare(dir, string(name), want, contents); err != nil {
			return err
		}
	}
	if !contents {
		return nil
	}
	err = walk(dir, func(string, bool) error {
		names--
		return nil
	})
	if err == nil && names != 0 {
		err = fmt.Errorf("there are names that the layer does not have: %w", ErrWrong)
	}
	return err
}

// compare compares one name with its entry.
func (x *indexer) compare(dir, name string, want entry, contents bool) error {
	path := filepath.Join(dir, name)
	have, err := x.describe(path, name == ".", false)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("%s is missing: %w", name, ErrWrong)
	}
	if err != nil {
		return err
	}
	regular := want.Mode&unix.S_IFMT == unix.S_IFREG
	sum := want.Sum
	if regular {
		want.Sum = 0
	}
	if have != want {
		return fmt.Errorf("%s has %s: %w", name, have.differs(want), ErrWrong)
	}
	if !regular || !contents {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	if have.Sum, err = x.sum(path, &st); err != nil {
		return err
	}
	if have.Sum != sum {
		return fmt.Errorf("%s has other contents: %w", name, ErrWrong)
	}
	return nil
}

// differs returns the first difference between two entries.
func (e entry) differs(want entry) string {
	switch {
	case e.Mode != want.Mode:
		return fmt.Sprintf("mode %o and not %o", e.Mode, want.Mode)
	case e.Size != want.Size:
		return fmt.Sprintf("%d bytes and not %d", e.Size, want.Size)
	case e.UID != want.UID || e.GID != want.GID:
		return fmt.Sprintf("owner %d:%d and not %d:%d", e.UID, e.GID, want.UID, want.GID)
	case e.Seconds != want.Seconds || e.Nanos != want.Nanos:
		return "another time"
	case e.Attributes != want.Attributes:
		return "other attributes"
	default:
		return "another target"
	}
}
