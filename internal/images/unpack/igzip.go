// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

const (
	// igzipFrom is how many bytes a layer has at least that igzip decompresses: it is started twice,
	// which takes a few milliseconds.
	igzipFrom = 4 << 20
	// igzipAnswers is how long igzip may take for a few bytes.
	igzipAnswers = 5 * time.Second
	// nobody is the user that igzip runs as, and the group.
	nobody = 65534
)

// gzipSample is gzip in two members, as some builders make it, and gzipSays is what is in them.
const (
	gzipMagic  = "\x1f\x8b\x08"
	gzipSample = gzipMagic + "\x00\x00\x00\x00\x00\x00\x03\x4b\xe4\x02\x00\x07\xa1\xea\xdd\x02\x00\x00\x00" +
		gzipMagic + "\x00\x00\x00\x00\x00\x00\x03\x4b\xe2\x02\x00\xc4\xf2\xc7\xf6\x02\x00\x00\x00"
	gzipSays = "a\nb\n"
)

// findIgzip returns where the program igzip of the host is, if it may decompress a layer, or "". A
// small one is not worth it, and one that is encrypted comes to this process first.
func findIgzip(ctx context.Context, desc ocispec.Descriptor) string {
	_, compressed := decompressing(ctx, desc.MediaType)
	if desc.Size < igzipFrom || !compressed || strings.HasSuffix(desc.MediaType, "+encrypted") {
		return ""
	}
	path, err := exec.LookPath("igzip")
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil || !filepath.IsAbs(path) {
		return ""
	}
	return path
}

// igzip is a process of the program of that name, gzip with Intel's library ISA-L. It takes a half
// to three quarters of the processor time that Go takes.
type igzip struct {
	out     *os.File
	process *os.Process
	ended   chan struct{}
	err     error // read once ended is closed
}

// startIgzip starts igzip for the layer that comes from stdin, if that is gzip, and if igzip first
// decompresses a few bytes as it should. If it returns nil, nothing of the layer is read. It is
// called before the process gives up the right to start a program.
func startIgzip(path string, stdin *os.File) *igzip {
	if path == "" || !begins(stdin, gzipMagic) {
		return nil
	}
	in, sample, err := os.Pipe()
	if err != nil {
		return nil
	}
	defer in.Close()
	_, err = sample.WriteString(gzipSample)
	if errors.Join(err, sample.Close()) != nil {
		return nil
	}
	first, err := newIgzip(path, in)
	if err != nil {
		return nil
	}
	_ = first.out.SetReadDeadline(time.Now().Add(igzipAnswers))
	said, err := io.ReadAll(io.LimitReader(first, int64(len(gzipSays))+1))
	_ = first.process.Kill()
	_ = first.out.Close()
	if err != nil || string(said) != gzipSays {
		return nil
	}
	z, _ := newIgzip(path, stdin)
	return z
}

// begins reports whether the next bytes of a pipe are those, and leaves them in it.
func begins(pipe *os.File, magic string) bool {
	r, w, err := os.Pipe()
	if err != nil {
		return false
	}
	defer r.Close()
	n, err := unix.Tee(int(pipe.Fd()), int(w.Fd()), len(magic), 0)
	if errors.Join(err, w.Close()) != nil || n != int64(len(magic)) {
		return false
	}
	b, err := io.ReadAll(r)
	return err == nil && string(b) == magic
}

// newIgzip starts igzip, which reads in and writes to a pipe. It has no privilege, opens nothing
// but what a program of the host needs to start, and ends with this process.
func newIgzip(path string, in *os.File) (*igzip, error) {
	out, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer to.Close()
	widen(to)
	cmd := exec.Command(path, "-d", "-c")
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, to, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if capabilities() != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	z, started := &igzip{out: out, ended: make(chan struct{})}, make(chan error)
	go func() {
		// What keeps this thread from files and privileges is kept by the program that it starts. The
		// thread ends with this function, not before igzip: its end is the end of igzip as well.
		runtime.LockOSThread()
		err := fenceThread(path)
		if err == nil {
			err = cmd.Start()
		}
		if err == nil {
			z.process = cmd.Process
		}
		started <- err
		if err == nil {
			z.err = cmd.Wait()
			close(z.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(err, out.Close())
	}
	return z, nil
}

// widen gives a pipe more room than the kernel does by itself, if it grants that.
func widen(pipe *os.File) {
	_, _ = unix.FcntlInt(pipe.Fd(), unix.F_SETPIPE_SZ, 1<<20)
}

// Read reads plain bytes. At the end of them igzip has found that their checksum is right.
func (z *igzip) Read(p []byte) (int, error) {
	n, err := z.out.Read(p)
	if errors.Is(err, io.EOF) {
		if <-z.ended; z.err != nil {
			err = fmt.Errorf("gzip: the layer is damaged or cut, or igzip was ended: %w", z.err)
		}
	}
	return n, err
}

// fenceThread keeps this thread to the files that a program needs to start, and from privileges. If
// the kernel has no Landlock, the user that the program runs as keeps it from files.
func fenceThread(program string) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	all, err := landlock()
	if err != nil {
		return nil //nolint:nilerr // berth says it when it starts
	}
	const file = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_EXECUTE
	need := map[string]uint64{program: file, "/etc/ld.so.cache": unix.LANDLOCK_ACCESS_FS_READ_FILE}
	for _, dir := range []string{"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"} {
		need[dir] = file
	}
	return restrict(all, need, func(set uintptr) unix.Errno {
		_, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, set, 0, 0)
		return errno
	})
}
