// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"archive/tar"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"berth/internal/heart/pod"
)

// Bounds of an archive that is read. The size of its files together is bounded by the size of the
// archive itself.
const (
	maxFiles   = 1 << 16
	maxName    = 255 // of a file; the header of one in a tar can have a name of a mebibyte
	maxConfig  = 1 << 20
	maxChanged = 1 << 20 // files in the changes of the writable layer
)

// deletedFile is where CRI-O names the files that the container has deleted from its image.
const deletedFile = "deleted.files"

// Archives reads archives of checkpoints for containers that are restored from them.
type Archives struct {
	// Dir is a directory of root's for archives that come from images, on a disk with room for the
	// memory of a container. It exists.
	Dir string
}

// Read checks an archive and returns its description of the container. Nothing is written. The
// error is ErrInvalidArgument if it is not an archive of a checkpoint that this host could restore,
// ErrNotFound if it is absent, ErrFailedPrecondition if users other than root may have written it.
func (Archives) Read(ctx context.Context, archive string) (pod.Checkpoint, error) {
	c, err := inspect(ctx, archive)
	if err != nil {
		return pod.Checkpoint{}, about(archive, err)
	}
	return pod.Checkpoint{Image: c.RootfsImageName, ImageRef: c.RootfsImageRef}, nil
}

// inspect checks an archive, and returns its config.dump. Nothing is written.
func inspect(ctx context.Context, archive string) (config, error) {
	return scan(ctx, archive, func(string, *io.SectionReader) error { return nil })
}

// scan checks an archive from its beginning to its end. It calls part for each regular file that a
// restore needs: CRIU's files, and the changes of the writable layer.
func scan(ctx context.Context, archive string, part func(name string, r *io.SectionReader) error) (c config, err error) {
	f, size, err := open(archive)
	if err != nil {
		return c, err
	}
	defer f.Close()
	has := map[string]bool{}
	cores := 0
	err = walk(ctx, f, size, maxFiles, func(h *tar.Header, r *io.SectionReader) error {
		name := path.Clean(h.Name)
		dir, base := path.Split(name)
		if dir != imagesDir+"/" && name != configFile && name != deletedFile && name != changesFile {
			if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir {
				return invalid("%.100q is not a regular file or a directory", h.Name)
			}
			return nil // it is for people
		}
		switch {
		case has[name]:
			return invalid("it has %q twice", h.Name)
		case len(base) > maxName:
			return invalid("the name %.100q has more than %d bytes", base, maxName)
		case h.Typeflag == tar.TypeDir:
			has[name] = true
			return nil
		case h.Typeflag != tar.TypeReg:
			return invalid("%q is not a regular file or a directory", h.Name)
		}
		has[name] = true
		switch {
		case name == configFile:
			return readConfig(r, &c)
		case name == deletedFile && h.Size > 2: // more than [] or null or nothing
			return fmt.Errorf("it lists deleted files in %s, which berth does not read: %w", deletedFile, errdefs.ErrNotImplemented)
		case name == deletedFile:
			return nil
		case strings.HasPrefix(base, "core-"):
			cores++
			if err := checkCore(r); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return part(name, r)
	})
	switch {
	case err != nil:
	case !has[configFile]:
		err = invalid("it has no %s", configFile)
	case !has[imagesDir+"/inventory.img"] || cores == 0:
		err = invalid("it has no processes: %s/inventory.img and %s/core-*.img", imagesDir, imagesDir)
	case c.RootfsImageName == "" && c.RootfsImageRef == "":
		err = invalid("%s does not name the image of the container", configFile)
	}
	return c, err
}

// invalid returns an error about the content of an archive.
func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// open opens an archive that only root, or this user, can have written, because CRIU restores
// processes from it as root. The file is found first and opened once its type is known: opening a
// device acts on it.
func open(archive string) (*os.File, int64, error) {
	fd, err := unix.Open(archive, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("there is no such file: %w", errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, 0, err
	}
	found := os.NewFile(uintptr(fd), archive)
	defer found.Close()
	st, err := found.Stat()
	switch {
	case err != nil:
	case !st.Mode().IsRegular():
		err = invalid("it is not a regular file")
	case !ours(st) || st.Mode().Perm()&0o022 != 0:
		err = fmt.Errorf("others than root may have written it; chown it to root and chmod it to 0600 if it is to be trusted: %w", errdefs.ErrFailedPrecondition)
	}
	if err == nil {
		err = checkPlace(found)
	}
	if err != nil {
		return nil, 0, err
	}
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(fd))
	return f, st.Size(), err
}

// checkPlace refuses an archive in a directory, at any height, that others than root may write:
// they could have moved a file of root's there. The root of a container is root of the host unless
// its pod has a user namespace, and a volume of a pod is often open to all.
func checkPlace(archive *os.File) error {
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(archive.Fd())))
	if err != nil {
		return err
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		st, err := os.Lstat(dir)
		if err != nil {
			return err
		}
		sticky := st.Mode()&fs.ModeSticky != 0 // others' files cannot be moved there
		if !ours(st) || st.Mode().Perm()&0o022 != 0 && !sticky {
			return fmt.Errorf("others than root may write into %s; move it into a directory of root's if it is to be trusted: %w", dir, errdefs.ErrFailedPrecondition)
		}
		if dir == "/" {
			return nil
		}
	}
}

