// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/test/node"
)

// faulty is the program that is built once for all tests.
var faulty string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "bf")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	faulty = filepath.Join(dir, "faulty")
	if built := os.Getenv("BERTH_FAULTY"); built != "" { // where there is no Go
		b, err := os.ReadFile(built)
		if err == nil {
			err = os.WriteFile(faulty, b, 0o700)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", faulty, "./faulty")
	cmd.Dir = "../../tools/programs"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build faulty: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// faults are the rules of one node: see tools/programs/faulty.
type faults struct {
	t   testing.TB
	dir string
}

// start brings up a node whose shim, runc, bridge and portmap are faulty. It has no rules yet; the
// test's end takes them away before it looks for leaks.
func start(t testing.TB, o node.Options) (*node.Node, *faults) {
	t.Helper()
	module := node.Module(t)
	if o.Dir == "" {
		o.Dir = node.TempDir(t)
	}
	base := filepath.Join(o.Dir, "f")
	for _, d := range []string{"libexec", "cni", "real", "rules"} {
		if err := os.MkdirAll(filepath.Join(base, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	link := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	link(os.Link(faulty, base+"/libexec/containerd-shim-runc-v2"))
	link(os.Link(faulty, base+"/libexec/runc"))
	for _, p := range []string{"pause", "berth-logger"} {
		link(os.Symlink(module+"/build/libexec/"+p, base+"/libexec/"+p))
	}
	link(os.Symlink(module+"/build/libexec/runc", base+"/real/runc"))
	for _, p := range []string{"bridge", "portmap"} {
		link(os.Link(faulty, base+"/cni/"+p))
		link(os.Symlink(module+"/build/cni/"+p, base+"/real/"+p))
	}
	link(os.Symlink(module+"/build/cni/host-local", base+"/cni/host-local"))
	o.Libexec, o.Runc, o.CNI = base+"/libexec", base+"/libexec/runc", base+"/cni"
	n := node.Start(t, o)
	f := &faults{t: t, dir: base + "/rules"}
	t.Cleanup(func() {
		rules, _ := filepath.Glob(f.dir + "/*")
		for _, r := range rules {
			_ = os.Remove(r)
		}
	})
	return n, f
}

// both runs a test with containerd inside and outside of berth, or with one of them: see [node.Pick].
// It runs beside other tests.
func both(t *testing.T, args []string, test func(t *testing.T, n *node.Node, f *faults)) {
	t.Helper()
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		t.Parallel()
		n, f := start(t, node.Options{External: external, Args: args})
		test(t, n, f)
	})
}

// bothOrders is both, in two orders: whatever the test does to a shim is done in the berth that has made
// the pods, and in the next one. The test calls between before it does it.
func bothOrders(t *testing.T, args []string, test func(t *testing.T, n *node.Node, f *faults, between func())) {
	t.Helper()
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		t.Parallel()
		orders(t, func(t *testing.T, between func(n *node.Node)) {
			n, f := start(t, node.Options{External: external, Args: args})
			test(t, n, f, func() { between(n) })
		})
	})
}

// orders runs a test of shims in the berth that makes the pods and in the one that is started next, or
// in one of them: see [node.Pick]. PROPERTIES 50.
func orders(t *testing.T, test func(t *testing.T, between func(n *node.Node))) {
	t.Helper()
	for _, order := range node.Pick(t, "order", "shim", "berth then shim") {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			test(t, func(n *node.Node) {
				if order != "shim" {
					n.Berth.Kill(syscall.SIGTERM)
					n.StartBerth()
				}
			})
		})
	}
}

// set makes a rule: what happens at a step, and lines that limit it.
func (f *faults) set(step, action string, limits ...string) {
	f.t.Helper()
	f.clear(step)
	path := filepath.Join(f.dir, step)
	text := strings.Join(append([]string{action}, limits...), "\n") + "\n"
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		f.t.Fatal(err)
	}
}

// clear takes a rule away: what stalls goes on.
func (f *faults) clear(step string) {
	f.t.Helper()
	path := filepath.Join(f.dir, step)
	used, _ := filepath.Glob(path + ".*")
	for _, p := range append(used, path) {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			f.t.Fatal(err)
		}
	}
}

// hits are the IDs that a rule has acted on since it was set, in order.
func (f *faults) hits(step string) []string {
	f.t.Helper()
	b, err := os.ReadFile(filepath.Join(f.dir, step+".hits"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.t.Fatal(err)
	}
	var ids []string
	for line := range strings.Lines(string(b)) {
		_, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		ids = append(ids, id)
	}
	return ids
}

// seeded is a source of randomness whose seed is printed, and taken back from BERTH_SEED.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("BERTH_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("BERTH_SEED: %v", err)
		}
	}
	t.Logf("BERTH_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// times is n, multiplied by BERTH_ROUNDS.
func times(t *testing.T, n int) int {
	t.Helper()
	s := os.Getenv("BERTH_ROUNDS")
	if s == "" {
		return n
	}
	f, err := strconv.Atoi(s)
	if err != nil || f < 1 {
		t.Fatalf("BERTH_ROUNDS=%q is not a number of 1 or more", s)
	}
	return n * f
}
