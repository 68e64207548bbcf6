// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A shim opens its ends of the FIFOs while it starts a process. Berth may be killed just then: the
// shim waits for the other ends with its lock held, and no call about the process returns. The
// next berth opens them, and takes what the shim still writes.
func TestAShimThatWaitsForTheFIFOsOfAKilledBerthGoesOn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c1.e1")
	p, err := openFIFOs(dir, streams{stdin: true, stdout: true, stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	p.opened()
	p.close() // berth was killed
	result := make(chan error, 1)
	go func() {
		for name, flag := range map[string]int{"stdin": os.O_RDONLY, "stdout": os.O_WRONLY, "stderr": os.O_WRONLY} {
			f, err := os.OpenFile(filepath.Join(dir, name), flag, 0)
			if err == nil && flag == os.O_WRONLY {
				_, err = f.Write(make([]byte, 1<<20)) // more than a FIFO takes
			}
			if err != nil {
				result <- err
				return
			}
			t.Cleanup(func() { _ = f.Close() })
		}
		result <- nil
	}()
	done := openForShim(dir)
	select {
	case err := <-result:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the shim still waits")
	}
	done()
	openForShim(filepath.Join(dir, "gone"))()
}

// A shim opens its end of the standard input after it has answered that the process runs. The input
// of an exec was lost when that took long.
func TestInputWaitsForAShimThatOpensItsEndLater(t *testing.T) {
	p, err := openFIFOs(filepath.Join(t.TempDir(), "p"), streams{stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.opened()
	if hasReader(p.stdin.(*os.File)) {
		t.Fatal("nobody has opened the other end")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.awaitReader(nil)
		_, err = io.WriteString(p.stdin, "hello")
		_ = p.stdin.Close()
	}()
	shim, rerr := os.Open(filepath.Join(p.dir, "stdin"))
	if rerr != nil {
		t.Fatal(rerr)
	}
	defer shim.Close()
	got, rerr := io.ReadAll(shim)
	<-done
	if string(got) != "hello" || err != nil || rerr != nil {
		t.Errorf("got %q: %v, %v", got, err, rerr)
	}
	// A process that has ended, or pipes that are closed, end the waiting.
	q, err := openFIFOs(filepath.Join(t.TempDir(), "q"), streams{stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	q.opened()
	ended := make(chan struct{})
	close(ended)
	q.awaitReader(ended)
	q.close()
	q.awaitReader(nil)
}
