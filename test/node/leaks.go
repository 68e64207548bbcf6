// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"crypto/sha512"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	sandboxapi "github.com/containerd/containerd/api/services/sandbox/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/vishvananda/netlink"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/test/command"
)

// patience is how long a process that ends by itself, such as a shim, may take to end.
const patience = 10 * time.Second

// remains are names of files below Node.Dir that exist only while something is held.
var remains = []string{
	"netns/*", "run/pins/*", "run/io/*", "run/sandboxes/*", "run/volumes/*", "run/cadvisor/*", "run/streams/*", "lib/volumes/*", // berth's
	"lib/cni/results/*", "lib/ipam/*/[0-9]*", // CNI's results, host-local's addresses
	"run/containerd/io.containerd.runtime.v2.task/k8s.io/*", "c/io.containerd.runtime.v2.task/k8s.io/*", // bundles
	"run/containerd/io.containerd.sandbox.controller.v1.shim/k8s.io/*", "c/io.containerd.sandbox.controller.v1.shim/k8s.io/*",
	"run/runc/*/*", "runc/*/*", // the OCI runtime's records
}

// leaks fails the test for everything that is left of the node once it is stopped: PROPERTIES 6.
func (n *Node) leaks() {
	n.t.Helper()
	n.seen.close()
	look := wait
	if n.hung.Load() { // of a node that was ended, nothing goes away by itself
		look = func(left func() []string) []string { return left() }
	}
	if left := look(n.left); len(left) > 0 {
		n.t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
		n.sweep()
	}
	for _, g := range n.cgroups("") {
		_ = os.Remove(g)
	}
}

// contradictions fails the test if two witnesses of an end have measured different codes, other
// than the kernel's of a process and of its first thread: PROPERTIES 49.
func (n *Node) contradictions() {
	n.t.Helper()
	for _, p := range n.berths {
		for line := range strings.Lines(p.Output()) {
			if strings.Contains(line, "exit codes differ") {
				n.t.Errorf("a witness is wrong: %s", line)
			}
		}
	}
}

// left lists the leaks on the host.
func (n *Node) left() []string {
	return slices.Concat(n.leftProcesses(), n.leftMounts(), n.leftFiles(), n.leftCgroups(), n.leftLinks(), n.leftRules(n.seen.all()))
}

// NoLeaks fails the test for everything that is left of pods that were removed, while the node goes
// on.
func (n *Node) NoLeaks(ctx context.Context) {
	n.t.Helper()
	n.leaksInContainerd(ctx)
	own := []string{fmt.Sprintf("process %d ", n.Berth.Pid())}
	if n.Containerd != nil {
		own = append(own, fmt.Sprintf("process %d ", n.Containerd.Pid()))
	}
	left := wait(func() []string {
		return slices.DeleteFunc(n.left(), func(l string) bool {
			return slices.ContainsFunc(own, func(p string) bool { return strings.HasPrefix(l, p) })
		})
	})
	if len(left) > 0 {
		n.t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// wait looks until nothing is left, for as long as patience at most.
func wait(look func() []string) []string {
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		left := look()
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}

func (n *Node) eachOwn(f func(pid int, cmdline []byte)) {
	eachProcess(func(pid int, b []byte) {
		own := bytes.Contains(b, []byte(n.Dir+"/"))
		for _, link := range []string{"cwd", "root", "exe"} {
			to, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, link))
			own = own || err == nil && strings.HasPrefix(to, n.Dir+"/")
		}
		if own {
			f(pid, b)
		}
	})
}

func (n *Node) leftProcesses() (left []string) {
	n.eachOwn(func(pid int, b []byte) {
		left = append(left, fmt.Sprintf("process %d %s%s", pid, bytes.ReplaceAll(b, []byte{0}, []byte(" ")), waiting(pid)))
	})
	return left
}

// waiting returns in which functions of the kernel the threads of a process wait.
func waiting(pid int) string {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
	var in []string
	for _, t := range tasks {
		if b, err := os.ReadFile(t); err == nil {
			in = append(in, string(b))
		}
	}
	slices.Sort(in)
	return fmt.Sprintf("(in %s)", strings.Join(slices.Compact(in), ", "))
}

func (n *Node) mounts() (left []string) {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, n.Dir+"/") { // as the place, or as the source of a mount elsewhere
			left = append(left, strings.Fields(line)[4])
		}
	}
	return left
}

func (n *Node) leftMounts() (left []string) {
	for _, m := range n.mounts() {
		left = append(left, "mount "+m)
	}
	return left
}

