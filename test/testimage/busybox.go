// SPDX-License-Identifier: Apache-2.0

package testimage

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Applets are the commands that Busybox's /bin has.
var Applets = []string{
	"[", "adduser", "ash", "awk", "base64", "basename", "cat", "chgrp", "chmod", "chown", "cp", "cut", "date", "dd",
	"df", "dirname", "dmesg", "du", "echo", "env", "expr", "false", "find", "free", "grep", "gunzip", "gzip", "head",
	"hexdump", "hostname", "httpd", "id", "ifconfig", "ip", "kill", "killall", "ln", "ls", "md5sum", "mkdir", "mkfifo",
	"mknod", "mktemp", "mount", "mv", "nc", "nslookup", "od", "pidof", "ping", "printf", "ps", "pwd", "readlink",
	"realpath", "rm", "rmdir", "route", "sed", "seq", "setsid", "sh", "sha256sum", "sleep", "sort", "stat", "stty",
	"su", "sync", "sysctl", "tail", "tar", "tee", "telnet", "test", "time", "timeout", "top", "touch", "tr", "true",
	"truncate", "tty", "umount", "uname", "uniq", "vi", "wc", "wget", "which", "whoami", "xargs", "yes",
}

// Busybox returns an image with a shell and the Applets. It runs sh as root; it also knows the
// users app (1000, in the groups app and staff (50)) and nobody (65534). The static busybox comes
// from the host's PATH; if it is missing, the error tells how to get one.
func Busybox() (v1.Image, error) {
	path, err := hostBusybox()
	if err != nil {
		return nil, err
	}
	return BusyboxOf(path, runtime.GOARCH)
}

// BusyboxOf is Busybox with the static busybox at path, for an architecture.
func BusyboxOf(path, arch string) (v1.Image, error) {
	layer, err := busyboxLayer(path)
	if err != nil {
		return nil, err
	}
	return imageFor(arch, v1.Config{
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Cmd: []string{"sh"},
	}, layer)
}

// BusyboxLayer returns the file system of Busybox, for an Image with a
// configuration or further layers of its own.
func BusyboxLayer() (v1.Layer, error) {
	path, err := hostBusybox()
	if err != nil {
		return nil, err
	}
	return busyboxLayer(path)
}

func busyboxLayer(path string) (v1.Layer, error) {
	body, err := static(path)
	if err != nil {
		return nil, fmt.Errorf("make busybox layer: %w", err)
	}
	const dir = fs.ModeDir | 0o755
	files := []File{
		{Name: "bin", Mode: dir},
		{Name: "bin/busybox", Mode: 0o755, Body: body},
	}
	for _, name := range Applets {
		files = append(files, File{Name: "bin/" + name, Mode: fs.ModeSymlink | 0o777, Target: "busybox"})
	}
	files = append(files,
		File{Name: "dev", Mode: dir},
		File{Name: "etc", Mode: dir},
		File{Name: "etc/group", Mode: 0o644, Body: []byte("root:x:0:\ntty:x:5:\nstaff:x:50:app\napp:x:1000:\nnobody:x:65534:\n")},
		File{Name: "etc/passwd", Mode: 0o644, Body: []byte("root:x:0:0:root:/root:/bin/sh\n" +
			"app:x:1000:1000:app:/home/app:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		File{Name: "home", Mode: dir},
		File{Name: "home/app", Mode: dir, UID: 1000, GID: 1000},
		File{Name: "proc", Mode: dir},
		File{Name: "root", Mode: fs.ModeDir | 0o700},
		File{Name: "sys", Mode: dir},
		File{Name: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		File{Name: "var", Mode: dir},
	)
	return Layer(files...)
}

const install = "install a static one (Debian: apt-get install busybox-static)"

// hostBusybox is the path of the host's busybox.
func hostBusybox() (string, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return "", fmt.Errorf("find busybox: %w: %s", err, install)
	}
	return path, nil
}

// static reads a program. A dynamically linked one would start nowhere in an image that has no C
// library.
func static(path string) ([]byte, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("%s is dynamically linked: %s", path, install)
		}
	}
	body, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return body, nil
}
