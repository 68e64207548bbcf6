// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/heart/pod"
)

// maxUnpacked bounds the changes of a writable layer that are compressed, in bytes.
const maxUnpacked = 16 << 30

// settings are for CRIU, besides those that the OCI runtime gives it. Connections are closed,
// because the container has another address; a checkpoint may contain sockets and locks.
const settings = "tcp-close\next-unix-sk\nfile-locks\n"

// settingsKey is the annotation by which a specification names CRIU's settings to runc.
const settingsKey = "org.criu.config"

// Unpack checks an archive again, writes the files for a restore into the empty directory dir
// ([pod.UnpackedIn]), and changes the container's specification as the restore needs it. It returns
// the errors of Read.
func (Archives) Unpack(ctx context.Context, archive, dir string, s *specs.Spec) error {
	if err := unpack(ctx, archive, dir, s); err != nil {
		return about(archive, err)
	}
	return nil
}

func unpack(ctx context.Context, archive, dir string, s *specs.Spec) error {
	to := pod.UnpackedIn(dir)
	if err := errors.Join(os.Mkdir(to.Images, 0o700), os.Mkdir(to.Work, 0o700)); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := scan(ctx, archive, func(name string, r *io.SectionReader) error {
		if err := confined(archive, s, name, r); err != nil {
			return err
		}
		if name == changesFile {
			return writeChanges(ctx, root, filepath.Base(to.Changes), r)
		}
		return write(ctx, root, path.Join(filepath.Base(to.Images), path.Base(name)), r)
	}); err != nil {
		return err
	}
	conf := filepath.Join(dir, "criu.conf")
	if err := os.WriteFile(conf, []byte(settings), 0o600); err != nil {
		return err
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[settingsKey] = conf
	ownNamespaces(s)
	return nil
}

// ownNamespaces gives the container IPC and UTS namespaces of its own instead of the pod's. CRIU
// restores their old state, above all the hostname, and would change it for the pod's other
// containers.
func ownNamespaces(s *specs.Spec) {
	if s.Linux == nil {
		return
	}
	for i, ns := range s.Linux.Namespaces {
		if ns.Type == specs.IPCNamespace || ns.Type == specs.UTSNamespace {
			s.Linux.Namespaces[i].Path = ""
		}
	}
}

// write writes a new file.
func write(ctx context.Context, root *os.Root, name string, r io.Reader) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	w := newSparse(f, 0)
	if _, err = io.Copy(w, until{ctx, r}); err == nil {
		err = w.finish()
	}
	return errors.Join(ofDisk(err), f.Close())
}

// writeChanges writes the changes of a writable layer, uncompressed, and checks them.
func writeChanges(ctx context.Context, root *os.Root, name string, r *io.SectionReader) error {
	var in io.Reader = r
	var magic [2]byte
	if n, _ := r.ReadAt(magic[:], 0); n == 2 && magic == [2]byte{0x1f, 0x8b} {
		z, err := gzip.NewReader(r)
		if err != nil {
			return invalid("%s: %v", changesFile, err)
		}
		in = &bounded{z, maxUnpacked}
	}
	if err := write(ctx, root, name, in); err != nil {
		return fmt.Errorf("%s: %w", changesFile, err)
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err := walk(ctx, f, st.Size(), maxChanged, checkChange); err != nil {
		return fmt.Errorf("%s: %w", changesFile, err)
	}
	return nil
}

// checkChange refuses files that a container without privileges could not have made, and links that
// lead out of the layer. A symbolic link may name anything: it is followed within the container
// alone.
func checkChange(h *tar.Header, _ *io.SectionReader) error {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeFifo:
		return nil
	case tar.TypeLink:
		if filepath.IsLocal(strings.TrimLeft(h.Linkname, "/")) {
			return nil
		}
		return invalid("the link %.100q leads out of it", h.Name)
	case tar.TypeChar, tar.TypeBlock:
		return invalid("%.100q is a device", h.Name)
	default:
		return invalid("%.100q is of an unknown type %q", h.Name, h.Typeflag)
	}
}

// bounded reads the content of a compressed file, up to a bound.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, invalid("it has more than %d bytes", int64(maxUnpacked))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = invalid("%v", err)
	}
	return n, err
}
