// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// disk is a file system of its own that can be full.
type disk struct {
	t   *testing.T
	dir string
}

// smallDisk mounts a disk; the test's end unmounts it, after the node that was started later is
// stopped.
func smallDisk(t *testing.T, bytes int) disk {
	t.Helper()
	d := disk{t, node.TempDir(t)}
	if err := unix.Mount("tmpfs", d.dir, "tmpfs", unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOSUID, fmt.Sprintf("mode=0700,size=%d", bytes)); err != nil {
		t.Fatalf("mount %s: %v", d.dir, err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(d.dir, unix.MNT_DETACH), os.Remove(d.dir)); err != nil {
			t.Error(err)
		}
	})
	return d
}

// fill leaves no page of the disk free.
func (d disk) fill() {
	d.t.Helper()
	f, err := os.OpenFile(d.dir+"/ballast", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	for page := make([]byte, os.Getpagesize()); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		d.t.Fatal(err)
	}
}

// free makes room again.
func (d disk) free() {
	d.t.Helper()
	if err := os.Remove(d.dir + "/ballast"); err != nil {
		d.t.Fatal(err)
	}
}

// punch gives the pages of a database and of its journal that are not in use back to their disk, so
// that the next commit needs new ones.
func punch(t *testing.T, path string) {
	t.Helper()
	punchJournal(t, filepath.Join(filepath.Dir(path), "berth.journal"))
	punchDatabase(t, path)
}

// punchJournal gives back the pages that were never used.
func punchJournal(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, os.Getpagesize())
	for at := int64(0); ; at += int64(len(page)) {
		if _, err := f.ReadAt(page, at); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if len(bytes.Trim(page, "\x00")) > 0 {
			continue
		}
		if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, int64(len(page))); err != nil {
			t.Fatal(err)
		}
	}
}

