// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// host is a node's units and pods in memory.
type host struct {
	active, enabled []string
	pods            map[string][]Pod // by endpoint
	fail            func(call string) error
	calls           []string
}

// The endpoints of a node that is migrated.
const (
	oldSocket = "unix:///run/containerd/containerd.sock"
	newSocket = "unix:///run/berth/berth.sock"
)

func newHost() *host {
	return &host{
		active:  []string{"containerd", "kubelet"},
		enabled: []string{"containerd", "kubelet"},
		pods:    map[string][]Pod{},
		fail:    func(string) error { return nil },
	}
}

func with(list []string, unit string) []string {
	list = without(list, unit)
	list = append(list, unit)
	slices.Sort(list)
	return list
}

func without(list []string, unit string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(u string) bool { return u == unit })
}

func (h *host) call(format string, args ...any) error {
	c := fmt.Sprintf(format, args...)
	h.calls = append(h.calls, c)
	return h.fail(c)
}

func (h *host) Systemctl(_ context.Context, args ...string) (string, error) {
	if err := h.call("systemctl %s", strings.Join(args, " ")); err != nil {
		return "", err
	}
	unit := args[len(args)-1]
	switch args[0] {
	case "is-active":
		if slices.Contains(h.active, unit) {
			return "active\n", nil
		}
		return "inactive\n", errors.New("exit status 3")
	case "is-enabled":
		if slices.Contains(h.enabled, unit) {
			return "enabled\n", nil
		}
		return "disabled\n", errors.New("exit status 1")
	case "start", "restart":
		h.active = with(h.active, unit)
		if unit == "kubelet" && slices.Contains(h.active, "berth") { // it starts static pods
			h.pods[newSocket] = []Pod{{ID: "n1", Namespace: "kube-system", Name: "static"}}
		}
	case "stop":
		h.active = without(h.active, unit)
	case "enable":
		h.enabled = with(h.enabled, unit)
	case "disable":
		h.enabled = without(h.enabled, unit)
	}
	return "", nil
}

func (h *host) Running(_ context.Context, endpoint string) ([]Pod, error) {
	return slices.Clone(h.pods[endpoint]), h.call("running %s", endpoint)
}

func (h *host) Remove(_ context.Context, endpoint string, pod Pod) error {
	if err := h.call("remove %s", pod); err != nil {
		return err
	}
	h.pods[endpoint] = slices.DeleteFunc(h.pods[endpoint], func(p Pod) bool { return p.ID == pod.ID })
	return nil
}

func (h *host) RuntimeReady(_ context.Context, endpoint string) error {
	return h.call("runtime %s", endpoint)
}

func (h *host) NodeReady(_ context.Context, endpoint string, healthz int) error {
	return h.call("node %s %d", endpoint, healthz)
}

// snapshot is every file and directory of a node, with its mode, but those of the journal.
func snapshot(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		if rel == "var/lib/berth" {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := []byte{}
		if !d.IsDir() {
			if text, err = os.ReadFile(name); err != nil {
				return err
			}
		}
		fmt.Fprintf(&b, "%s %s %q\n", rel, info.Mode(), text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

const inline = `version = 2
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]
endpoint = ["https://mirror.example"]
`

// full is a node on which every kind of file is changed.
func full(t *testing.T) string {
	dir := newNode(t, map[string]string{
		"etc/containerd/config.toml":            inline,
		"var/lib/kubelet/kubeadm-flags.env":     "A=\"--container-runtime-endpoint=unix:///run/containerd/containerd.sock\"\n",
		"var/lib/kubelet/instance-config.yaml":  "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n",
		"etc/berth/conf.d/50-migrated.toml":     "# of an earlier one\n",
		"etc/kubernetes/kubelet.conf":           "kind: Config\n",
		"etc/systemd/system/somebody's.service": "",
	})
	for name, mode := range map[string]fs.FileMode{"etc/berth/conf.d/50-migrated.toml": 0o600, "etc/crictl.yaml": 0o640} {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// state is all that is to be as before.
func (h *host) state() string { return fmt.Sprint(h.active, h.enabled) }

// killed is what a process ends with in the middle.
type killed string

// until runs f and ends it at the point of that number. done reports whether it ended by itself.
func until(number int, o *Options, f func() error) (point string, done bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			k, ok := r.(killed)
			if !ok {
				panic(r)
			}
			point, done = string(k), false
		}
	}()
	n := 0
	o.at = func(point string) {
		if n++; n == number {
			panic(killed(point))
		}
	}
	err = f()
	o.at = nil
	return "", true, err
}

func apply(t *testing.T, root string, beside bool, h *host, o *Options) error {
	p, err := Make(t.Context(), Where{Root: root, Beside: beside}, h)
	if err != nil {
		t.Fatal(err)
	}
	o.Host = h
	if o.Out == nil {
		o.Out = io.Discard
	}
	o.Within = 10 * time.Second
	return Apply(t.Context(), p, *o)
}

func undo(t *testing.T, root string, o *Options) error {
	return Undo(t.Context(), root, "/var/lib/berth", *o)
}

// A kill at any point of an apply, followed by an undo that may be killed at any point as well, gives
// the files and units of before, to the byte.
func TestAKillAnywhereCanBeUndone(t *testing.T) {
	for _, beside := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			for k := 1; ; k++ {
				root, h := full(t), newHost()
				h.pods[oldSocket] = []Pod{{ID: "o1", Namespace: "default", Name: "web"}}
				files, units := snapshot(t, root), h.state()
				o := &Options{PodsMayEnd: true}
				point, done, err := until(k, o, func() error { return apply(t, root, beside, h, o) })
				if done {
					if err != nil || k < 30 {
						t.Fatalf("%d points, and %v", k, err)
					}
					break
				}
				o.at = nil
				for u := 1; ; u *= 2 { // each undo comes further than the one before
					_, undone, err := until(u, o, func() error { return undo(t, root, o) })
					if undone && err != nil {
						t.Fatalf("killed at %q: %v", point, err)
					}
					if undone {
						break
					}
				}
				if got := snapshot(t, root); got != files {
					t.Fatalf("killed at %q: the files are\n%s\nand were\n%s", point, got, files)
				}
				if got := h.state(); got != units {
					t.Fatalf("killed at %q: the units are %s and were %s", point, got, units)
				}
				if len(h.pods[newSocket]) > 0 {
					t.Fatalf("killed at %q: berth still has %v", point, h.pods[newSocket])
				}
			}
		})
	}
}