func ours(st fs.FileInfo) bool {
	s, ok := st.Sys().(*syscall.Stat_t)
	return ok && (s.Uid == 0 || int(s.Uid) == os.Geteuid())
}

// walk reads a tar of size bytes. each gets every entry, with the bytes that a regular file has.
// Whatever the headers contain, the entries together have no more bytes than the tar, and their
// names lead nowhere else.
func walk(ctx context.Context, f *os.File, size int64, entries int, each func(h *tar.Header, r *io.SectionReader) error) error {
	var end [2 * 512]byte // of the tar: an archive that is cut off has something else there
	if _, err := f.ReadAt(end[:], max(size-int64(len(end)), 0)); err != nil || end != [2 * 512]byte{} {
		return invalid("it is not a tar, or it is not complete")
	}
	in := tar.NewReader(f)
	var total int64
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return invalid("it is not a tar, or it is not complete: %v", err)
		case n == entries:
			return invalid("it has more than %d files", entries)
		case !filepath.IsLocal(strings.TrimLeft(h.Name, "/")):
			return invalid("%.100q leads out of it", h.Name)
		}
		if total += h.Size; h.Size > size || total > size || isSparse(h) {
			return invalid("%.100q would be larger than the archive allows", h.Name)
		}
		at, err := f.Seek(0, io.SeekCurrent) // the reader of tars reads no further than it has to
		if err != nil {
			return err
		}
		if err := each(h, io.NewSectionReader(f, at, h.Size)); err != nil {
			return err
		}
		if _, err := f.Seek(at, io.SeekStart); err != nil {
			return err
		}
	}
}

// isSparse reports whether a file of a tar has holes, which are not in the tar.
func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

func readConfig(r *io.SectionReader, c *config) error {
	if r.Size() > maxConfig {
		return invalid("%s has more than %d bytes", configFile, maxConfig)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, c); err != nil {
		return invalid("%s: %v", configFile, err)
	}
	return nil
}

// The beginning of CRIU's image of a process: two magic numbers, the length of a message, and the
// message, of which the first field is the machine.
const (
	imageMagic   = 0x54564319
	coreMagic    = 0x55053847
	coreHeader   = 12
	machineField = 1
)

// machines are CRIU's numbers of architectures.
var machines = map[string]uint64{"amd64": 1, "arm": 2, "arm64": 3, "ppc64le": 4, "s390x": 5, "mips64le": 6}

// checkCore refuses the image of a process that CRIU did not write, or wrote on another
// architecture.
func checkCore(r *io.SectionReader) error {
	var b [coreHeader + 32]byte
	n, err := r.ReadAt(b[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if n <= coreHeader || binary.LittleEndian.Uint32(b[0:]) != imageMagic || binary.LittleEndian.Uint32(b[4:]) != coreMagic {
		return invalid("it is not CRIU's image of a process")
	}
	message := b[coreHeader:n]
	field, kind, used := protowire.ConsumeTag(message)
	if used < 0 || field != machineField || kind != protowire.VarintType {
		return invalid("its architecture is missing")
	}
	machine, used := protowire.ConsumeVarint(message[used:])
	if used < 0 {
		return invalid("its architecture is missing")
	}
	if machine == machines[runtime.GOARCH] {
		return nil
	}
	for arch, m := range machines {
		if m == machine {
			return invalid("it is of %s, and this host is %s", arch, runtime.GOARCH)
		}
	}
	return invalid("it is of an architecture that CRIU calls %d, and this host is %s", machine, runtime.GOARCH)
}
