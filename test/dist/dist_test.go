// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/command"
	"berth/test/node"
)

const socket = "/run/berth/berth.sock"

// releases are the directories of a release and of one that is newer.
func releases(t *testing.T) (first, next string) {
	t.Helper()
	if os.Getenv("BERTH_GUEST") == "" {
		t.Fatal("these tests change the host: run make test-dist")
	}
	return os.Getenv("BERTH_DIST"), os.Getenv("BERTH_DIST_NEXT")
}

// one is the one file that a pattern matches.
func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s in %s: %v %v", pattern, dir, found, err)
	}
	return found[0]
}

// run runs a program that has to succeed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := command.Within(t, 20*time.Minute, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// refused runs a program that has to fail and say why.
func refused(t *testing.T, why, name string, args ...string) {
	t.Helper()
	out, err := command.Within(t, 20*time.Minute, name, args...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), why) {
		t.Errorf("%s %s: %v, and does not say %q: %s", name, strings.Join(args, " "), err, why, out)
	}
}

// unpack unpacks the archive of a release.
func unpack(t *testing.T, release string) string {
	t.Helper()
	dir := t.TempDir()
	run(t, "tar", "-xzf", one(t, release, "berth-*-linux-amd64.tar.gz"), "-C", dir)
	return one(t, dir, "berth-*")
}

// files are the files of the host that an installation may leave.
func files(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, dir := range []string{"/usr", "/etc", "/var/lib", "/run/berth", "/run/systemd/system", "/opt", "/root"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil
			}
			switch path {
			case "/var/lib/dpkg", "/var/lib/rpm", "/root/.rpmdb", "/var/lib/systemd", "/etc/ld.so.cache", "/var/lib/apt":
				if d.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			all = append(all, path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// same fails if there are files that were not there before, or that are no longer.
func same(t *testing.T, before []string) {
	t.Helper()
	after := files(t)
	for _, path := range after {
		if !slices.Contains(before, path) {
			t.Errorf("left: %s", path)
		}
	}
	for _, path := range before {
		if !slices.Contains(after, path) {
			t.Errorf("gone: %s", path)
		}
	}
	if _, err := netlink.LinkByName("berth0"); err == nil {
		t.Error("left: the bridge")
		_ = netlink.LinkDel(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "berth0"}})
	}
}

// A fresh host needs nothing but the archive to run a pod, and is as before afterwards.
func TestFromAnArchiveToAPod(t *testing.T) {
	first, _ := releases(t)
	for _, tool := range []string{"go", "gcc", "docker", "containerd", "runc"} {
		if path, err := exec.LookPath(tool); err == nil {
			t.Errorf("this host is not fresh: it has %s", path)
		}
	}
	before := files(t)
	began := time.Now()
	dir := unpack(t, first)
	t.Logf("unpacked after %s", time.Since(began).Round(time.Millisecond))
	out := run(t, filepath.Join(dir, "berth"), "demo")
	t.Logf("the demo was done after %s:\n%s", time.Since(began).Round(time.Millisecond), out)
	for _, want := range []string{"0  Completed", "42  Error", "137  OOMKilled"} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %s", want)
		}
	}
	run(t, "sh", "-c", "cd '"+dir+"' && sha256sum --quiet -c FILES")
	same(t, before)
}

// upgraded runs a pod, and meanwhile upgrade, which takes berth to the next version. The process of
// the pod is the same before and after, and no command of a user fails meanwhile.
func upgraded(t *testing.T, berth string, upgrade, refuse func()) {
	t.Helper()
	n := node.Installed(t, socket)
	_, id := n.Sh("while :; do echo lives; sleep 1; done")
	pid, started := n.Pid(id), n.Container(id).GetStartedAt()
	main, version := run(t, "systemctl", "show", "-P", "MainPID", "berth"), run(t, berth, "--version")
	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		calls := 0
		defer func() { stopped <- calls }()
		for ; ; calls++ {
			select {
			case <-stop:
				return
			default:
			}
			if out, err := command.New(t, berth, "ps").CombinedOutput(); err != nil {
				t.Errorf("berth ps failed during an upgrade: %v: %s", err, out)
			}
		}
	}()
	began := time.Now()
	upgrade()
	took := time.Since(began)
	close(stop)
	t.Logf("the upgrade took %s; berth ps was run %d times meanwhile", took.Round(time.Millisecond), <-stopped)
	if now := run(t, berth, "--version"); now == version {
		t.Errorf("berth is still %s", version)
	}
	if now := run(t, "systemctl", "show", "-P", "MainPID", "berth"); now == main {
		t.Error("it is the same process of berth")
	}
	n = node.Installed(t, socket)
	st := n.Container(id)
	if st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || n.Pid(id) != pid || st.GetStartedAt() != started {
		t.Errorf("the process of the pod was %d, and is %d: %v", pid, n.Pid(id), st)
	}
	lines := strings.Count(n.Log(id), "lives")
	n.Until("the pod goes on writing", func() bool { return strings.Count(n.Log(id), "lives") > lines })
	refuse()
}

// idle removes the image of the tests.
func idle(t *testing.T, berth string) {
	t.Helper()
	run(t, berth, "rm", "-f", "--all")
	run(t, berth, "images", "rm", node.Busybox)
}

