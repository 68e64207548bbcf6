// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// childOptions are those of a log whose pump is a process of its own, to be killed.
func childOptions(dir string) Options {
	return Options{
		Dir:          filepath.Join(dir, "io"),
		LogDirectory: dir,
		LogPath:      "0.log",
		Stdout:       true,
		Stderr:       true,
	}
}

// pumpForEver is that process.
func pumpForEver(dir string) {
	l, err := Open(childOptions(dir))
	if err != nil {
		panic(err)
	}
	_ = l.Run(context.Background())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// pumpFor lets a process pump for a while, and kills it.
func pumpFor(t *testing.T, dir string, d time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LOGS_TEST_DIR="+dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(d, func() { _ = cmd.Process.Kill() }).Stop()
	_ = cmd.Wait() // killed when d is over
}

// away is a container whose berth has gone: what lies in its directory, and its pipes.
func away(t *testing.T, o Options) (out, errs *os.File) {
	t.Helper()
	l, err := Create(o)
	if err != nil {
		t.Fatal(err)
	}
	out, errs = shim(t, l)
	if err := l.Started(); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	return out, errs
}

// drain is the last berth.
func drain(t *testing.T, o Options, end func()) {
	t.Helper()
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	var run sync.WaitGroup
	run.Go(func() { _ = l.Run(context.Background()) })
	end()
	<-l.Drained()
	if err := l.Remove(); err != nil {
		t.Error(err)
	}
	run.Wait()
}

func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 4))
}

// PROPERTIES 23: a container writes numbered lines and pieces of lines while the pump is killed
// again and again. Not a byte is lost, and none is logged twice.
func TestKill9LosesAndDoublesNothing(t *testing.T) {
	for _, way := range []string{"FIFOs", "logger"} {
		t.Run(way, func(t *testing.T) {
			r := seeded(t)
			dir := t.TempDir()
			o := childOptions(dir)
			if way == "logger" {
				o.LoggerProgram = logger
			}
			out, errs := away(t, o)
			want := map[string]*strings.Builder{"stdout": {}, "stderr": {}}
			var wg sync.WaitGroup
			stop := make(chan struct{})
			for name, f := range map[string]*os.File{"stdout": out, "stderr": errs} {
				wg.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						text := fmt.Sprintf("%s %d %s\n", name, i, strings.Repeat("z", i%1000))
						if i%3 == 0 {
							text = text[:len(text)-1]
						}
						want[name].WriteString(text)
						_, _ = f.WriteString(text)
					}
				})
			}
			for range 40 {
				pumpFor(t, dir, time.Duration(5+r.IntN(25))*time.Millisecond)
			}
			close(stop)
			drain(t, o, func() {
				wg.Wait()
				_, _ = out.Close(), errs.Close()
			})
			got := parse(t, o.path())
			for name, w := range want {
				equal(t, name, got[name], []byte(w.String()))
			}
			t.Logf("%d bytes through 40 kills", want["stdout"].Len()+want["stderr"].Len())
		})
	}
}

// PROPERTIES 23: the same at the end of a container: its unfinished last line is logged exactly
// once.
func TestKill9AtTheEndLogsTheUnfinishedLastLineOnce(t *testing.T) {
	r := seeded(t)
	for range 25 {
		dir := t.TempDir()
		o := childOptions(dir)
		o.LoggerProgram = logger
		out, errs := away(t, o)
		const want = "first line\nunfinished"
		_, _ = out.WriteString(want)
		_, _ = out.Close(), errs.Close()
		for range 3 {
			pumpFor(t, dir, time.Duration(r.IntN(12000))*time.Microsecond)
		}
		drain(t, o, func() {})
		equal(t, "stdout", parse(t, o.path())["stdout"], []byte(want))
	}
}
