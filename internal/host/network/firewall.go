// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The kernel has two firewalls, and the host's program iptables writes into one of them. The names
// are those that iptables gives them in its version.
const (
	legacy   = "legacy"
	nfTables = "nf_tables"
)

// iptablesVersion remembers the firewall that a program iptables writes into, because asking starts
// the program. It asks again if the file in PATH is another one, or was changed.
type iptablesVersion struct {
	mu       sync.Mutex
	path     string // with its links resolved, and the file there
	file     os.FileInfo
	firewall string
}

// now returns the firewall that the program iptables in PATH writes into; "" without one.
func (v *iptablesVersion) now(ctx context.Context) (string, error) {
	name, err := exec.LookPath("iptables")
	if err != nil {
		return "", nil //nolint:nilerr // there is none, and plug-ins use nft
	}
	path, err := filepath.EvalSymlinks(name)
	if err != nil {
		return "", fmt.Errorf("look for iptables: %w", err)
	}
	file, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("look for iptables: %w", err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.path == path && os.SameFile(v.file, file) && v.file.ModTime().Equal(file.ModTime()) && v.file.Size() == file.Size() {
		return v.firewall, nil
	}
	out, err := exec.CommandContext(ctx, name, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask iptables for its version: %w", err)
	}
	v.path, v.file, v.firewall = path, file, legacy // versions before 1.8 name none
	if strings.Contains(string(out), nfTables) {
		v.firewall = nfTables
	}
	return v.firewall, nil
}

// hasLegacyTable reports whether a table of the legacy firewall exists. If not, there is no rule in
// it, and asking the program would make it.
func hasLegacyTable(name string) (bool, error) {
	b, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		// The kernel has no legacy firewall, or its module is not loaded; or this is a user without
		// root in a network that is not theirs, who has no rules there.
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return slices.Contains(strings.Fields(string(b)), name), nil
}

// programsOf makes a directory below dir in which the programs that plug-ins know as iptables write
// into a firewall, and returns its path. If the host does not have them, the error is
// exec.ErrNotFound.
func programsOf(dir, firewall string) (string, error) {
	suffix := "-nft"
	if firewall == legacy {
		suffix = "-legacy"
	}
	dir = filepath.Join(dir, "iptables"+suffix)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-save", "-restore"} {
			program, err := exec.LookPath(family + suffix + verb)
			if err != nil {
				if family+verb == "iptables" {
					return "", err
				}
				continue
			}
			link := filepath.Join(dir, family+verb)
			if at, err := os.Readlink(link); err == nil && at == program {
				continue
			}
			if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
				return "", err
			}
			if err := os.Symlink(program, link); err != nil && !errors.Is(err, os.ErrExist) {
				return "", err
			}
		}
	}
	return dir, nil
}

// firewallMark returns a text that differs if any program has changed rules of the host since. It
// asks the kernel alone, which takes microseconds and starts no program: the generation of
// nf_tables, and the number and size of the rules in the legacy tables, of whose changes the kernel
// sends no message.
func firewallMark() (string, error) {
	var mark strings.Builder
	if haveNFTables() {
		generation, err := nfGeneration()
		if err != nil {
			return "", fmt.Errorf("ask for the generation of nf_tables: %w", err)
		}
		fmt.Fprintf(&mark, "nf_tables %d ", generation)
	}
	for _, table := range []string{"nat", "raw"} {
		has, err := hasLegacyTable(table)
		if has {
			var rules, size uint32
			rules, size, err = legacySize(table)
			fmt.Fprintf(&mark, "%s %d %d ", table, rules, size)
		}
		if err != nil {
			return "", fmt.Errorf("ask for the size of the legacy table %s: %w", table, err)
		}
	}
	return mark.String(), nil
}

// haveNFTables reports whether a program is there that writes into nf_tables. If not, asking the
// kernel would load a module that this host does not use.
func haveNFTables() bool {
	_, err := exec.LookPath("iptables-nft")
	return err == nil || haveNFT()
}

// nfGeneration returns a number that the kernel increments with every transaction of nf_tables in
// this network namespace (NFT_MSG_GETGEN).
func nfGeneration() (uint32, error) {
	const newGen, getGen, generationID = 15, 16, 1
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|getGen, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	answers, err := req.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|newGen)
	if err != nil {
		return 0, err
	}
	for _, a := range answers {
		if len(a) < nl.SizeofNfgenmsg {
			continue
		}
		attributes, err := nl.ParseRouteAttr(a[nl.SizeofNfgenmsg:])
		if err != nil {
			return 0, err
		}
		for _, attribute := range attributes {
			if attribute.Attr.Type == generationID && len(attribute.Value) == 4 {
				return binary.BigEndian.Uint32(attribute.Value), nil
			}
		}
	}
	return 0, errors.New("the answer has no generation")
}

// legacySize returns how many rules an existing table of the legacy firewall has, and their size in
// bytes (IPT_SO_GET_INFO).
func legacySize(table string) (rules, size uint32, err error) {
	const getInfo = 64
	var info struct {
		name                  [32]byte
		hooks                 uint32
		entries, underflow    [5]uint32
		numEntries, sizeBytes uint32
	}
	copy(info.name[:len(info.name)-1], table)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(fd)
	length := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_IP, getInfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&length)), 0) //nolint:gosec // the kernel fills both
	if errno != 0 {
		return 0, 0, errno
	}
	return info.numEntries, info.sizeBytes, nil
}

// ruleSet are rules of the CNI project's plug-in that publishes ports, by their texts.
type ruleSet map[string]bool

// portRules returns the rules that are there now: in the table nat of iptables those of chains
// whose names begin with CNI-, and without iptables the table cni_hostport of nft.
func portRules(ctx context.Context) (ruleSet, error) {
	const table = "cni_hostport"
	cmd := exec.CommandContext(ctx, "iptables", "-w", "-t", "nat", "-S")
	withIPTables := haveIPTables()
	if !withIPTables {
		if !haveNFT() || nft(ctx, "list table ip "+table) != nil {
			return ruleSet{}, nil
		}
		cmd = exec.CommandContext(ctx, "nft", "list", "table", "ip", table)
	}
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the rules of host ports: %w", err)
	}
	rules := ruleSet{}
	for line := range strings.Lines(string(out)) {
		if text := strings.TrimSpace(line); !withIPTables || strings.Contains(text, "CNI-") {
			rules[text] = true
		}
	}
	return rules, nil
}

// podChain is the beginning of the names of the chains that iptables has for each pod.
const podChain = "CNI-DN-"

// has reports whether all rules of another set are in this one.
func (r ruleSet) has(other ruleSet) bool {
	for rule := range other {
		if !r[rule] {
			return false
		}
	}
	return true
}

// of returns the rules of a pod: those with its ID, and those of the chain to which they lead.
func (r ruleSet) of(podID string) ruleSet {
	own := ruleSet{}
	for rule := range r {
		if !strings.Contains(rule, podID) {
			continue
		}
		own[rule] = true
		for word := range strings.FieldsSeq(rule) {
			if strings.HasPrefix(word, podChain) {
				for of := range r {
					own[of] = own[of] || slices.Contains(strings.Fields(of), word)
				}
			}
		}
	}
	maps.DeleteFunc(own, func(_ string, is bool) bool { return !is })
	return own
}

// shared returns the rules that are no pod's own.
func (r ruleSet) shared() ruleSet {
	all := ruleSet{}
	for rule := range r {
		if strings.Contains(rule, "CNI-HOSTPORT-") && !strings.Contains(rule, podChain) {
			all[rule] = true
		}
	}
	return all
}
