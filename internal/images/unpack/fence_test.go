// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package unpack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Whatever a layer makes the process that unpacks it do, it opens nothing but what is below the
// directory of the layer, of its index and of its parents. It saw the whole file system.
func TestAProcessOpensNothingButItsLayer(t *testing.T) {
	if dir := os.Getenv("BERTH_TEST_FENCED"); dir != "" {
		fmt.Println(openedBehindTheFence(dir))
		return
	}
	if err := Fence(); err != nil {
		t.Fatalf("this kernel cannot show it: %v", err)
	}
	dir := t.TempDir()
	for _, name := range []string{"layer/fs/a", "layer/fs/b", "parent/file", "other/file"} {
		path := filepath.Join(dir, name)
		try(t, os.MkdirAll(filepath.Dir(path), 0o700))
		try(t, os.WriteFile(path, []byte("text"), 0o600))
	}
	try(t, os.Symlink(filepath.Join(dir, "other/file"), filepath.Join(dir, "layer/fs/link")))
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "BERTH_TEST_FENCED="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "opened: as it should be") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// openedBehindTheFence says which of what it tries behind the fence of a layer goes otherwise than
// it should.
func openedBehindTheFence(dir string) string {
	r := request{Target: Target{
		Dir:     filepath.Join(dir, "layer/fs"),
		Index:   filepath.Join(dir, "layer/berth-index"),
		Parents: []string{filepath.Join(dir, "parent")},
	}}
	if err := confine(); err != nil {
		return err.Error()
	}
	if err := r.fence(); err != nil {
		return err.Error()
	}
	read := func(name string) func() error {
		return func() error { _, err := os.ReadFile(filepath.Join(dir, name)); return err }
	}
	write := func(name string) func() error {
		return func() error { return os.WriteFile(filepath.Join(dir, name), nil, 0o600) }
	}
	var wrong []string
	for what, does := range map[string]struct {
		may bool
		do  func() error
	}{
		"write a file of the layer": {true, write("layer/fs/new")},
		"make a directory":          {true, func() error { return os.MkdirAll(filepath.Join(dir, "layer/fs/d/e"), 0o700) }},
		"link from one directory to another": {true, func() error {
			if err := os.MkdirAll(filepath.Join(dir, "layer/fs/links"), 0o700); err != nil {
				return err
			}
			return os.Link(filepath.Join(dir, "layer/fs/a"), filepath.Join(dir, "layer/fs/links/a"))
		}},
		"make a FIFO":                     {true, func() error { return syscall.Mkfifo(filepath.Join(dir, "layer/fs/fifo"), 0o600) }},
		"write the index":                 {true, write("layer/berth-index.new")},
		"rename the index":                {true, func() error { return os.Rename(filepath.Join(dir, "layer/fs/b"), filepath.Join(dir, "layer/b")) }},
		"read a parent":                   {true, read("parent/file")},
		"know its memory":                 {true, func() error { _, err := memory(os.Getpid(), "VmHWM:"); return err }},
		"write a parent":                  {false, write("parent/file")},
		"read another directory":          {false, read("other/file")},
		"write another directory":         {false, write("other/new")},
		"follow a link of the layer":      {false, read("layer/fs/link")},
		"list the host":                   {false, func() error { _, err := os.ReadDir("/"); return err }},
		"read the users of the host":      {false, func() error { _, err := os.ReadFile("/etc/passwd"); return err }},
		"read what init was started with": {false, func() error { _, err := os.ReadFile("/proc/1/cmdline"); return err }},
	} {
		if err := does.do(); (err == nil) != does.may {
			wrong = append(wrong, fmt.Sprintf("%s: %v", what, err))
		}
	}
	if len(wrong) > 0 {
		return strings.Join(wrong, "\n")
	}
	return "opened: as it should be"
}
