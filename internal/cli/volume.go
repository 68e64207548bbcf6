// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// prepare makes the volume, or sees that it is what its type says. Modes are the kubelet's.
func (v PlannedVolume) prepare() error {
	switch corev1.HostPathType(v.Type) {
	case emptyDir:
		// Whatever user a container runs as may write to it; the directory above keeps others of the host out.
		err := os.MkdirAll(filepath.Dir(v.Path), 0o700)
		if err == nil {
			err = os.MkdirAll(v.Path, 0o777)
		}
		if err == nil {
			err = os.Chmod(v.Path, 0o777) // MkdirAll heeds the umask
		}
		if err != nil {
			return fmt.Errorf("make volume %s: %w", v.Name, err)
		}
		return nil
	case corev1.HostPathDirectoryOrCreate:
		if err := os.MkdirAll(v.Path, 0o755); err != nil {
			return fmt.Errorf("make volume %s: %w", v.Name, err)
		}
	case corev1.HostPathFileOrCreate:
		f, err := os.OpenFile(v.Path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err == nil {
			err = f.Close()
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make volume %s: %w", v.Name, err)
		}
	}
	st, err := os.Stat(v.Path)
	if err != nil {
		return fmt.Errorf("volume %s: %w", v.Name, err)
	}
	is, m := true, st.Mode()
	switch corev1.HostPathType(v.Type) {
	case corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate:
		is = m.IsDir()
	case corev1.HostPathFile, corev1.HostPathFileOrCreate:
		is = m.IsRegular()
	case corev1.HostPathSocket:
		is = m&fs.ModeSocket != 0
	case corev1.HostPathCharDev:
		is = m&fs.ModeCharDevice != 0
	case corev1.HostPathBlockDev:
		is = m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0
	}
	if !is {
		return fmt.Errorf("volume %s: %s is not of type %s", v.Name, v.Path, v.Type)
	}
	return nil
}

// removeVolumes removes the emptyDir volumes of a pod. Those that have none, or whose UID is no plain word, have
// nothing there: the UID comes from whoever made the pod and must not lead elsewhere.
func removeVolumes(dir, uid string) error {
	if !plainWord.MatchString(uid) {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(dir, uid)); err != nil {
		return fmt.Errorf("remove volumes of pod %s: %w", uid, err)
	}
	return nil
}

// hostIP is this host's first address that others can reach, "" if there is none.
func hostIP() string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}

// hostDNS is this host's resolv.conf(5), nil if it has none.
func hostDNS() *runtimeapi.DNSConfig {
	f, err := os.Open("/etc/resolv.conf")
	if err != nil {
		return nil
	}
	defer f.Close()
	d := &runtimeapi.DNSConfig{}
	for in := bufio.NewScanner(f); in.Scan(); {
		w := strings.Fields(in.Text())
		switch {
		case len(w) < 2:
		case w[0] == "nameserver":
			d.Servers = append(d.Servers, w[1])
		case w[0] == "search": // the last one counts
			d.Searches = w[1:]
		case w[0] == "options":
			d.Options = append(d.Options, w[1:]...)
		}
	}
	return d
}
