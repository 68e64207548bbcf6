// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"berth/test/command"
)

// Each user has an ID of its own, from the first one on, and a range of subordinate IDs. Somebody
// else is not expected to have them on this host.
const (
	firstUser        = 61234
	firstSubordinate = 1612340000
	subordinates     = 65536
)

// users counts the users of this process.
var users atomic.Int64

// User is a user without root, with a home directory and a delegated cgroup, as a session of
// systemd's has it. This host does not know the user: only the user's processes see the files for
// that in /etc. To the user, root has used berth and other runtimes on this host, and their
// directories are closed.
type User struct {
	t     testing.TB
	id    int
	first int // of the subordinate IDs
	Home  string
	Group string // the directory of the cgroup
	files string // the user's files on top of /etc, /run and /var/lib
}

// closed are directories of root's that a user must not need, below those of User.files.
var closed = []string{
	"etc/berth", "etc/cni", "etc/containerd", "run/berth", "run/containerd", "run/cni", "run/netns", "run/nri",
	"var/lib/berth", "var/lib/berth-play", "var/lib/cni", "var/lib/containerd", "var/lib/kubelet",
}

// NewUser makes a user for the time of the test. The programs of [Module] are in ~/build, and can
// be executed wherever the source is.
func NewUser(t testing.TB) *User {
	t.Helper()
	number := int(users.Add(1)) - 1
	u := &User{t: t, id: firstUser + number, first: firstSubordinate + number*subordinates, Home: TempDir(t), files: TempDir(t)}
	u.Group = filepath.Join(unified(), filepath.Base(u.Home))
	t.Cleanup(func() { RemoveGroup(u.Group) })
	if err := os.Mkdir(filepath.Join(u.Home, "build"), 0o755); err != nil {
		t.Fatal(err)
	}
	u.Own(u.Home)
	for _, dir := range closed {
		if err := os.MkdirAll(filepath.Join(u.files, filepath.Dir(dir)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(u.files, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"passwd": fmt.Sprintf("root:x:0:0::/root:/bin/sh\nberth-test:x:%d:%d::%s:/bin/sh\n", u.id, u.id, u.Home),
		"subuid": fmt.Sprintf("berth-test:%d:%d\n", u.first, subordinates),
		"subgid": fmt.Sprintf("berth-test:%d:%d\n", u.first, subordinates),
	} {
		if err := os.WriteFile(filepath.Join(u.files, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return u
}

// unified is where the unified hierarchy of cgroups is mounted.
func unified() string {
	if dirs := Groups(""); len(dirs) == 1 {
		return dirs[0]
	}
	return "/sys/fs/cgroup/unified"
}

// delegate makes the cgroup anew and gives it to the user, as systemd does for each scope. The
// processes in the one before are about to end: the kernel ends the processes of the namespaces one
// after the other.
func (u *User) delegate() {
	u.t.Helper()
	err := fs.ErrExist
	for end := time.Now().Add(time.Minute); errors.Is(err, fs.ErrExist) && time.Now().Before(end); {
		RemoveGroup(u.Group)
		if err = os.Mkdir(u.Group, 0o755); err != nil {
			time.Sleep(10 * time.Millisecond)
		}
	}
	if err != nil {
		u.t.Fatal(err)
	}
	u.Own(u.Group, filepath.Join(u.Group, "cgroup.procs"), filepath.Join(u.Group, "cgroup.subtree_control"))
}

// Own gives files to the user.
func (u *User) Own(paths ...string) {
	u.t.Helper()
	for _, path := range paths {
		if err := os.Chown(path, u.id, u.id); err != nil {
			u.t.Fatal(err)
		}
	}
}

// Berth is a command of berth's that the user runs.
func (u *User) Berth(args ...string) *exec.Cmd {
	return u.command(answer, "", append([]string{u.Home + "/build/bin/berth"}, args...))
}

// Rootless is `berth rootless`, which the user runs in a cgroup that was delegated for that. The
// remains of an earlier one in a cgroup are removed, so none may run.
func (u *User) Rootless(args ...string) *exec.Cmd {
	u.t.Helper()
	u.delegate()
	const longest = 10 * time.Minute // a service lives as long as its test
	return u.command(longest, "echo $$ > "+u.Group+"/cgroup.procs", append([]string{u.Home + "/build/bin/berth", "rootless"}, args...))
}

func (u *User) command(limit time.Duration, before string, argv []string) *exec.Cmd {
	script := `set -e
		for d in etc run var/lib; do mount -t overlay -o lowerdir=` + u.files + `/$d:/$d overlay /$d; done
		mount --bind ` + Module(u.t) + `/build ` + u.Home + `/build
		` + before + `
		cd ` + u.Home + `
		exec setpriv --reuid ` + strconv.Itoa(u.id) + ` --regid ` + strconv.Itoa(u.id) + ` --clear-groups --bounding-set=-sys_resource "$@"`
	cmd := command.Asking(u.t, limit, u.waits, "unshare", append([]string{"--mount", "--propagation", "private", "sh", "-c", script, "sh"}, argv...)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + u.Home, "TMPDIR=" + u.Home}
	return cmd
}

// waits is the pending work of the user's berth.
func (u *User) waits() string { return waitsFor(u.Home + "/.local/share/berth/berth.sock") }

// NothingIsLeft fails the test if the user has processes, or cgroups below the delegated one.
func (u *User) NothingIsLeft() {
	u.t.Helper()
	eachProcess(func(pid int, cmdline []byte) {
		info, err := os.Stat("/proc/" + strconv.Itoa(pid))
		if err != nil || len(cmdline) == 0 { // it has ended, and may wait for its parent
			return
		}
		if id := int(info.Sys().(*syscall.Stat_t).Uid); id == u.id || id >= u.first && id < u.first+subordinates {
			u.t.Errorf("process %d of user %d is left: %s", pid, id, strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	})
	entries, err := os.ReadDir(u.Group)
	if err != nil {
		u.t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			u.t.Errorf("cgroup %s is left below %s", e.Name(), u.Group)
		}
	}
}

// Served is the process of the user's berth serve, which runs inside berth rootless.
func (u *User) Served() (pid int) {
	eachProcess(func(p int, cmdline []byte) {
		if strings.HasPrefix(string(cmdline), "berth\x00serve\x00") && strings.Contains(string(cmdline), u.Home) {
			pid = p
		}
	})
	return pid
}
