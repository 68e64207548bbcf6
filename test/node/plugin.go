// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/engine/adopt"
	"berth/test/command"
	"berth/test/testimage"
)

// Pause is the image of the pause processes of containerd's CRI plug-in: see [Node.StartPlugin].
const Pause = "localhost/berth-test-pause:latest"

// importPause gives the node the image of the plug-in's pause processes.
func (n *Node) importPause() {
	n.t.Helper()
	program, err := os.ReadFile(n.Module + "/build/libexec/pause")
	if err != nil {
		n.t.Fatal(err)
	}
	layer, err := testimage.Layer(testimage.File{Name: "pause", Mode: 0o755, Body: program})
	if err != nil {
		n.t.Fatal(err)
	}
	img, err := testimage.Image(v1.Config{Entrypoint: []string{"/pause"}}, layer)
	if err != nil {
		n.t.Fatal(err)
	}
	path := n.Dir + "/pause.tar"
	if err := testimage.WriteOCIArchive(path, Pause, img); err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.Import(n.t.Context(), path, ""); err != nil {
		n.t.Fatal(err)
	}
}

// StartPlugin stops the berth of a node with an external containerd, and has containerd's CRI
// plug-in serve in its place: the node's client talks to that. The network of its pods is that of
// the node's bridge, and their addresses are those of [Node.Addresses], unless the node has the
// settings of a network already.
func (n *Node) StartPlugin() {
	n.t.Helper()
	n.importPause()
	if there, _ := filepath.Glob(n.Dir + "/net.d/*.conflist"); there == nil {
		n.writePluginNetwork()
	}
	n.t.Cleanup(n.sweepCache)
	n.Berth.Kill(syscall.SIGTERM)
	n.PluginOn()
}