func (n *Node) leftFiles() (left []string) {
	for _, pattern := range remains {
		found, _ := filepath.Glob(filepath.Join(n.Dir, pattern))
		for _, f := range found {
			// A bundle that containerd was killed while deleting stays as .ID, empty of everything
			// that runs.
			if !strings.HasPrefix(filepath.Base(f), ".") {
				left = append(left, f)
			}
		}
	}
	return left
}

// cgroups are the directories below the pods' cgroup parent, in each hierarchy; for "", those of
// the parent itself.
func (n *Node) cgroups(below string) []string {
	var found []string
	for _, hierarchy := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		dirs, _ := filepath.Glob(hierarchy + n.Cgroup + below)
		for _, d := range dirs {
			if st, err := os.Stat(d); err == nil && st.IsDir() {
				found = append(found, d)
			}
		}
	}
	return found
}

func (n *Node) leftCgroups() (left []string) {
	for _, g := range n.cgroups("/*") {
		procs, _ := os.ReadFile(g + "/cgroup.procs")
		left = append(left, fmt.Sprintf("cgroup %s with processes %v", g, strings.Fields(string(procs))))
	}
	return left
}

// leftLinks are interfaces on the node's bridge: the host's ends of pods' pairs.
func (n *Node) leftLinks() (left []string) {
	bridge, err := netlink.LinkByName(n.Bridge)
	if err != nil {
		return nil // no pod had a network
	}
	links, err := netlink.LinkList()
	if err != nil {
		return []string{fmt.Sprint("links cannot be listed: ", err)}
	}
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge.Attrs().Index {
			left = append(left, "link "+l.Attrs().Name)
		}
	}
	return left
}

// rule is a rule or a chain in the host's tables that belongs to a pod.
type rule struct{ table, line string }

// chain is the chain's name when the rule declares one, else "".
func (r rule) chain() string {
	name, ok := strings.CutPrefix(strings.Fields(r.line)[0], ":")
	if !ok {
		return ""
	}
	return name
}

// rules are the rules that name one of the pods, or an address of theirs.
func (n *Node) rules(ids map[string]bool) (found []rule, err error) {
	marks := []string{strings.TrimSuffix(n.Subnet, "0/24")}
	for id := range ids {
		marks = append(marks, id)
		// chains that the bridge and portmap plug-ins make
		for _, prefix := range []string{"CNI-", "CNI-DN-", "CNI-SN-"} {
			const most = 28 // characters of a chain's name
			marks = append(marks, fmt.Sprintf("%s%x", prefix, sha512.Sum512([]byte("berth"+id)))[:most])
		}
	}
	out, err := command.New(n.t, "iptables-save").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("iptables-save: %w: %s", err, out)
	}
	table := ""
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if t, ok := strings.CutPrefix(line, "*"); ok {
			table = t
		}
		// The rules of a bridge stay with it. A test that was killed may have left a bridge of the same
		// network.
		if strings.Contains(line, n.Bridge) || strings.Contains(line, "berth: pods of ") {
			continue
		}
		if slices.ContainsFunc(marks, func(m string) bool { return strings.Contains(line, m) }) {
			found = append(found, rule{table, line})
		}
	}
	return found, nil
}

func (n *Node) leftRules(ids map[string]bool) (left []string) {
	found, err := n.rules(ids)
	if err != nil {
		return []string{err.Error()}
	}
	for _, r := range found {
		left = append(left, "rule "+r.line)
	}
	return left
}

// sweepRules removes the rules first, then the chains, which nothing refers to any more.
func (n *Node) sweepRules() {
	found, _ := n.rules(n.seen.all())
	for _, change := range []func(rule) string{
		func(r rule) string {
			if r.chain() != "" {
				return ""
			}
			return strings.Replace(r.line, "-A ", "-D ", 1)
		},
		func(r rule) string {
			if r.chain() == "" {
				return ""
			}
			return "-F " + r.chain() + "\n-X " + r.chain()
		},
	} {
		for _, r := range found {
			if c := change(r); c != "" {
				cmd := command.New(n.t, "iptables-restore", "--noflush")
				cmd.Stdin = strings.NewReader("*" + r.table + "\n" + c + "\nCOMMIT\n")
				_ = cmd.Run()
			}
		}
	}
}