// Whatever the node is asked and does not do, everything is taken back.
func TestWhateverFailsIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		if err := apply(t, full(t), false, h, &Options{}); err != nil {
			t.Fatal(err)
		}
		for i, call := range h.calls {
			if i < 3 { // the plan and what is asked before anything is done
				continue
			}
			root, h := full(t), newHost()
			files, units := snapshot(t, root), h.state()
			n, failed := 0, false
			h.fail = func(string) error {
				if n++; n == i+1 {
					failed = true
					return errors.New("it does not work")
				}
				return nil
			}
			err := apply(t, root, false, h, &Options{})
			if ready := strings.HasPrefix(call, "runtime") || strings.HasPrefix(call, "node"); ready && err == nil {
				continue // it was asked again
			}
			if err == nil && strings.HasPrefix(call, "systemctl is-enabled") {
				continue // a unit that is not there is not enabled
			}
			if !failed || err == nil || !strings.Contains(err.Error(), "it does not work") || !strings.Contains(err.Error(), "everything was taken back") {
				t.Errorf("%d, %s: %v", i, call, err)
			}
			if got := snapshot(t, root); got != files || h.state() != units {
				t.Errorf("%d, %s: the units are %s and were %s, and the files are\n%s", i, call, h.state(), units, got)
			}
		}
	})
}

// A runtime, and then a kubelet, that is never ready is taken back within the time that was given.
func TestWhatIsNotReadyInTimeIsTakenBack(t *testing.T) {
	for _, never := range []string{"runtime " + newSocket, "node " + newSocket} {
		synctest.Test(t, func(t *testing.T) {
			root, h := full(t), newHost()
			files, units := snapshot(t, root), h.state()
			h.fail = func(call string) error {
				if strings.HasPrefix(call, never) {
					return errors.New("NetworkReady is false")
				}
				return nil
			}
			began := time.Now()
			var out bytes.Buffer
			err := apply(t, root, false, h, &Options{Out: &out})
			if err == nil || !strings.Contains(err.Error(), "not ready within 10s: NetworkReady is false; everything was taken back") {
				t.Errorf("got %v", err)
			}
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("it took %s", took)
			}
			if got := snapshot(t, root); got != files || h.state() != units {
				t.Errorf("the units are %s and were %s, and the files are\n%s", h.state(), units, got)
			}
			if !strings.Contains(out.String(), "Everything is taken back") {
				t.Errorf("it said %s", out.String())
			}
			h.fail = func(string) error { return nil } // and afterwards it can be applied
			if err := apply(t, root, false, h, &Options{}); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(root, "var/lib/berth/migrate-undone-1/journal.json")); err != nil {
				t.Errorf("the journal of the first one is lost: %v", err)
			}
		})
	}
}

func TestAMigrationThereAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root, h := full(t), newHost()
		files, units := snapshot(t, root), h.state()
		if err := apply(t, root, false, h, &Options{}); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{
			"var/lib/kubelet/config.yaml":            "containerRuntimeEndpoint: unix:///run/berth/berth.sock\n",
			"var/lib/kubelet/instance-config.yaml":   "containerRuntimeEndpoint: unix:///run/berth/berth.sock\n",
			"var/lib/kubelet/kubeadm-flags.env":      "A=\"--container-runtime-endpoint=unix:///run/berth/berth.sock\"\n",
			"etc/crictl.yaml":                        "timeout: 10\nruntime-endpoint: unix:///run/berth/berth.sock\n",
			"etc/berth/conf.d/50-migrated.toml":      "registry_dir = '/etc/berth/certs.d'",
			"etc/berth/certs.d/docker.io/hosts.toml": "https://mirror.example",
		} {
			if b, err := os.ReadFile(filepath.Join(root, name)); err != nil || !strings.Contains(string(b), want) {
				t.Errorf("%s is %s, %v", name, b, err)
			}
		}
		if got := h.state(); got != "[berth kubelet] [berth kubelet]" {
			t.Errorf("the units are %s", got)
		}
		var out bytes.Buffer
		if err := apply(t, root, false, h, &Options{Out: &out}); err != nil || !strings.Contains(out.String(), "nothing is to be done") {
			t.Errorf("a second time: %v, %s", err, out.String())
		}
		o := &Options{Host: h, Out: &out, Within: time.Second}
		if err := undo(t, root, o); err == nil || !strings.Contains(err.Error(), "kube-system/static") || !strings.Contains(err.Error(), "--pods-may-end") {
			t.Errorf("pods of berth would have ended without a word: %v", err)
		}
		o.PodsMayEnd = true
		if err := undo(t, root, o); err != nil || !strings.Contains(out.String(), "cri-socket="+oldSocket) {
			t.Fatal(err, out.String())
		}
		if got := snapshot(t, root); got != files || h.state() != units {
			t.Errorf("the units are %s, and the files are\n%s\nand were\n%s", h.state(), got, files)
		}
		out.Reset()
		if err := undo(t, root, o); err != nil || !strings.Contains(out.String(), "taken back already") {
			t.Errorf("a second time: %v, %s", err, out.String())
		}
	})
}

// One migration has read the journal when another one begins and ends. The originals that this one
// has kept would be lost to the next one.
func TestAnotherMigrationMeanwhileIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root, h := full(t), newHost()
		files := snapshot(t, root)
		p, err := Make(t.Context(), Where{Root: root}, h)
		if err != nil {
			t.Fatal(err)
		}
		h.fail = func(string) error { // this one asks for pods once it has read the journal
			h.fail = func(string) error { return nil }
			return apply(t, root, false, h, &Options{})
		}
		o := Options{Host: h, Out: io.Discard, Within: 10 * time.Second, PodsMayEnd: true}
		if err := Apply(t.Context(), p, o); err == nil || !strings.Contains(err.Error(), "meanwhile") {
			t.Errorf("it went on: %v", err)
		}
		if err := undo(t, root, &o); err != nil {
			t.Fatal(err)
		}
		if got := snapshot(t, root); got != files {
			t.Errorf("the files are\n%s\nand were\n%s", got, files)
		}
	})
}

