// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/heart/pod"
)

// entry is a file of an archive.
type entry struct {
	tar.Header
	content string
}

func file(name, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o600}, content}
}

// tarOf is a tar of files, as far as it can be written.
func tarOf(t testing.TB, files ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&f.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zipped(t *testing.T, b []byte) string {
	t.Helper()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(b); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	return packed.String()
}

// core is CRIU's image of a process of an architecture.
func core(machine byte) string {
	b := binary.LittleEndian.AppendUint32(nil, imageMagic)
	b = binary.LittleEndian.AppendUint32(b, coreMagic)
	b = binary.LittleEndian.AppendUint32(b, 2)
	return string(append(b, machineField<<3, machine))
}

// sound are the files of an archive that can be restored.
func sound() []entry {
	return []entry{
		{Header: tar.Header{Typeflag: tar.TypeDir, Name: "checkpoint/", Mode: 0o700}},
		file("checkpoint/core-1.img", core(byte(machines[runtime.GOARCH]))),
		file("checkpoint/inventory.img", "inventory"),
		file("checkpoint/pages-1.img", "memory"),
		file("config.dump", `{"id":"old","rootfsImageName":"app:1","rootfsImageRef":"app@sha256:1"}`),
		file("spec.dump", `{"mounts":[{"destination":"/host","source":"/"}]}`),
		file("container.log", "tick"),
	}
}

func written(t *testing.T, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.tar")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// PROPERTIES 32: what a restore needs is unpacked, for root alone, and nothing else: no mount of
// the checkpoint gets into the new container's specification.
func TestAnArchiveIsUnpacked(t *testing.T) {
	changes := tarOf(t, file("etc/app", "changed"), file("etc/.wh.passwd", ""),
		entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "/etc/app"}})
	for what, diff := range map[string]string{"plain": string(changes), "compressed": zipped(t, changes)} {
		archive := written(t, tarOf(t, append(sound(), file("rootfs-diff.tar", diff))...))
		got, err := Archives{}.Read(t.Context(), archive)
		if want := (pod.Checkpoint{Image: "app:1", ImageRef: "app@sha256:1"}); err != nil || got != want {
			t.Errorf("%+v %v", got, err)
		}
		dir := t.TempDir()
		s := &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.NetworkNamespace, Path: "/net"},
			{Type: specs.UTSNamespace, Path: "/uts"},
		}}}
		if err := (Archives{}).Unpack(t.Context(), archive, dir, s); err != nil {
			t.Fatal(err)
		}
		if len(s.Mounts) != 0 || s.Linux.Namespaces[0].Path != "/net" || s.Linux.Namespaces[1].Path != "" {
			t.Errorf("%+v", s)
		}
		if b, err := os.ReadFile(s.Annotations[settingsKey]); err != nil || !strings.Contains(string(b), "tcp-close") {
			t.Errorf("%s %v", b, err)
		}
		to := pod.UnpackedIn(dir)
		if b, err := os.ReadFile(to.Changes); err != nil || !bytes.Equal(b, changes) {
			t.Errorf("%s: %d bytes, %v", what, len(b), err)
		}
		var names []string
		if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if st, serr := os.Lstat(path); serr != nil || st.Mode().Perm()&0o077 != 0 && path != dir {
				t.Errorf("%v %v", st, serr)
			}
			if !d.IsDir() {
				names = append(names, strings.TrimPrefix(path, dir+"/"))
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		if want := "changes.tar criu.conf images/core-1.img images/inventory.img images/pages-1.img"; strings.Join(names, " ") != want {
			t.Errorf("%q", names)
		}
	}
}

