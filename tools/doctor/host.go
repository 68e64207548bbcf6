// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/internal/base/config"
)

// FS describes a file system.
type FS struct {
	Type        int64 // the magic number of statfs(2)
	Flags       int64 // ST_RDONLY and the like
	Bytes, Free uint64
	Files       uint64 // inodes; 0 if the file system does not count them
	FreeFiles   uint64
}

// Host is a machine to be examined. All facts that a check learns of it come through here.
type Host struct {
	// Root is the directory below which the machine's files are: "/", or a test's.
	Root string
	// ConfigFile is berth's configuration file. It need not exist unless Named.
	ConfigFile string
	Named      bool
	// KubeletConfig is the kubelet's configuration file.
	KubeletConfig string
	// Libexec are the directories that may have berth's programs, the first choice first, for a
	// configuration that names none.
	Libexec []string
	// CNIDirs are directories of plug-ins besides those of the configuration.
	CNIDirs []string
	// Endpoint is the socket of berth.
	Endpoint string
	// Status asks berth, with its information; nil if nothing is to be asked. An error that
	// [errors.Is] fs.ErrNotExist or ECONNREFUSED means that there is no berth.
	Status func(ctx context.Context) (*runtimeapi.StatusResponse, error)
	// Pods returns the IDs of berth's pods; nil if nothing is to be asked.
	Pods func(ctx context.Context) ([]string, error)
	// Runs runs a program and returns its standard output.
	Runs func(ctx context.Context, name string, args ...string) ([]byte, error)
	// CRI asks a socket for the name and version of the runtime behind it, as Status does.
	CRI func(ctx context.Context, socket string) (string, error)
	// Statfs describes the file system that a path is on.
	Statfs func(path string) (FS, error)
	// Sync returns how long it takes, in the middle of some tries, to write a small file to the
	// disk in a directory.
	Sync func(dir string) (time.Duration, error)
	// Synchronised reports whether the kernel's clock is kept in step with others.
	Synchronised func() (bool, error)
	// Pidfd opens and closes a pidfd.
	Pidfd func() error
	Now   func() time.Time
	// Version of the examining program.
	Version string
}

// Machine is the machine of this process.
func Machine(endpoint string) Host {
	h := Host{
		Root:          "/",
		ConfigFile:    "/etc/berth/config.toml",
		KubeletConfig: "/var/lib/kubelet/config.yaml",
		Endpoint:      endpoint,
		Runs:          runProgram,
		CRI:           askCRI,
		Statfs:        statfs,
		Sync:          syncTime,
		Synchronised:  synchronised,
		Pidfd:         pidfdWorks,
		Now:           time.Now,
	}
	h.Status = func(ctx context.Context) (*runtimeapi.StatusResponse, error) { return askStatus(ctx, endpoint) }
	h.Pods = func(ctx context.Context) ([]string, error) { return askPods(ctx, endpoint) }
	// The same places as the service looks in, where its configuration names none.
	if dir := os.Getenv("BERTH_LIBEXEC"); dir != "" {
		h.Libexec = append(h.Libexec, dir)
	}
	if exe, err := os.Executable(); err == nil {
		h.Libexec = append(h.Libexec, filepath.Join(filepath.Dir(exe), "../libexec/berth"), filepath.Join(filepath.Dir(exe), "../libexec"))
	}
	h.Libexec = append(h.Libexec, "/usr/local/libexec/berth")
	if dir := os.Getenv("BERTH_CNI_BIN"); dir != "" {
		h.CNIDirs = append(h.CNIDirs, dir)
	}
	return h
}

func runProgram(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	var problem bytes.Buffer
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		text := strings.TrimSpace(problem.String())
		return nil, fmt.Errorf("run %s %s: %w%s", name, strings.Join(args, " "), err, cmp.Or(map[bool]string{true: ": " + firstLine(text)}[text != ""], ""))
	}
	return out, nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// askTime is how long a socket may take to answer.
const askTime = 5 * time.Second

// reach connects to a socket and closes the connection, to distinguish a socket without a server
// from a service that does not answer.
func reach(ctx context.Context, socket string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", strings.TrimPrefix(socket, "unix://"))
	if err != nil {
		return err
	}
	return conn.Close()
}

func askStatus(ctx context.Context, endpoint string) (*runtimeapi.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if err := reach(ctx, endpoint); err != nil {
		return nil, err
	}
	c, err := client.Dial(endpoint)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	st, err := c.RuntimeServiceClient.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return nil, client.Explain(err)
	}
	return st, nil
}

func askPods(ctx context.Context, endpoint string) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	c, err := client.Dial(endpoint)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	list, err := c.RuntimeServiceClient.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, client.Explain(err)
	}
	for _, p := range list.Items {
		ids = append(ids, p.Id)
	}
	return ids, nil
}