// What somebody has changed after the migration is not lost by taking it back.
func TestUndoKeepsWhatWasChangedMeanwhile(t *testing.T) {
	root, h := full(t), newHost()
	files := snapshot(t, root)
	o := &Options{PodsMayEnd: true}
	if err := apply(t, root, false, h, o); err != nil {
		t.Fatal(err)
	}
	write(t, root, map[string]string{"var/lib/kubelet/config.yaml": "by hand\n", "etc/berth/certs.d/docker.io/hosts.toml": "mine\n"})
	if err := undo(t, root, o); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"var-lib-kubelet-config.yaml": "by hand\n", "etc-berth-certs.d-docker.io-hosts.toml": "mine\n"} {
		if b, err := os.ReadFile(filepath.Join(root, "var/lib/berth/migrate/changed-"+name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if got := snapshot(t, root); got != files {
		t.Errorf("the files are\n%s", got)
	}
}

// The socket that a containerd leaves keeps berth from making its link, and one that somebody serves
// stays.
func TestASocketThatNobodyServesIsCleared(t *testing.T) {
	for _, served := range []bool{false, true} {
		root, h := full(t), newHost()
		name := filepath.Join(root, "run/containerd/containerd.sock")
		write(t, root, map[string]string{"run/containerd/x": ""})
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		if !served {
			l.Close()
		}
		if err := apply(t, root, false, h, &Options{}); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(name); (err == nil) != served {
			t.Errorf("served: %v, and then %v", served, err)
		}
		l.Close()
	}
}

func TestApplyIsRefused(t *testing.T) {
	web := []Pod{{ID: "1", Namespace: "default", Name: "web"}}
	for name, c := range map[string]struct {
		files map[string]string
		do    func(h *host)
		want  string
	}{
		"while pods run":              {nil, func(h *host) { h.pods[oldSocket] = web }, "1 pods of containerd run, and would be ended: default/web. Drain the node"},
		"while pods are not known":    {nil, func(h *host) { h.fail = func(string) error { return errors.New("no answer") } }, "is not known: no answer; start it"},
		"with what has no place":      {map[string]string{"etc/containerd/config.toml": "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = 'zfs'\n"}, nil, "cannot be migrated as it is: the containerd inside berth has the snapshotters"},
		"of a containerd of Docker":   {map[string]string{"lib/systemd/system/docker.service": ""}, nil, "Docker is on this node"},
		"of k3s":                      {map[string]string{"etc/rancher/k3s/config.yaml": ""}, nil, "k3s starts its own containerd"},
		"of one that was cut off":     {map[string]string{"var/lib/berth/migrate/journal.json": `{"state": "applying"}`}, nil, "take it back with `berth migrate --undo`"},
		"of one that was half undone": {map[string]string{"var/lib/berth/migrate/journal.json": `{"state": "undoing"}`}, nil, "take it back with `berth migrate --undo`"},
		"with a journal of another":   {map[string]string{"var/lib/berth/migrate/journal.json": `{"stat": 1}`}, nil, "read the journal"},
	} {
		t.Run(name, func(t *testing.T) {
			root, h := newNode(t, c.files), newHost()
			files, units := snapshot(t, root), h.state()
			if c.do != nil {
				c.do(h)
			}
			err := apply(t, root, false, h, &Options{PodsMayEnd: name != "while pods run"})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, and not %s", err, c.want)
			}
			if got := snapshot(t, root); got != files || h.state() != units {
				t.Errorf("something was changed: %s\n%s", h.state(), got)
			}
		})
	}
}

func TestANodeThatIsOnBerthIsLeftAlone(t *testing.T) {
	root, h := newNode(t, map[string]string{"var/lib/kubelet/config.yaml": "containerRuntimeEndpoint: unix:///run/berth/berth.sock\n"}), newHost()
	var out bytes.Buffer
	if err := apply(t, root, false, h, &Options{Out: &out}); err != nil || !strings.Contains(out.String(), "uses berth already") || len(h.calls) > 0 {
		t.Errorf("%v, %s, %v", err, out.String(), h.calls)
	}
	if err := undo(t, root, &Options{Host: h, Out: &out}); err == nil || !strings.Contains(err.Error(), "no migration to take back") {
		t.Errorf("got %v", err)
	}
}

// Whoever interrupts an apply gets the node of before.
func TestAnInterruptionIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root, h := full(t), newHost()
		files, units := snapshot(t, root), h.state()
		p, err := Make(t.Context(), Where{Root: root}, h)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		h.fail = func(call string) error {
			if strings.HasPrefix(call, "runtime "+newSocket) {
				cancel()
				return errors.New("not yet")
			}
			return ctx.Err()
		}
		undoing := false
		o := Options{
			Host:   h,
			Out:    io.Discard,
			Within: time.Minute,
			at: func(point string) {
				if point == "undoing" {
					undoing = true
					h.fail = func(string) error { return nil }
				}
			},
		}
		if err := Apply(ctx, p, o); err == nil || !strings.Contains(err.Error(), "everything was taken back") {
			t.Errorf("got %v", err)
		}
		if got := snapshot(t, root); !undoing || got != files || h.state() != units {
			t.Errorf("the units are %s, and the files are\n%s", h.state(), got)
		}
	})
}

// Pods that berth had before are not ended by the way back.
func TestPodsOfBeforeAreKept(t *testing.T) {
	root, h := full(t), newHost()
	h.active, h.enabled = with(h.active, "berth"), with(h.enabled, "berth")
	h.pods[newSocket] = []Pod{{ID: "mine", Namespace: "default", Name: "mine"}}
	h.fail = func(call string) error {
		if call == "systemctl daemon-reload" && len(h.calls) < 40 {
			return errors.New("no")
		}
		return nil
	}
	err := apply(t, root, false, h, &Options{})
	for _, c := range h.calls {
		if strings.HasPrefix(c, "remove") {
			t.Errorf("%s", c)
		}
	}
	if err == nil || !slices.Contains(h.active, "berth") {
		t.Errorf("%v, %v", err, h.active)
	}
}