// PROPERTIES 32: an archive that is broken, or was made to break out, is refused before anything of
// it is used.
func TestABadArchiveIsRefused(t *testing.T) {
	with := func(e ...entry) []byte { return tarOf(t, append(sound(), e...)...) }
	diff := func(e ...entry) []byte { return with(file("rootfs-diff.tar", string(tarOf(t, e...)))) }
	without := func(name string) []byte {
		var left []entry
		for _, e := range sound() {
			if e.Name != name {
				left = append(left, e)
			}
		}
		return tarOf(t, left...)
	}
	link := func(kind byte, name, to string) entry {
		return entry{Header: tar.Header{Typeflag: kind, Name: name, Linkname: to}}
	}
	other := byte(3)
	if machines[runtime.GOARCH] == 3 {
		other = 1
	}
	// A header that promises more than there is, with a checksum that is right.
	huge := append(hugeHeader(t), with()...)
	for _, tt := range []struct {
		name string
		b    []byte
		says string
	}{
		{"nothing", nil, "not a tar"},
		{"garbage", bytes.Repeat([]byte("garbage "), 1000), "not a tar"},
		{"zeros", make([]byte, 4096), "has no config.dump"},
		{"cut off in a file", with()[:3000], "not complete"},
		{"cut off between two files", with()[:len(with())-1024], "not complete"},
		{"without a description", without("config.dump"), "has no config.dump"},
		{"without processes", without("checkpoint/core-1.img"), "no processes"},
		{"without an inventory", without("checkpoint/inventory.img"), "no processes"},
		{"a description that is not JSON", tarOf(t, file("config.dump", "{")), "config.dump"},
		{"a core of another architecture", with(file("checkpoint/core-2.img", core(other))), "this host is " + runtime.GOARCH},
		{"a core of no architecture", with(file("checkpoint/core-2.img", core(99))), "99"},
		{"a core that is not CRIU's", with(file("checkpoint/core-2.img", "whatever it is, it is not that")), "not CRIU's"},
		{"a core without content", with(file("checkpoint/core-2.img", "")), "not CRIU's"},
		{"a name above", with(file("../../etc/cron.d/x", "x")), "leads out"},
		{"a name above, hidden", with(file("checkpoint/../../x", "x")), "leads out"},
		{"a name that is too long", with(file("checkpoint/"+strings.Repeat("x", 1<<16), "")), "has more than 255 bytes"},
		{"a symbolic link", with(link(tar.TypeSymlink, "checkpoint/pages-2.img", "/etc/shadow")), "not a regular file"},
		{"a directory that is a link", with(link(tar.TypeSymlink, "rootfs-diff.tar", "/")), "not a regular file"},
		{"a hard link", with(link(tar.TypeLink, "checkpoint/pages-2.img", "config.dump")), "not a regular file"},
		{"a device", with(entry{Header: tar.Header{Typeflag: tar.TypeBlock, Name: "checkpoint/x", Devmajor: 8}}), "not a regular file"},
		{"a FIFO", with(entry{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "checkpoint/x"}}), "not a regular file"},
		{"a file twice", with(file("checkpoint/pages-1.img", "other")), "twice"},
		{"a file twice by another name", with(file("checkpoint/./pages-1.img", "other")), "twice"},
		{"a size that is not there", huge, "larger than the archive"},
		{"changes: a device", diff(entry{Header: tar.Header{Typeflag: tar.TypeBlock, Name: "dev/sda", Devmajor: 8}}), "is a device"},
		{"changes: a name above", diff(file("../x", "x")), "leads out"},
		{"changes: a hard link above", diff(link(tar.TypeLink, "x", "../../etc/shadow")), "leads out"},
		{"changes: not a tar", with(file("rootfs-diff.tar", strings.Repeat("no ", 1000))), "not a tar"},
		{"changes: compressed, not a tar", with(file("rootfs-diff.tar", zipped(t, []byte("no tar")))), "not a tar"},
		{"changes: compressed, cut off", with(file("rootfs-diff.tar", "\x1f\x8b\x08\x00")), "rootfs-diff.tar"},
	} {
		s := &specs.Spec{}
		dir := t.TempDir()
		err := Archives{}.Unpack(t.Context(), written(t, tt.b), dir, s)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if len(s.Annotations) != 0 {
			t.Errorf("%s: the specification was changed", tt.name)
		}
	}
}