// writePluginNetwork writes the settings of the network of the plug-in's pods.
func (n *Node) writePluginNetwork() {
	n.t.Helper()
	conflist := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [
  {"type": "bridge", "bridge": %q, "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`, n.pluginNetwork(), n.Bridge, n.Dir+"/lib/ipam", n.Subnet)
	if err := os.MkdirAll(n.Dir+"/net.d", 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(n.Dir+"/net.d/10-adopted.conflist", []byte(conflist), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// pluginNetwork is the name of the network of the plug-in's pods, which no other node has.
func (n *Node) pluginNetwork() string {
	return "adopted-" + strings.NewReplacer(".", "-", "/", "-").Replace(n.Subnet)
}

// sweepCache removes the entries of the node's pods from CNI's cache, which is the host's.
func (n *Node) sweepCache() {
	left := n.PluginNetworks()
	for _, path := range left {
		id := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), n.pluginNetwork()+"-"), "-eth0")
		_ = os.Remove(path)
		_ = os.Remove("/var/lib/cni/results/cni-loopback-" + id + "-lo")
	}
}

// Disconnect disconnects a pod of the plug-in's from the network before it is removed. The plug-in
// of containerd 1.7 keeps the network of a pod with a user namespace in memory alone, and leaks it
// if it was restarted meanwhile.
func (n *Node) Disconnect(id string) {
	n.t.Helper()
	var cached struct {
		Result struct{ Interfaces []struct{ Sandbox string } }
	}
	b, err := os.ReadFile("/var/lib/cni/results/" + n.pluginNetwork() + "-" + id + "-eth0")
	if err != nil {
		n.t.Fatal(err)
	}
	if err := json.Unmarshal(b, &cached); err != nil {
		n.t.Fatal(err)
	}
	rt := libcni.RuntimeConf{ContainerID: id, IfName: "eth0"}
	for _, i := range cached.Result.Interfaces {
		rt.NetNS = cmp.Or(rt.NetNS, i.Sandbox)
	}
	list, err := libcni.NetworkConfFromFile(n.Dir + "/net.d/10-adopted.conflist")
	if err != nil {
		n.t.Fatal(err)
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{n.Module + "/build/cni"}, "/var/lib/cni", nil)
	if err := cni.DelNetworkList(n.t.Context(), list, &rt); err != nil {
		n.t.Error(err)
	}
	_ = os.Remove("/var/lib/cni/results/cni-loopback-" + id + "-lo")
}

// SweepSocket removes the socket of a shim that was killed, where containerd is of 1.7: it has the
// sockets of all shims of this host in one directory, and leaves such a one.
func (n *Node) SweepSocket(id string) {
	n.t.Helper()
	if !n.OldContainerd() {
		return
	}
	if err := os.Remove(fmt.Sprintf("/run/containerd/s/%x", sha256.Sum256([]byte(n.external+"/k8s.io/"+id)))); err != nil {
		n.t.Error(err)
	}
}

// besideDir is the directory of the containerd that runs beside berth, and of its shim:
// BERTH_TEST_CONTAINERD, or the directory of the built ones.
func (n *Node) besideDir() string {
	return cmp.Or(os.Getenv("BERTH_TEST_CONTAINERD"), n.Module+"/build/libexec")
}

// beside starts the containerd that runs beside berth. It finds its own shim before the node's.
func (n *Node) beside(stderr *os.File, args ...string) *Process {
	n.t.Helper()
	name, args := n.inside(n.besideDir()+"/containerd", append([]string{"--config", n.Dir + "/containerd.toml"}, args...)...)
	var env []string
	if dir := os.Getenv("BERTH_TEST_CONTAINERD"); dir != "" {
		env = []string{"PATH=" + dir + ":" + n.libexec + ":" + os.Getenv("PATH")}
	}
	return n.spawn(stderr, env, nil, name, args...)
}

// OldContainerd reports whether the containerd that runs beside berth is of 1.7, whose
// configuration has another form.
func (n *Node) OldContainerd() bool {
	n.t.Helper()
	out, err := command.New(n.t, n.besideDir()+"/containerd", "--version").Output()
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.Contains(string(out), " 1.7") || strings.Contains(string(out), " v1.7")
}

// oldConfig is the configuration of a containerd 1.7.
func (n *Node) oldConfig(plugin bool) string {
	cfg := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\n", n.Dir+"/cl", n.Dir+"/c")
	if !plugin {
		cfg += "disabled_plugins = ['io.containerd.grpc.v1.cri']\n"
	}
	cfg += fmt.Sprintf("[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n", n.external, n.external+".ttrpc")
	if !plugin {
		return cfg
	}
	const cri = "[plugins.'io.containerd.grpc.v1.cri'"
	return cfg + cri + fmt.Sprintf("]\nsandbox_image = %q\nrestrict_oom_score_adj = true\nnetns_mounts_under_state_dir = true\n", Pause) +
		cri + fmt.Sprintf(".cni]\nbin_dir = %q\nconf_dir = %q\n", n.Module+"/build/cni", n.Dir+"/net.d") +
		cri + ".containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n" +
		cri + fmt.Sprintf(".containerd.runtimes.runc.options]\nBinaryName = %q\nRoot = %q\n", n.Module+"/build/libexec/runc", n.Dir+"/runc")
}

// PluginOn starts containerd again with its CRI plug-in, and connects the node's client to it.
func (n *Node) PluginOn() {
	n.t.Helper()
	runtime := "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc"
	cfg := fmt.Sprintf("version = 3\nroot = %q\nstate = %q\n", n.Dir+"/cl", n.Dir+"/c") +
		fmt.Sprintf("[plugins.'io.containerd.server.v1.grpc']\naddress = %q\n[plugins.'io.containerd.server.v1.ttrpc']\naddress = %q\n", n.external, n.external+".ttrpc") +
		fmt.Sprintf("[plugins.'io.containerd.shim.v1.manager']\nsocket_dir = %q\n", n.Dir+"/s") +
		fmt.Sprintf("[plugins.'io.containerd.nri.v1.nri']\nsocket_path = %q\nplugin_path = %q\nplugin_config_path = %q\n", n.Dir+"/nri.sock", n.Dir+"/nri", n.Dir+"/nri.d") +
		fmt.Sprintf("[plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = %q\n", Pause) +
		"[plugins.'io.containerd.cri.v1.runtime']\nrestrict_oom_score_adj = true\nnetns_mounts_under_state_dir = true\n" +
		fmt.Sprintf("[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = [%q]\nconf_dir = %q\n", n.Module+"/build/cni", n.Dir+"/net.d") +
		runtime + "]\nruntime_type = 'io.containerd.runc.v2'\nsandboxer = 'podsandbox'\n" +
		runtime + fmt.Sprintf(".options]\nBinaryName = %q\nRoot = %q\n", n.Module+"/build/libexec/runc", n.Dir+"/runc")
	if n.OldContainerd() {
		cfg = n.oldConfig(true)
	}
	n.Containerd.Kill(syscall.SIGTERM)
	if err := os.WriteFile(n.Dir+"/containerd.toml", []byte(cfg), 0o600); err != nil {
		n.t.Fatal(err)
	}
	n.Containerd = n.beside(nil)
	_ = n.Client.Close()
	n.Client = Dial(n.t, n.external)
	n.Until("containerd's CRI plug-in is ready", func() bool {
		st, err := n.RuntimeServiceClient.Status(n.t.Context(), &runtimeapi.StatusRequest{})
		ready := 0
		for _, c := range st.GetStatus().GetConditions() {
			if c.GetStatus() {
				ready++
			}
		}
		return err == nil && ready >= 2
	})
}

// PluginOff restarts containerd without its CRI plug-in. down is called while it is away.
func (n *Node) PluginOff(down func()) {
	n.t.Helper()
	n.Containerd.Kill(syscall.SIGTERM)
	down()
	n.StartContainerd()
}

// Adopt runs `berth adopt` on the node, and returns its output and its exit code.
func (n *Node) Adopt(args ...string) (out string, code int) {
	n.t.Helper()
	p := n.SpawnAdopt(args...)
	select {
	case <-p.done:
	case <-time.After(2 * time.Minute):
		p.Kill(syscall.SIGKILL)
		n.t.Errorf("berth adopt did not end")
	}
	return p.Output(), p.cmd.ProcessState.ExitCode()
}

// SpawnAdopt starts `berth adopt` on the node.
func (n *Node) SpawnAdopt(args ...string) *Process {
	n.t.Helper()
	keys := map[string]string{"--root": "root", "--state": "state", "--address": "address", "--libexec": "libexec", "--containerd": "containerd.address", "--cni-conf-dir": "network.conf_dir"}
	all := []string{"adopt", "--cni-cache", "/var/lib/cni"}
	for i := 1; i+1 < len(n.args); i += 2 {
		flag, value := n.args[i], n.args[i+1]
		if key := keys[flag]; key != "" {
			flag, value = "--set", key+"="+value
		}
		all = append(all, flag, value)
	}
	return n.SpawnInside(cmp.Or(n.Program, n.Module+"/build/bin/berth"), append(all, args...)...)
}

// Step is the function behind a command that is given to `berth adopt` as --Name.
type Step struct {
	Name string
	Do   func()
}

// AdoptWith runs `berth adopt`, carries out its commands, in their order, and returns its output.
// It fails the test unless all succeeds.
func (n *Node) AdoptWith(args []string, steps ...Step) string {
	n.t.Helper()
	p, done := n.adoptSteps(args, steps)
	done()
	if code := p.Wait(); code != 0 {
		n.t.Fatalf("berth adopt ended with %d:\n%s", code, p.Output())
	}
	return p.Output()
}

// AdoptCutOff is AdoptWith, but that `berth adopt` is killed while its last command runs.
func (n *Node) AdoptCutOff(args []string, steps ...Step) {
	n.t.Helper()
	p, done := n.adoptSteps(args, steps)
	p.Signal(syscall.SIGKILL)
	done()
	p.Wait()
}

// adoptSteps runs `berth adopt` and carries out its commands. The last of them goes on once done is
// called.
func (n *Node) adoptSteps(args []string, steps []Step) (p *Process, done func()) {
	n.t.Helper()
	dir, err := os.MkdirTemp(n.Dir, "adopt")
	if err != nil {
		n.t.Fatal(err)
	}
	for _, s := range steps {
		args = append(args, "--"+s.Name, fmt.Sprintf("touch %[1]s/%[2]s; until [ -e %[1]s/%[2]s.done ]; do sleep 0.01; done", dir, s.Name))
	}
	p = n.SpawnAdopt(args...)
	done = func() {}
	for _, s := range steps {
		done()
		n.Until("--"+s.Name+" is run", func() bool {
			if p.Over() {
				n.t.Fatalf("berth adopt ended with %d:\n%s", p.Wait(), p.Output())
			}
			_, err := os.Stat(dir + "/" + s.Name)
			return err == nil
		})
		s.Do()
		done = func() {
			if err := os.WriteFile(dir+"/"+s.Name+".done", nil, 0o600); err != nil {
				n.t.Fatal(err)
			}
		}
	}
	return p, done
}

// Numbered expects in the text of a log lines of 999 digits with all numbers from 0 on, and returns
// how many there are. At the one line about the change of the runtime, at most 48 KiB may be
// missing, and the lines at its sides may be torn.
func Numbered(t testing.TB, text string) (lines int) {
	t.Helper()
	next, gap, said := 0, false, 0
	for line := range strings.Lines(text) {
		line, whole := strings.CutSuffix(line, "\n")
		if !whole {
			break // it is being written
		}
		lines++
		if strings.HasSuffix(line, adopt.LogLine) {
			gap = true
			said++
			continue
		}
		if len(line) < 999 && gap {
			continue // the end of a line whose beginning is lost
		}
		n, err := strconv.Atoi(cmp.Or(strings.TrimLeft(line, "0"), "0"))
		if err != nil || len(line) != 999 {
			t.Fatalf("line %d, after number %d, has %d bytes, and ends with %q", lines, next-1, len(line), line[max(0, len(line)-200):])
		}
		if n != next && (!gap || n < next || (n-next-1)*1000 > 48<<10) {
			t.Errorf("lines %d to %d are missing before line %d, and nothing says so, or it is too much", next, n-1, lines)
		}
		if n != next {
			t.Logf("lines %d to %d are lost, which the log says", next, n-1)
		}
		next, gap = n+1, false
	}
	if said != 1 {
		t.Errorf("%d lines say that the runtime has changed", said)
	}
	return lines
}

// PluginNetworks lists CNI's results of the pods that the plug-in has connected. One goes when its
// pod is disconnected.
func (n *Node) PluginNetworks() []string {
	results, _ := filepath.Glob("/var/lib/cni/results/" + n.pluginNetwork() + "-*-eth0")
	return results
}

// PluginLeft lists the files of pods and containers in the plug-in's directories and CNI's cache.
func (n *Node) PluginLeft(ids ...string) (left []string) {
	for _, pattern := range []string{"cl/io.containerd.grpc.v1.cri/*/*", "c/io.containerd.grpc.v1.cri/*/*"} {
		found, _ := filepath.Glob(filepath.Join(n.Dir, pattern))
		left = append(left, found...)
	}
	cached, _ := filepath.Glob("/var/lib/cni/results/*")
	for _, path := range cached {
		for _, id := range ids {
			if strings.Contains(path, id) {
				left = append(left, path)
			}
		}
	}
	return left
}

// Over reports whether a process has ended.
func (p *Process) Over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Done is closed when a process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }
