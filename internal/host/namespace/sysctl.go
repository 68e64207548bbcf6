// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// SysctlPath returns the path below /proc/sys of a sysctl. The first separator of its name, a dot
// or a slash, separates all parts, and the other one stands for a dot in a part:
// net.ipv4.conf.eth0/1.rp_filter and net/ipv4/conf/eth0.1/rp_filter both name the interface eth0.1.
func SysctlPath(name string) string {
	if first := strings.IndexAny(name, "./"); first >= 0 && name[first] == '/' {
		return name
	}
	return strings.NewReplacer(".", "/", "/", ".").Replace(name)
}

// SetSysctls sets sysctls, values by names, in the namespaces of this thread: the kernel shows each
// thread those of its own. It returns once it has read back that all of them are set; the error
// names one that is not. It is called within [InThread], unless the thread is in no other
// namespace.
func SetSysctls(values map[string]string) error {
	read := map[string]string{}
	names := slices.SortedFunc(maps.Keys(values), widerFirst)
	for _, name := range names {
		got, err := setSysctl(name, values[name])
		if err != nil {
			return fmt.Errorf("set sysctl %s to %q: %w", name, values[name], err)
		}
		read[name] = got
	}
	for _, name := range names {
		now, err := readSysctl(name)
		if err == nil && now != read[name] {
			err = fmt.Errorf("it was set, and then became %q; does another sysctl of the pod set it, too?: %w", now, errdefs.ErrInvalidArgument)
		}
		if err != nil {
			return fmt.Errorf("set sysctl %s to %q: %w", name, values[name], err)
		}
	}
	return nil
}

// widerFirst sorts sysctls so that one that sets others comes before them: net.ipv4.ip_forward sets
// those of all interfaces, and so does net.ipv6.conf.all.disable_ipv6, also the default.
func widerFirst(a, b string) int {
	return cmp.Or(cmp.Compare(narrowness(a), narrowness(b)), cmp.Compare(a, b))
}

func narrowness(name string) int {
	parts := strings.Split(SysctlPath(name), "/")
	if len(parts) < 5 || parts[2] != "conf" && parts[2] != "neigh" {
		return 0
	}
	switch parts[3] {
	case "all":
		return 1
	case "default":
		return 2
	default:
		return 3
	}
}

// setSysctl sets one, and returns the value as the kernel writes it.
func setSysctl(name, value string) (string, error) {
	f, err := os.OpenFile("/proc/sys/"+SysctlPath(name), os.O_WRONLY, 0)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(value)
	if err := errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	got, err := readSysctl(name)
	if err != nil {
		return "", err
	}
	asked, is := numbers(value), numbers(got)
	// A time in milliseconds becomes a number of the kernel's ticks.
	if asked != nil && is != nil && !slices.Equal(asked, is) && !strings.HasSuffix(name, "_ms") {
		return "", fmt.Errorf("the kernel has made %q of it: %w", got, errdefs.ErrInvalidArgument)
	}
	return got, nil
}

// readSysctl returns the value as the kernel writes it; "" for one that can be written alone, such
// as net.ipv4.route.flush.
func readSysctl(name string) (string, error) {
	b, err := os.ReadFile("/proc/sys/" + SysctlPath(name))
	if errors.Is(err, fs.ErrPermission) {
		return "", nil
	}
	return strings.Join(strings.Fields(string(b)), " "), err
}

// numbers returns the numbers that a value consists of, in decimal; nil if there is something else
// in it.
func numbers(value string) (found []string) {
	for _, field := range strings.Fields(value) {
		n, ok := new(big.Int).SetString(field, 0)
		if !ok {
			return nil
		}
		found = append(found, n.String())
	}
	return found
}