// hugeHeader is the header of a file that has a tebibyte.
func hugeHeader(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "checkpoint/pages-9.img", Size: 1 << 40, Mode: 0o600, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()[:512]
}

// PROPERTIES 12: however much a compressed layer becomes, no more than its bound is written.
func TestACompressedLayerIsBounded(t *testing.T) {
	b := &bounded{r: strings.NewReader(strings.Repeat("x", 100)), left: 99}
	if _, err := io.Copy(io.Discard, b); !errdefs.IsInvalidArgument(err) {
		t.Errorf("%v", err)
	}
	b = &bounded{r: strings.NewReader(strings.Repeat("x", 100)), left: 100}
	if _, err := io.Copy(io.Discard, b); err != nil {
		t.Errorf("%v", err)
	}
}

// What others may have written is not restored as root.
func TestAnArchiveBelongsToRoot(t *testing.T) {
	archive := written(t, tarOf(t, sound()...))
	for _, mode := range []os.FileMode{0o620, 0o602, 0o666} {
		if err := os.Chmod(archive, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := (Archives{}).Read(t.Context(), archive); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%v: %v", mode, err)
		}
	}
	if err := os.Chmod(archive, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := (Archives{}).Read(t.Context(), archive); err != nil {
		t.Error(err)
	}
	l, err := net.Listen("unix", archive+".socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for path, is := range map[string]func(error) bool{
		archive + ".socket":   errdefs.IsInvalidArgument, // which would not be said had it been opened
		filepath.Dir(archive): errdefs.IsInvalidArgument,
		"/dev/null":           errdefs.IsInvalidArgument,
		archive + ".absent":   errdefs.IsNotFound,
	} {
		if _, err := (Archives{}).Read(t.Context(), path); !is(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// CRI-O lists deleted files beside the changes: they would be there again.
func TestDeletedFilesAreNotForgotten(t *testing.T) {
	archive := written(t, tarOf(t, append(sound(), file("deleted.files", `["/etc/passwd"]`))...))
	if _, err := (Archives{}).Read(t.Context(), archive); !errdefs.IsNotImplemented(err) {
		t.Errorf("%v", err)
	}
	archive = written(t, tarOf(t, append(sound(), file("deleted.files", `[]`))...))
	dir := t.TempDir()
	if err := (Archives{}).Unpack(t.Context(), archive, dir, &specs.Spec{}); err != nil {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(filepath.Join(pod.UnpackedIn(dir).Images, "deleted.files")); err == nil {
		t.Error("the list is among the images of the processes")
	}
}

// No archive makes Read or Unpack panic, or write outside of the directory.
func FuzzUnpack(f *testing.F) {
	f.Add(tarOf(f, sound()...))
	f.Add(tarOf(f, append(sound(), file("rootfs-diff.tar", string(tarOf(f, file("a", "b")))))...))
	f.Fuzz(func(t *testing.T, b []byte) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "in")
		archive := written(t, b)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		_ = Archives{}.Unpack(t.Context(), archive, dir, &specs.Spec{})
		if left, err := os.ReadDir(parent); err != nil || len(left) != 1 {
			t.Errorf("%v %v", left, err)
		}
		if err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && !d.Type().IsRegular() {
				err = errors.New(d.Name() + " is not a file")
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	})
}

// An archive of root's was taken from a directory into which others may write.
func TestAnArchiveIsReadFromADirectoryOfRootsAlone(t *testing.T) {
	dir := t.TempDir()
	below := filepath.Join(dir, "open", "below")
	if err := os.MkdirAll(below, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(below, "archive.tar")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, refused := range map[os.FileMode]bool{0o777: true, 0o770: true, 0o777 | os.ModeSticky: false, 0o755: false} {
		if err := os.Chmod(filepath.Join(dir, "open"), mode); err != nil {
			t.Fatal(err)
		}
		f, _, err := open(path)
		if refused != errdefs.IsFailedPrecondition(err) || !refused && err != nil {
			t.Errorf("in a directory of mode %v: %v", mode, err)
		}
		if err == nil {
			f.Close()
		}
	}
}
