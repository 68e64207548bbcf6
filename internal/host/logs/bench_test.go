// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A container of the benchmarks writes lines of lineLength bytes, linesAtOnce in an operation.
const (
	lineLength  = 98
	linesAtOnce = 64 << 20 / lineLength
)

// benchLine is one of them.
var benchLine = []byte(strings.Repeat("x", lineLength-1) + "\n")

// writeLines is a process that writes lines to stdout: "COUNT BYTES", so many bytes with each call.
func writeLines(writes string) {
	var count, size int
	if _, err := fmt.Sscan(writes, &count, &size); err != nil {
		panic(err)
	}
	block := bytes.Repeat(benchLine, size/lineLength+2)
	for left, at := count*lineLength, 0; left > 0; {
		n, err := os.Stdout.Write(block[at : at+min(size, left)])
		if err != nil {
			panic(err)
		}
		left -= n
		at = (at + n) % lineLength
	}
}

// BenchmarkPump measures the way from a process that writes lines to the log: how long it takes, and
// the processor time of berth, and that of the writer beside it. The spool is in memory, as below /run,
// and the log is on the disk that has the temporary directories.
func BenchmarkPump(b *testing.B) {
	for _, stdout := range []string{"FIFO", "logger"} {
		for _, size := range []int{lineLength, 4096, 65536} {
			b.Run(fmt.Sprintf("%s/write=%d", stdout, size), func(b *testing.B) { benchmarkPump(b, stdout == "logger", size) })
		}
	}
}

func benchmarkPump(b *testing.B, direct bool, size int) {
	memory, err := os.MkdirTemp("/dev/shm", "logs")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(memory)
	o := childOptions(memory)
	o.LogDirectory = b.TempDir()
	if direct {
		o.LoggerProgram = logger
	}
	l, err := Create(o)
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.Run(context.Background()) })
	out, errs := shim(b, l)
	_ = errs.Close()
	if err := l.Started(); err != nil {
		b.Fatal(err)
	}
	writer := exec.Command(os.Args[0])
	writer.Env = append(os.Environ(), "LOGS_TEST_WRITES="+strconv.Itoa(b.N*linesAtOnce)+" "+strconv.Itoa(size))
	writer.Stdout, writer.Stderr = out, os.Stderr
	b.SetBytes(linesAtOnce * lineLength)
	before := processorTime(b)
	b.ResetTimer()
	if err := writer.Start(); err != nil {
		b.Fatal(err)
	}
	_ = out.Close()
	err = writer.Wait()
	<-l.Drained()
	b.StopTimer()
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
	if err != nil {
		b.Error(err)
	}
	state := writer.ProcessState
	b.ReportMetric(float64(state.UserTime()+state.SystemTime())/float64(b.N), "writer-cpu-ns/op")
	_ = l.Remove()
	wg.Wait()
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkFormat measures what is done to each line.
func BenchmarkFormat(b *testing.B) {
	text := bytes.Repeat(benchLine, chunk/lineLength)
	var lines []byte
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		lines, _, _ = format(lines[:0], text, "stdout", DefaultMaxLine, false, time.Now())
	}
}