func punchDatabase(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	if err := os.WriteFile(copied, b, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(copied, 0o600, &bbolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := int64(db.Info().PageSize)
	err = db.View(func(tx *bbolt.Tx) error {
		for id := range int(tx.Size() / size) {
			if p, err := tx.Page(id); err != nil || p != nil && p.Type != "free" {
				if err != nil {
					return err
				}
				continue
			}
			if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(id)*size, size); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// PROPERTIES 11 and 18: the records' disk is full. What is not on disk is visible to nobody: status,
// Stop and events wait; reading goes on being served. Once there is room everything is visible, with
// the right codes, and nothing was lost, also through kill -9. It is visible within two seconds, as a
// settle does not wait in the back-off of what has failed often.
func TestAFullDiskDelaysTheTruthAndLosesNothing(t *testing.T) {
	t.Parallel()
	for _, kill := range []bool{false, true} {
		t.Run(map[bool]string{false: "goes on", true: "killed meanwhile"}[kill], func(t *testing.T) {
			t.Parallel()
			disk := smallDisk(t, 4<<20)
			dir := node.TempDir(t)
			if err := errors.Join(os.Mkdir(dir+"/lib", 0o700), os.Symlink(disk.dir+"/berth.db", dir+"/lib/berth.db")); err != nil {
				t.Fatal(err)
			}
			n, _ := start(t, node.Options{Dir: dir})
			cfg := n.PodConfig()
			pod := n.Pod(cfg)
			ids := make([]string, 8)
			for i := range ids {
				ids[i] = n.Run(pod, cfg, node.ContainerConfig(fmt.Sprint("c", i), "sh", "-c", exitOnTerm(i+1)))
			}
			for _, id := range ids {
				ready(n, id)
			}
			events := follow(t, n)
			punch(t, disk.dir+"/berth.db")
			disk.fill()
			if _, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, SandboxConfig: cfg, Config: node.ContainerConfig("x", "true")}); err == nil || !strings.Contains(err.Error(), "no space left") {
				t.Errorf("a container without a record: %v", err)
			}
			var wg sync.WaitGroup
			for _, id := range ids {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					defer cancel()
					_, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 100})
					if err != nil && status.Code(err) != codes.DeadlineExceeded {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for _, id := range ids {
				if st := n.Container(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
					t.Errorf("visible before it was durable: %v", st)
				}
				if events.stopped(id) {
					t.Errorf("the end of %s was published before it was durable", id)
				}
				if text := timeline(t, n, id); !strings.Contains(text, "no space left") {
					t.Errorf("the timeline does not say what is waited for: %s", text)
				}
			}
			if kill {
				n.Berth.Kill(unix.SIGKILL)
				disk.free()
				n.StartBerth()
				events = follow(t, n)
			} else {
				disk.free()
			}
			for i, id := range ids {
				if kill {
					expectExact(t, n, id, int32(i+1))
				} else {
					node.ExpectExit(t, n.Ended(id), int32(i+1), "Error")
				}
				n.Until("the end of "+id+" is published", func() bool { return events.stopped(id) })
			}
			if !kill {
				n.Within(2*time.Second, "from room on the disk to EXITED", func() node.Span { return onceThereIsRoom(t, n, disk, pod, cfg) })
			}
		})
	}
}

// onceThereIsRoom measures how long it takes from room on the records' disk until exits are visible
// that were settled in vain for a while.
func onceThereIsRoom(t *testing.T, n *node.Node, disk disk, pod string, cfg *runtimeapi.PodSandboxConfig) node.Span {
	t.Helper()
	var ids []string
	for range 4 {
		ids = append(ids, n.Run(pod, cfg, node.ContainerConfig(fmt.Sprint("late", others.Add(1)), "sh", "-c", exitOnTerm(50))))
	}
	for _, id := range ids {
		ready(n, id)
	}
	punch(t, disk.dir+"/berth.db")
	disk.fill()
	for _, id := range ids {
		if err := unix.Kill(n.Pid(id), unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	// What is left of a page may hold one of them. With a back-off that doubles from a second on, the
	// next attempt of the others would be 16 s away.
	n.Until("exits are settled again and again", func() bool {
		return slices.ContainsFunc(ids, func(id string) bool { return attempts(t, n, id) >= 5 })
	})
	began := time.Now()
	disk.free()
	for _, id := range ids {
		node.ExpectExit(t, n.Ended(id), 50, "Error")
	}
	return node.Span{From: began, To: time.Now()}
}

// PROPERTIES 73: if the disk of the state directory is full, the error of an exec names the disk, and
// not only the code with which runc ended. berth status warns of it, and an exit is put on record as
// always. Once the disk has room, pods and containers can be made again.
func TestAFullRuntimeDirectoryIsNamed(t *testing.T) {
	t.Parallel()
	disk, dir := smallDisk(t, 16<<20), node.TempDir(t)
	if err := os.Symlink(disk.dir, dir+"/run"); err != nil {
		t.Fatal(err)
	}
	n := node.Start(t, node.Options{Dir: dir})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	id := n.Run(pod, cfg, node.ContainerConfig("c", "sh", "-c", exitOnTerm(42)))
	ready(n, id)
	disk.fill()
	named := func(what, text string) {
		t.Helper()
		if !strings.Contains(text, "no space left on device") && !strings.Contains(text, "is full") || !strings.Contains(text, dir+"/run") {
			t.Errorf("%s does not name the disk that is full: %s", what, text)
		}
	}
	_, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}, Timeout: 10})
	named("an ExecSync", fmt.Sprint(err))
	for _, args := range [][]string{{"exec", id, "true"}, {"exec", "-t", id, "true"}, {"status"}} {
		out, _ := n.Command(args...).CombinedOutput() // status ends well
		named("berth "+args[0], string(out))
	}
	_, err = n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: n.PodConfig()})
	named("a pod", fmt.Sprint(err))
	if err := unix.Kill(n.Pid(id), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	node.ExpectExit(t, n.Ended(id), 42, "Error")
	disk.free()
	_, again := n.Sh("exit 7")
	node.ExpectExit(t, n.Ended(again), 7, "Error")
}
