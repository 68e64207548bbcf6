// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	encspec "github.com/containers/ocicrypt/spec"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"berth/internal/base/errkind"
	"berth/internal/images/durable"
)

const (
	// processName is the argument by which this program knows that it is to unpack a layer.
	processName = "berth-unpack"
	// oomScoreAdj makes the OOM killer choose the process before pods that keep their requests.
	oomScoreAdj = 900
	// spare is how many bytes Go may map and not use.
	spare = 256 << 20
	// maxRequest bounds the request, in bytes.
	maxRequest = 16 << 20
)

// alone keeps containerd's packages from starting a program that decompresses: its memory would not
// be counted, it would have the rights of the process, and it would outlive it. See igzip.
var alone = []string{"CONTAINERD_DISABLE_PIGZ=1", "CONTAINERD_DISABLE_IGZIP=1"}

// request precedes the layer in the input of the process, after its length in four bytes.
type request struct {
	Descriptor ocispec.Descriptor
	Target     Target
	Payloads   map[string]payload // of stream processors, by their names
	Sync       bool               // the file system is synced afterwards
	Late       bool               // see Applier
	Memory     int64              // bytes
	Work       work               // "": a layer is unpacked
	Idle       bool               // let everybody else go first
	Igzip      string             // the path of igzip, if it may decompress the layer

	file  *os.File // is passedFile in the process, unless it is nil
	igzip *igzip   // decompresses the layer, in the process, unless it is nil
}

// passedFile is the descriptor of the file that the process is given.
const passedFile = 3

// payload is a protobuf message of any type.
type payload struct {
	TypeURL string
	Value   []byte
}

// answer is the output of the process.
type answer struct {
	Digest string // of the tar
	Size   int64
	Error  string
	Kinds  []errkind.Kind // of the error
}

func (a answer) err() error { return errkind.Carry(a.Error, a.Kinds...) }

// init begins the process: nothing else that this program does is started.
func init() {
	// The stream processors are a list of the whole process, as containerd's plug-ins are.
	diff.RegisterProcessor(decompressing)
	for _, t := range []string{encspec.MediaTypeLayerEnc, encspec.MediaTypeLayerGzipEnc, encspec.MediaTypeLayerZstdEnc} {
		diff.RegisterProcessor(diff.StaticHandler(t, decrypt))
	}
	if len(os.Args) != 1 || os.Args[0] != processName {
		return
	}
	r, layer, err := asked(os.Stdin)
	if err != nil {
		new(guard).answer(err, answer{})
	}
	yield(r.Idle)
	g, err := watchMemory(r.Memory)
	if err != nil {
		new(guard).answer(fmt.Errorf("limit the memory of the process: %w", err), answer{})
	}
	if r.igzip = startIgzip(r.Igzip, os.Stdin); r.igzip != nil {
		g.igzip.Store(int64(r.igzip.process.Pid))
	}
	if err := confine(); err != nil {
		new(guard).answer(err, answer{})
	}
	if err := r.fence(); err != nil {
		new(guard).answer(err, answer{})
	}
	a, err := r.carryOut(context.Background(), layer)
	if err == nil {
		err = g.check(r.Memory)
	}
	g.answer(err, a)
}

// asked reads the request that stdin has. The layer follows it, of which nothing is read.
func asked(stdin io.Reader) (r request, layer io.Reader, err error) {
	// The OOM killer takes this process first, because a layer can wait.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(oomScoreAdj)), 0); err != nil {
		return r, nil, fmt.Errorf("give the process a higher OOM score: %w", err)
	}
	var size [4]byte
	if _, err := io.ReadFull(stdin, size[:]); err != nil {
		return r, nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxRequest {
		return r, nil, fmt.Errorf("a request of %d bytes: %w", n, errdefs.ErrInvalidArgument)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(stdin, b); err != nil {
		return r, nil, err
	}
	err = json.Unmarshal(b, &r)
	return r, bufio.NewReaderSize(stdin, 64<<10), err
}

// guard ends the process when it uses too much memory.
type guard struct {
	most     int64        // bytes
	igzip    atomic.Int64 // the number of a process that counts as well, or 0
	answered sync.Mutex
}

// watchMemory begins to watch that the process uses no more than that many bytes more than now. The
// kernel gives it no more than a multiple of that, however fast it asks; Go then ends without
// saying why.
func watchMemory(bytes int64) (*guard, error) {
	debug.SetMemoryLimit(bytes * 3 / 4) // so that garbage is collected before it comes to that
	resident, err := memory(os.Getpid(), "VmHWM:")
	if err != nil {
		return nil, err
	}
	mapped, err := memory(os.Getpid(), "VmData:")
	if err != nil {
		return nil, err
	}
	most := uint64(mapped + (2*bytes+spare)*overhead)
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: most, Max: most}); err != nil {
		return nil, err
	}
	g := &guard{most: resident + bytes*overhead}
	go func() {
		for range time.Tick(10 * time.Millisecond) {
			if err := g.check(bytes); err != nil {
				g.answer(err, answer{})
			}
		}
	}()
	return g, nil
}

