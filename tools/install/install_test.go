// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"berth/internal/base/wholefile"
)

// tree is what an archive has, in a version.
func tree(t *testing.T, version string, more ...string) string {
	t.Helper()
	dir := t.TempDir()
	var list strings.Builder
	names := append([]string{"bin/berth", "libexec/berth/runc", "libexec/berth/cni/bridge", "lib/systemd/system/berth.service", "etc/berth/config.toml", "share/man/man8/berth.8"}, more...)
	for _, name := range names {
		body, mode := name+" "+version+"\n", fs.FileMode(0o644)
		if strings.HasPrefix(name, "bin/") || strings.HasPrefix(name, "libexec/") {
			mode = 0o755
		}
		if strings.HasSuffix(name, ".toml") {
			body = "# " + body
		}
		if strings.HasSuffix(name, ".service") {
			body += "ExecStart=/usr/local/bin/berth serve\n"
		}
		write(t, filepath.Join(dir, name), body, mode)
		list.WriteString(wholefile.Sum([]byte(body)) + "  " + name + "\n")
	}
	write(t, filepath.Join(dir, Files), list.String(), 0o644)
	return dir
}

func write(t *testing.T, path, body string, mode fs.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(body), mode)); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

// there lists the files below a directory, without it.
func there(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, path); err == nil && rel != "." {
			all = append(all, rel)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// host is the root directory of a host, and a systemd that runs berth or not.
type host struct {
	Options
	out    bytes.Buffer
	active bool
	calls  []string
}

func newHost(t *testing.T) *host {
	h := &host{}
	h.Options = Options{Prefix: "/usr/local", Root: t.TempDir(), Out: &h.out, Systemctl: func(_ context.Context, args ...string) (string, error) {
		h.calls = append(h.calls, strings.Join(args, " "))
		if args[0] == "is-active" && (!h.active || args[1] != "berth.service") {
			return "inactive\n", errors.New("exit status 3")
		}
		return "active\n", nil
	}}
	return h
}

func (h *host) install(t *testing.T, from string) error {
	t.Helper()
	h.From = from
	h.calls = nil
	h.out.Reset()
	return Install(t.Context(), h.Options)
}

func (h *host) must(t *testing.T, from string) {
	t.Helper()
	if err := h.install(t, from); err != nil {
		t.Fatal(err)
	}
}

func (h *host) uninstall(t *testing.T) error {
	t.Helper()
	h.calls = nil
	h.out.Reset()
	return Uninstall(t.Context(), h.Options)
}

func refused(t *testing.T, err error, why string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("got %v, want an error that says %q", err, why)
	}
}

