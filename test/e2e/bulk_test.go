// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/client"
	"berth/test/node"
)

// What a container writes in bulk: a file of lines that differ, again and again, with a number
// before each time. Together that is one GiB.
const (
	bulkBlocks = 64
	bulkLines  = 1 << 11
	bulkLine   = 8 << 10 // with its newline
	bulkScript = "i=0; while [ $i -lt 64 ]; do echo block $i; cat /bulk; i=$((i+1)); done"
)

// bulk is a container config which has the file, and the digest and length of what bulkScript
// writes.
func bulk(t *testing.T, n *node.Node, command ...string) (c *runtimeapi.ContainerConfig, digest string, length int64) {
	t.Helper()
	var block bytes.Buffer
	random := rand.NewChaCha8([32]byte{})
	raw := make([]byte, base64.RawStdEncoding.DecodedLen(bulkLine-1))
	for range bulkLines {
		_, _ = random.Read(raw)
		block.WriteString(base64.RawStdEncoding.EncodeToString(raw) + "\n")
	}
	path := filepath.Join(n.Dir, "bulk")
	if err := os.WriteFile(path, block.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	for i := range bulkBlocks {
		_, _ = fmt.Fprintf(sum, "block %d\n", i)
		_, _ = sum.Write(block.Bytes())
		length += int64(len(fmt.Sprintf("block %d\n", i)) + block.Len())
	}
	c = node.ContainerConfig("c", command...)
	c.Mounts = []*runtimeapi.Mount{{HostPath: path, ContainerPath: "/bulk", Readonly: true}}
	return c, digestOf(sum), length
}

func digestOf(h hash.Hash) string { return fmt.Sprintf("%x", h.Sum(nil)) }

// One GiB through exec over SPDY, as kubectl uses it, arrives whole.
func TestAGibibyteThroughExecArrivesWhole(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	c, want, length := bulk(t, n, "sleep", "1000")
	id := n.Run(n.Pod(cfg), cfg, c)
	conn := client.SPDY(t, execURL(t, n, &runtimeapi.ExecRequest{
		ContainerId: id,
		Cmd:         []string{"sh", "-c", bulkScript},
		Stdout:      true,
	}), "v4.channel.k8s.io")
	problem, err := conn.CreateStream(http.Header{"Streamtype": {"error"}})
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := conn.CreateStream(http.Header{"Streamtype": {"stdout"}})
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	got, err := io.Copy(sum, stdout)
	if err != nil || got != length || digestOf(sum) != want {
		t.Errorf("got %d bytes of %d: %v", got, length, err)
	}
	if status, _ := io.ReadAll(problem); !bytes.Contains(status, []byte(`"Success"`)) {
		t.Errorf("it ended with %s", status)
	}
}

// PROPERTIES 23: one GiB through a log arrives whole.
func TestAGibibyteThroughALogArrivesWhole(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	c, want, length := bulk(t, n, "sh", "-c", bulkScript)
	id := n.Run(n.Pod(cfg), cfg, c)
	node.ExpectExit(t, n.Ended(id), 0, "Completed")
	f, err := os.Open(n.Container(id).GetLogPath())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	var got int64
	lines := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := lines.ReadSlice('\n')
		if err == io.EOF && len(line) == 0 {
			break
		}
		parts := bytes.SplitN(line, []byte(" "), 4) // a time, the stream, whole or part, the text
		if err != nil || len(parts) != 4 || string(parts[1]) != "stdout" {
			t.Fatalf("a line is %.100q: %v", line, err)
		}
		text := parts[3]
		if string(parts[2]) == "P" {
			text = text[:len(text)-1]
		}
		_, _ = sum.Write(text)
		got += int64(len(text))
	}
	if got != length || digestOf(sum) != want {
		t.Errorf("got %d bytes of %d", got, length)
	}
}