// check returns an error if the process has ever used too much memory.
func (g *guard) check(bytes int64) error {
	used, err := memory(os.Getpid(), "VmHWM:")
	if pid := g.igzip.Load(); pid != 0 {
		more, _ := memory(int(pid), "VmHWM:") // none if it has ended
		used += more
	}
	if err == nil && used > g.most {
		err = fmt.Errorf("it takes more than %d MiB of memory to unpack it: %w", bytes>>20, errdefs.ErrResourceExhausted)
	}
	return err
}

// memory returns one of the figures that /proc/PID/status has, in bytes.
func memory(pid int, name string) (int64, error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	status, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, name); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, name)
}

// answer writes the answer, and ends the process. The first caller's is written.
func (g *guard) answer(err error, a answer) {
	g.answered.Lock() // until the end
	if err != nil {
		a.Error = err.Error()
		a.Kinds = errkind.Of(errkind.Named(err))
	}
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// apply unpacks a layer. If the disk is full, the written files go at once: the caller may need
// room to remove the directory from its records.
func (r request) apply(ctx context.Context, layer io.Reader) (_ answer, err error) {
	dir, err := os.Open(r.Target.Dir) // before anything is written: syncfs reports errors from here on
	if err != nil {
		return answer{}, err
	}
	defer dir.Close()
	defer func() {
		if errkind.Full(errkind.Named(err)) {
			removeBelow(r.Target.Dir)
		}
	}()
	stream, err := r.decompressed(ctx, layer)
	if err != nil {
		return answer{}, err
	}
	digester := digest.Canonical.Digester()
	plain := &counted{r: io.TeeReader(newAhead(stream), digester.Hash())}
	var opts []archive.ApplyOpt
	if r.Target.Overlay {
		opts = append(opts, archive.WithConvertWhiteout(archive.OverlayConvertWhiteout))
	}
	if len(r.Target.Parents) > 0 {
		opts = append(opts, archive.WithParents(r.Target.Parents))
	}
	complete := completeness{root: r.Target.Dir, has: map[string]bool{".": true}}
	into := &early{Reader: plain, dir: dir}
	opts = append(opts, archive.WithFilter(func(h *tar.Header) (bool, error) {
		if !r.Late {
			into.file(h)
		}
		if r.Target.Alone {
			return complete.check(h)
		}
		return true, nil
	}))
	if _, err := archive.Apply(ctx, r.Target.Dir, into, opts...); err != nil {
		return answer{}, err
	}
	// The bytes behind the end of the archive count for the digest.
	if _, err := io.Copy(io.Discard, plain); err != nil {
		return answer{}, fmt.Errorf("read the end of the layer: %w", err)
	}
	if r.Target.Index != "" {
		if err := durable.WriteIndex(r.Target.Dir, r.Target.Index); err != nil {
			return answer{}, err
		}
	}
	if r.Sync {
		if err := unix.Syncfs(int(dir.Fd())); err != nil {
			return answer{}, fmt.Errorf("sync the file system of %s: %w", r.Target.Dir, err)
		}
	}
	return answer{Digest: digester.Digest().String(), Size: plain.n}, nil
}

// decompressed returns the tar of a layer. It need not be closed: it may be read ahead still, and
// the process ends.
func (r request) decompressed(ctx context.Context, layer io.Reader) (io.Reader, error) {
	if r.igzip != nil {
		return r.igzip, nil
	}
	payloads := map[string]typeurl.Any{}
	for id, p := range r.Payloads {
		payloads[id] = &anypb.Any{TypeUrl: p.TypeURL, Value: p.Value}
	}
	stream := diff.NewProcessorChain(r.Descriptor.MediaType, layer)
	for first := true; first || stream.MediaType() != ocispec.MediaTypeImageLayer; first = false {
		var err error
		if stream, err = diff.GetProcessor(ctx, stream, payloads); err != nil {
			return nil, fmt.Errorf("layer of type %s: %w", r.Descriptor.MediaType, err)
		}
	}
	return stream, nil
}

// removeBelow empties a directory, as far as it can: the caller removes the directory.
func removeBelow(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		_ = os.RemoveAll(filepath.Join(dir, e.Name()))
	}
}

// counted counts the bytes that are read.
type counted struct {
	r io.Reader
	n int64
}

// Read reads the next bytes.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