// What was not there before an install is not there after it was taken back.
func TestUninstallLeavesNothing(t *testing.T) {
	h := newHost(t)
	write(t, h.on("/usr/local/bin/other"), "other", 0o755)
	before := there(t, h.Root)
	h.must(t, tree(t, "1"))
	for path, mode := range map[string]fs.FileMode{"/usr/local/bin/berth": 0o755, "/etc/berth/config.toml": 0o600, "/usr/local/share/man/man8/berth.8": 0o644} {
		if info, err := os.Stat(h.on(path)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
	if !slices.Contains(h.calls, "daemon-reload") || slices.Contains(h.calls, "restart berth.service") || !strings.Contains(h.out.String(), "systemctl enable --now berth") {
		t.Errorf("%v %s", h.calls, &h.out)
	}
	if err := h.uninstall(t); err != nil {
		t.Fatal(err)
	}
	if after := there(t, h.Root); !slices.Equal(before, after) {
		t.Errorf("there is now %v", after)
	}
	refused(t, h.uninstall(t), "has installed nothing")
}

// crictl without a configuration asked a socket that is for cAdvisor, and the default driver was
// not that of a node with systemd. Both are set once, said, and left to whoever has set them.
func TestTheSettingsOfTheHostAreWrittenOnce(t *testing.T) {
	h := newHost(t)
	h.must(t, tree(t, "1"))
	for path, want := range map[string]string{crictlFile: crictl, driverFile: driver} {
		if got := read(t, h.on(path)); got != want || !strings.Contains(h.out.String(), path) {
			t.Errorf("%s is %q, and it says %s", path, got, &h.out)
		}
	}
	// An upgrade of a node whose driver was not set does not set it.
	for name, before := range map[string]string{"crictl has a configuration": crictlFile, "berth has one": "/etc/berth/config.toml"} {
		h := newHost(t)
		write(t, h.on(before), "# mine", 0o600)
		h.must(t, tree(t, "1"))
		if read(t, h.on(before)) != "# mine" || strings.Contains(h.out.String(), before) {
			t.Errorf("%s: %s", name, &h.out)
		}
		if _, err := os.Stat(h.on(driverFile)); (err == nil) != (before == crictlFile) {
			t.Errorf("%s: %v", name, err)
		}
	}
	h = newHost(t)
	h.Systemctl = nil
	h.must(t, tree(t, "1"))
	if _, err := os.Stat(h.on(driverFile)); err == nil {
		t.Error("the driver is set without systemd")
	}
}

// An upgrade replaces what it wrote, removes what the new version lacks, restarts a berth that
// runs, and leaves the configuration.
func TestAnUpgrade(t *testing.T) {
	h := newHost(t)
	h.must(t, tree(t, "1", "share/berth/old"))
	h.active = true
	write(t, h.on("/etc/berth/config.toml"), "# mine", 0o600)
	running, err := os.Open(h.on("/usr/local/bin/berth"))
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	second := tree(t, "2")
	h.must(t, second)
	if got := read(t, h.on("/usr/local/bin/berth")); got != "bin/berth 2\n" {
		t.Errorf("got %q", got)
	}
	b := make([]byte, 20)
	if n, _ := running.Read(b); string(b[:n]) != "bin/berth 1\n" {
		t.Errorf("a program that runs was written to: %q", b[:n])
	}
	if got := read(t, h.on("/etc/berth/config.toml")); got != "# mine" {
		t.Errorf("the configuration is %q", got)
	}
	if _, err := os.Stat(h.on("/usr/local/share/berth/old")); err == nil {
		t.Error("a file of the earlier version is still there")
	}
	if !slices.Contains(h.calls, "restart berth.service") {
		t.Errorf("berth was not restarted: %v", h.calls)
	}
	// The same once more does nothing.
	all := there(t, h.Root)
	h.must(t, second)
	if len(h.calls) > 0 || !strings.Contains(h.out.String(), "nothing was changed") || !slices.Equal(all, there(t, h.Root)) {
		t.Errorf("%v %s", h.calls, &h.out)
	}
	h.active = false
	if err := h.uninstall(t); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(h.out.String(), "stays: /etc/berth/config.toml, which was changed") {
		t.Errorf("got %s", &h.out)
	}
	if left := there(t, h.Root); !slices.Equal(left, []string{"etc", "etc/berth", "etc/berth/config.toml"}) {
		t.Errorf("there is %v", left)
	}
}

// An install that was cut off after any of its writes can be repeated, and can be taken back.
func TestAVersionThatCannotReadTheConfigurationIsNotInstalled(t *testing.T) {
	h := newHost(t)
	h.must(t, tree(t, "2"))
	h.active = true
	write(t, h.on("/etc/berth/config.toml"), "[image]\nof_a_newer_version = true\n", 0o600)
	err := h.install(t, tree(t, "1"))
	if err == nil || !strings.Contains(err.Error(), "nothing was changed") || !strings.Contains(err.Error(), "a newer one may have it") {
		t.Errorf("an older version was installed: %v", err)
	}
	if got := read(t, h.on("/usr/local/bin/berth")); got != "bin/berth 2\n" || slices.Contains(h.calls, "restart berth.service") {
		t.Errorf("the program is %q, %v", got, h.calls)
	}
	h.Force = true
	h.must(t, tree(t, "1"))
}

func TestAnInstallThatIsCutOff(t *testing.T) {
	for _, then := range []string{"repeated", "taken back"} {
		for cut := 1; ; cut++ {
			h := newHost(t)
			first, second := tree(t, "1", "share/berth/old"), tree(t, "2", "share/berth/new")
			h.must(t, first)
			h.From = second
			h.active = true
			if !cutOff(t, h, cut) {
				if cut < 8 {
					t.Fatalf("an upgrade makes only %d steps", cut-1)
				}
				break
			}
			m, err := load(h.manifest())
			if err != nil {
				t.Fatal(err)
			}
			if then == "repeated" {
				h.must(t, second)
				if got := read(t, h.on("/usr/local/bin/berth")); got != "bin/berth 2\n" {
					t.Errorf("cut off after %d: %q", cut, got)
				}
				if m.begun && !slices.Contains(h.calls, "restart berth.service") {
					t.Errorf("cut off after %d: berth was not restarted", cut)
				}
			}
			h.active = false
			if err := h.uninstall(t); err != nil {
				t.Fatal(err)
			}
			if left := there(t, h.Root); len(left) > 0 {
				t.Errorf("%s after %d steps: there is %v", then, cut, left)
			}
		}
	}
}

// cutOff installs in a process that is killed after some steps. It reports whether there were that
// many.
func cutOff(t *testing.T, h *host, steps int) bool {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestMain$")
	cmd.Env = append(os.Environ(), "INSTALL_FROM="+h.From, "INSTALL_ROOT="+h.Root, "INSTALL_STEPS="+string(rune('0'+steps)))
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
		return true
	}
	if err != nil {
		t.Fatal(err)
	}
	return false
}

func TestMain(m *testing.M) {
	from := os.Getenv("INSTALL_FROM")
	if from == "" {
		os.Exit(m.Run())
	}
	steps := int(os.Getenv("INSTALL_STEPS")[0] - '0')
	replaced = func() {
		if steps--; steps == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	o := Options{From: from, Prefix: "/usr/local", Root: os.Getenv("INSTALL_ROOT"), Out: os.Stdout}
	if err := Install(context.Background(), o); err != nil {
		panic(err)
	}
}

// What others wrote is not replaced or removed, unless that is asked for.
func TestWhatOthersWroteStays(t *testing.T) {
	h := newHost(t)
	write(t, h.on("/usr/local/libexec/berth/runc"), "theirs", 0o755)
	refused(t, h.install(t, tree(t, "1")), "berth install has not written it")
	if left := there(t, h.Root); len(left) != 5 {
		t.Errorf("a refused install left %v", left)
	}
	h.Force = true
	h.must(t, tree(t, "1"))
	h.Force = false
	write(t, h.on("/usr/local/lib/systemd/system/berth.service"), "edited", 0o644)
	refused(t, h.install(t, tree(t, "2")), "was changed after it was installed")
	if err := h.uninstall(t); err != nil {
		t.Fatal(err)
	}
	if got := read(t, h.on("/usr/local/lib/systemd/system/berth.service")); got != "edited" {
		t.Errorf("an edited file is %q", got)
	}
}

func TestAnotherBerthIsNotReplaced(t *testing.T) {
	h := newHost(t)
	write(t, h.on("/usr/lib/systemd/system/berth.service"), "a package's", 0o644)
	refused(t, h.install(t, tree(t, "1")), "another berth is installed")
	h.Prefix = "relative"
	refused(t, h.install(t, tree(t, "1")), "absolute")
}

// A prefix in which systemd does not look has its units where it does.
func TestAPrefix(t *testing.T) {
	for prefix, unit := range map[string]string{
		"/usr":       "/usr/lib/systemd/system/berth.service",
		"/opt/berth": "/etc/systemd/system/berth.service",
	} {
		h := newHost(t)
		h.Prefix = prefix
		h.must(t, tree(t, "1"))
		if got := read(t, h.on(unit)); !strings.Contains(got, "ExecStart="+prefix+"/bin/berth serve") {
			t.Errorf("%s: %s", prefix, got)
		}
		if err := h.uninstall(t); err != nil || len(there(t, h.Root)) > 0 {
			t.Errorf("%s: %v %v", prefix, err, there(t, h.Root))
		}
	}
}

func TestADamagedArchiveIsRefused(t *testing.T) {
	for why, damage := range map[string]func(dir string) error{
		"is damaged":        func(dir string) error { return os.WriteFile(filepath.Join(dir, "bin/berth"), []byte("x"), 0o755) },
		"not whole":         func(dir string) error { return os.Remove(filepath.Join(dir, "bin/berth")) },
		"unpacked archive":  func(dir string) error { return os.Remove(filepath.Join(dir, Files)) },
		"FILES is empty":    func(dir string) error { return os.WriteFile(filepath.Join(dir, Files), nil, 0o644) },
		"not a sum and a p": func(dir string) error { return os.WriteFile(filepath.Join(dir, Files), []byte("a  ../b\n"), 0o644) },
	} {
		h := newHost(t)
		dir := tree(t, "1")
		if err := damage(dir); err != nil {
			t.Fatal(err)
		}
		refused(t, h.install(t, dir), why)
		if left := there(t, h.Root); len(left) > 0 {
			t.Errorf("%s: there is %v", why, left)
		}
	}
}

// berth that runs, or has pods, is not uninstalled.
func TestARunningBerthIsNotUninstalled(t *testing.T) {
	h := newHost(t)
	h.must(t, tree(t, "1"))
	h.active = true
	refused(t, h.uninstall(t), "berth runs")
	h.active = false
	// A process of a program in libexec stands for a shim.
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	body := read(t, sleep)
	shim := h.on("/usr/local/libexec/berth/containerd-shim-runc-v2")
	write(t, shim, body, 0o755)
	cmd := exec.Command(shim, "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	refused(t, h.uninstall(t), "pods run here")
	if _, err := os.Stat(h.on("/usr/local/bin/berth")); err != nil {
		t.Error(err)
	}
}

// A failed restart is told, and the next install restarts berth once more.
func TestARestartThatFails(t *testing.T) {
	h := newHost(t)
	h.must(t, tree(t, "1"))
	h.active = true
	works := h.Systemctl
	h.Systemctl = func(ctx context.Context, args ...string) (string, error) {
		if args[0] == "restart" {
			return "", errors.New("exit status 1")
		}
		return works(ctx, args...)
	}
	second := tree(t, "2")
	refused(t, h.install(t, second), "did not start again")
	h.Systemctl = works
	h.must(t, second)
	if !slices.Contains(h.calls, "restart berth.service") {
		t.Errorf("got %v", h.calls)
	}
}

func TestHolder(t *testing.T) {
	const locks = "1: POSIX  ADVISORY  WRITE 5 fe:00:131 0 EOF\n2: FLOCK  ADVISORY  WRITE 712 fe:00:131 0 EOF\n3: FLOCK  ADVISORY  WRITE 9 fe:00:1131 0 EOF\n"
	if pid := holder(locks, 131); pid != 712 {
		t.Errorf("got %d", pid)
	}
	if pid := holder(locks, 31); pid != 0 {
		t.Errorf("got %d", pid)
	}
}