func askCRI(ctx context.Context, socket string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if err := reach(ctx, socket); err != nil {
		return "", err
	}
	c, err := client.Dial(socket)
	if err != nil {
		return "", err
	}
	defer c.Close()
	v, err := c.RuntimeServiceClient.Version(ctx, &runtimeapi.VersionRequest{})
	switch {
	case client.IsUnimplemented(err):
		return "", errNoCRI
	case err != nil:
		return "", client.Explain(err)
	}
	return v.GetRuntimeName() + " " + v.GetRuntimeVersion(), nil
}

// errNoCRI means that the server of a socket does not speak CRI.
var errNoCRI = errors.New("it does not speak CRI")

func statfs(path string) (FS, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return FS{}, fmt.Errorf("ask for the file system of %s: %w", path, err)
	}
	size := uint64(st.Bsize) // a size is not negative
	return FS{
		Type:      int64(st.Type),  //nolint:unconvert // other architectures have another type
		Flags:     int64(st.Flags), //nolint:unconvert // as above
		Bytes:     st.Blocks * size,
		Free:      st.Bavail * size,
		Files:     st.Files,
		FreeFiles: st.Ffree,
	}, nil
}

func syncTime(dir string) (time.Duration, error) {
	const tries = 5
	f, err := os.CreateTemp(dir, ".berth-doctor-*")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var took []time.Duration
	for range tries {
		began := time.Now()
		if _, err := f.WriteAt(make([]byte, 4096), 0); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[tries/2], nil
}

func synchronised() (bool, error) {
	state, err := unix.Adjtimex(&unix.Timex{}) // without modes, it only reads
	if err != nil {
		return false, fmt.Errorf("ask the kernel for the state of its clock: %w", err)
	}
	return state != unix.TIME_ERROR, nil
}

// machine is a host with the data that every check needs.
type machine struct {
	Host
	// the settings that berth uses, or would use: the defaults if the file has none
	cfg       config.Config
	loaded    config.Loaded // the files that were read
	cfgErr    error         // why a file cannot be used
	status    *runtimeapi.StatusResponse
	statusErr error // nil if it was not asked
}

// newMachine reads the settings and asks a running berth, within a bound.
func newMachine(ctx context.Context, h Host) *machine {
	m := &machine{Host: h, cfg: config.Default()}
	m.cfg.Address = cmp.Or(strings.TrimPrefix(h.Endpoint, "unix://"), m.cfg.Address)
	load := config.LoadIfThere
	if h.Named {
		load = config.Load
	}
	loaded, err := load(m.path(h.ConfigFile))
	if err == nil {
		err = loaded.Check()
	}
	switch {
	case err != nil:
		m.cfgErr = err
	case len(loaded.Files) > 0:
		m.loaded, m.cfg = loaded, loaded.Config
	}
	if h.Status != nil {
		if m.status, m.statusErr = h.Status(ctx); m.statusErr == nil {
			if cfg, ok := used(m.status.GetInfo()); ok {
				m.cfg = cfg
			}
		}
	}
	return m
}

// runs reports whether a berth has answered.
func (m *machine) runs() bool { return m.status != nil }

// path is where a file of the machine is for this process.
func (m *machine) path(p string) string { return filepath.Join(m.Root, p) }

func (m *machine) read(p string) (string, error) {
	b, err := os.ReadFile(m.path(p))
	if err != nil {
		return "", m.named(p, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// named is an error of a file that names it as the machine does.
func (m *machine) named(p string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return fmt.Errorf("read %s: %w", p, err)
}

func (m *machine) number(p string) (int64, error) {
	text, err := m.read(p)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %q is not a number", p, text)
	}
	return n, nil
}

// exists reports whether there is a file. A path that cannot be examined is an error.
func (m *machine) exists(p string) (bool, error) {
	_, err := os.Lstat(m.path(p))
	if absent(err) {
		return false, nil
	}
	if err != nil {
		return false, m.named(p, err)
	}
	return true, nil
}

// absent reports whether an error means for certain that a file is not there.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// searchPath is the PATH of berth's unit, without the directory of libexec.
var searchPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// which finds a program in directories; "" if it is in none of them.
func (m *machine) which(name string, dirs ...string) (string, error) {
	for _, dir := range dirs {
		p := filepath.Join(dir, name)
		st, err := os.Stat(m.path(p))
		if absent(err) {
			continue
		}
		if err != nil {
			return "", m.named(p, err)
		}
		if !st.IsDir() {
			return p, nil
		}
	}
	return "", nil
}

// executable reports whether somebody may execute a file.
func (m *machine) executable(p string) (bool, error) {
	st, err := os.Stat(m.path(p))
	if err != nil {
		return false, m.named(p, err)
	}
	return st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0, nil
}

// nearest is a directory, or the nearest one above it that exists.
func (m *machine) nearest(dir string) string {
	for ; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Stat(m.path(dir)); !absent(err) {
			break
		}
	}
	return dir
}