func TestBerthInstall(t *testing.T) {
	first, next := releases(t)
	before := files(t)
	began := time.Now()
	old := unpack(t, first)
	run(t, old+"/berth", "install")
	run(t, "systemctl", "enable", "--now", "berth")
	t.Logf("berth serves after %s", time.Since(began).Round(time.Millisecond))
	const berth = "/usr/local/bin/berth"
	newer := unpack(t, next)
	t.Run("upgrade", func(t *testing.T) {
		upgraded(t, berth,
			func() { run(t, newer+"/berth", "install") },
			func() { refused(t, "pods run here", berth, "install", "--uninstall") })
	})
	if out := run(t, newer+"/berth", "install"); !strings.Contains(out, "nothing was changed") {
		t.Errorf("the same once more: %s", out)
	}
	refused(t, "another berth is installed", newer+"/berth", "install", "--prefix", "/opt/berth")
	idle(t, berth)
	refused(t, "berth runs", berth, "install", "--uninstall")
	// Back to the earlier version, of which the records are.
	run(t, old+"/berth", "install")
	run(t, "systemctl", "disable", "--now", "berth")
	out := run(t, berth, "install", "--uninstall")
	t.Log(out)
	if !strings.Contains(out, "stays: /var/lib/berth") {
		t.Errorf("it does not say what stays: %s", out)
	}
	clean(t)
	same(t, before)
}

// clean does what docs/install.md says about the rest.
func clean(t *testing.T) {
	t.Helper()
	run(t, "rm", "-rf", "/var/lib/berth", "/run/berth", "/etc/berth")
	_ = command.New(t, "ip", "link", "delete", "berth0").Run()
}

func TestTheDebianPackage(t *testing.T) {
	first, next := releases(t)
	before := files(t)
	began := time.Now()
	run(t, "dpkg", "-i", one(t, first, "*_amd64.deb"))
	t.Logf("installed after %s", time.Since(began).Round(time.Millisecond))
	const berth = "/usr/bin/berth"
	if state := run(t, "systemctl", "is-active", "berth") + " " + run(t, "systemctl", "is-enabled", "berth"); state != "active enabled" {
		t.Errorf("berth is %s", state)
	}
	refused(t, "another berth is installed", unpack(t, next)+"/berth", "install")
	run(t, "sh", "-c", "echo '# mine' >> /etc/berth/config.toml")
	t.Run("upgrade", func(t *testing.T) {
		upgraded(t, berth,
			func() { run(t, "dpkg", "-i", one(t, next, "*_amd64.deb")) },
			func() { refused(t, "pods run on this host", "dpkg", "-r", "berth") })
	})
	idle(t, berth)
	run(t, "dpkg", "-r", "berth")
	if config, err := os.ReadFile("/etc/berth/config.toml"); err != nil || !strings.Contains(string(config), "# mine") {
		t.Errorf("a removed package left of the settings %q %v", config, err)
	}
	for _, path := range []string{"/var/lib/berth/berth.db", "/usr/bin/berth"} {
		if _, err := os.Stat(path); (err == nil) != strings.HasPrefix(path, "/var") {
			t.Errorf("of a removed package, %s: %v", path, err)
		}
	}
	run(t, "dpkg", "-P", "berth")
	same(t, before)
}

// ofFilesystem are directories of the package filesystem, which every system with RPM packages has, so
// that berth's package does not own them. A Debian lacks them.
var ofFilesystem = []string{
	"/usr/share/fish",
	"/usr/share/fish/vendor_completions.d",
	"/usr/share/man/man8",
	"/usr/share/zsh",
	"/usr/share/zsh/site-functions",
}

// TestTheRPM installs it with rpm on a Debian, which has nothing of what the package asks for in the
// database of rpm.
func TestTheRPM(t *testing.T) {
	first, next := releases(t)
	for _, dir := range ofFilesystem {
		if os.Mkdir(dir, 0o755) == nil {
			t.Cleanup(func() { _ = os.Remove(dir) })
		}
	}
	before := files(t)
	rpm := func(args ...string) []string { return append(args, "--force-debian", "--nodeps") }
	run(t, "rpm", rpm("-i", one(t, first, "*.x86_64.rpm"))...)
	const berth = "/usr/bin/berth"
	if state := run(t, "systemctl", "is-active", "berth") + " " + run(t, "systemctl", "is-enabled", "berth"); state != "active enabled" {
		t.Errorf("berth is %s", state)
	}
	run(t, "rpm", "-V", "--nodeps", "berth")
	run(t, "sh", "-c", "echo '# mine' >> /etc/berth/config.toml")
	t.Run("upgrade", func(t *testing.T) {
		upgraded(t, berth,
			func() { run(t, "rpm", rpm("-U", one(t, next, "*.x86_64.rpm"))...) },
			func() { refused(t, "pods run on this host", "rpm", rpm("-e", "berth")...) })
	})
	if config, err := os.ReadFile("/etc/berth/config.toml"); err != nil || !strings.Contains(string(config), "# mine") {
		t.Errorf("an upgrade left of the settings %q %v", config, err)
	}
	idle(t, berth)
	run(t, "rpm", rpm("-e", "berth")...)
	if config, err := os.ReadFile("/etc/berth/config.toml.rpmsave"); err != nil || !strings.Contains(string(config), "# mine") {
		t.Errorf("a removed package left of the settings %q %v", config, err)
	}
	if _, err := os.Stat("/var/lib/berth/berth.db"); err != nil {
		t.Errorf("of a removed package: %v", err)
	}
	clean(t)
	same(t, before)
}