// sweep removes the leaks, so that they do not disturb other tests.
func (n *Node) sweep() {
	n.sweepRules()
	kill := func(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) }
	n.eachOwn(func(pid int, _ []byte) { kill(pid) })
	for _, g := range n.cgroups("/*") {
		b, _ := os.ReadFile(g + "/cgroup.procs")
		for f := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 1 {
				kill(pid)
			}
		}
	}
	for _, m := range n.mounts() {
		_ = syscall.Unmount(m, syscall.MNT_DETACH)
	}
	for range 100 {
		for _, g := range n.cgroups("/*") {
			_ = os.Remove(g)
		}
		if len(n.cgroups("/*")) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// leaksInContainerd fails the test if containerd and berth still list anything after all pods were
// removed.
func (n *Node) leaksInContainerd(ctx context.Context) {
	n.t.Helper()
	ctx, conn, err := n.dialContainerd(ctx)
	if err != nil {
		n.t.Error(err)
		return
	}
	defer conn.Close()
	if left := wait(func() []string { return append(n.known(ctx), inContainerd(ctx, conn)...) }); len(left) > 0 {
		n.t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// Empty reports whether neither berth nor its containerd knows of any pod, made or being made.
func (n *Node) Empty(ctx context.Context) bool {
	n.t.Helper()
	ctx, conn, err := n.dialContainerd(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	return len(n.known(ctx)) == 0 && len(inContainerd(ctx, conn)) == 0
}

// dialContainerd connects to the node's containerd, wherever it runs. The context names berth's
// namespace.
func (n *Node) dialContainerd(ctx context.Context) (context.Context, *grpc.ClientConn, error) {
	socket := n.external
	if socket == "" {
		socket = n.Dir + "/run/containerd/containerd.sock"
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io"), conn, err
}

// known lists the objects that berth itself still has.
func (n *Node) known(ctx context.Context) (left []string) {
	pods, err := n.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		left = append(left, fmt.Sprint("pods cannot be listed: ", err))
	}
	for _, p := range pods.GetItems() {
		left = append(left, "pod "+p.GetId())
	}
	cs, err := n.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		left = append(left, fmt.Sprint("containers cannot be listed: ", err))
	}
	for _, c := range cs.GetContainers() {
		left = append(left, "container "+c.GetId())
	}
	lanes, err := n.Client.Node.Lanes(ctx, &berthv1.LanesRequest{})
	if err != nil {
		left = append(left, fmt.Sprint("lanes cannot be listed: ", err))
	}
	for _, l := range lanes.GetLanes() {
		left = append(left, fmt.Sprint("lane ", l))
	}
	return left
}

// inContainerd lists containerd's objects in berth's namespace, images and their layers left out.
func inContainerd(ctx context.Context, conn grpc.ClientConnInterface) (left []string) {
	add := func(kind, id string) { left = append(left, "containerd's "+kind+" "+id) }
	failed := func(kind string, err error) { add(kind, fmt.Sprint("cannot be listed: ", err)) }
	if r, err := containersapi.NewContainersClient(conn).List(ctx, &containersapi.ListContainersRequest{}); err != nil {
		failed("containers", err)
	} else {
		for _, c := range r.GetContainers() {
			add("container", c.GetID())
		}
	}
	if r, err := tasksapi.NewTasksClient(conn).List(ctx, &tasksapi.ListTasksRequest{}); err != nil {
		failed("tasks", err)
	} else {
		for _, t := range r.GetTasks() {
			add("task", t.GetID())
		}
	}
	if r, err := sandboxapi.NewStoreClient(conn).List(ctx, &sandboxapi.StoreListRequest{}); err != nil {
		failed("sandboxes", err)
	} else {
		for _, s := range r.GetList() {
			add("sandbox", s.GetSandboxID())
		}
	}
	if r, err := leasesapi.NewLeasesClient(conn).List(ctx, &leasesapi.ListRequest{}); err != nil {
		failed("leases", err)
	} else {
		for _, l := range r.GetLeases() {
			add("lease", fmt.Sprint(l.GetID(), l.GetLabels()))
		}
	}
	stream, err := snapshotsapi.NewSnapshotsClient(conn).List(ctx, &snapshotsapi.ListSnapshotsRequest{Snapshotter: "overlayfs"})
	for err == nil {
		var r *snapshotsapi.ListSnapshotsResponse
		if r, err = stream.Recv(); err != nil {
			break
		}
		for _, s := range r.GetInfo() {
			if s.GetKind() != snapshotsapi.Kind_COMMITTED {
				add("snapshot", s.GetName())
			}
		}
	}
	if err.Error() != "EOF" {
		failed("snapshots", err)
	}
	return left
}
