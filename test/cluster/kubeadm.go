// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"berth/test/command"
	"berth/test/node"
	"berth/test/testimage"
)

const (
	// token is that with which nodes join.
	token = "abcdef.0123456789abcdef"
	// ignored is the check of kubeadm that a host with cgroup v1 does not pass.
	ignored = "SystemVerification"
)

// startKubeadm is start with kubeadm init and join, as a person does it, instead of by hand.
func startKubeadm(t *testing.T, nodes int) *cluster {
	t.Helper()
	c := newCluster(t, nodes)
	for i, h := range c.lan.Hosts {
		c.addNode(i, h, false)
	}
	c.route()
	c.importImages()
	c.importPause()
	first := c.members[0]
	first.kubeadm("init")
	etc := node.Private(first.Node.Dir+"/private", "/etc")
	c.admin = etc + "/kubernetes/admin.conf"
	c.connect(clientOf(t, c.admin))
	ca, err := os.ReadFile(etc + "/kubernetes/pki/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(ca)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	hash := fmt.Sprintf("sha256:%x", sha256.Sum256(cert.RawSubjectPublicKeyInfo))
	for _, m := range c.members[1:] {
		m.kubeadm("join", "@HASH@", hash)
	}
	c.joined()
	return c
}

// importPause gives each node the image of a pause process, which kubeadm wants to see, though
// berth brings its own. It is one of busybox.
func (c *cluster) importPause() {
	c.t.Helper()
	out, err := command.New(c.t, c.module+"/build/bin/kubeadm", "config", "images", "list", "--kubernetes-version", version(), "--image-repository", strings.TrimSuffix(repository, "/")).Output()
	if err != nil {
		c.t.Fatalf("kubeadm config images list: %v", err)
	}
	name := regexp.MustCompile(repository + `pause:\S+`).FindString(string(out))
	if name == "" {
		c.t.Fatalf("kubeadm wants no pause image, but %s", out)
	}
	img, err := testimage.Busybox()
	if err != nil {
		c.t.Fatal(err)
	}
	path := c.dir + "/pause.tar"
	if err := testimage.WriteOCIArchive(path, name, img); err != nil {
		c.t.Fatal(err)
	}
	for _, m := range c.members {
		_, err := m.Import(c.t.Context(), path, "")
		m.check(err)
	}
}

// kubeadm runs kubeadm init or join. If systemd would start the kubelet, because there are settings
// for it, the test does.
func (m *member) kubeadm(verb string, settings ...string) {
	m.c.t.Helper()
	file := m.dir + "/" + verb + ".yaml"
	text := m.text("kubeadm/"+verb, append(settings, "@TOKEN@", token, "@REPOSITORY@", strings.TrimSuffix(repository, "/"))...)
	m.check(os.WriteFile(file, []byte(text), 0o600))
	p := m.SpawnInside("env", "PATH="+m.programs(), "kubeadm", verb, "--config", file, "--ignore-preflight-errors", ignored, "--v", "1")
	ended := make(chan int, 1)
	go func() { ended <- p.Wait() }()
	lib := node.Private(m.Node.Dir+"/private", "/var/lib") + "/kubelet"
	begin := time.Now()
	for {
		select {
		case code := <-ended:
			if code != 0 {
				m.explain()
				m.c.t.Fatalf("kubeadm %s on %s ended with %d:\n%s", verb, m.name, code, p.Output())
			}
			m.c.t.Logf("kubeadm %s on %s took %s, and warned: %q", verb, m.name, time.Since(begin).Round(time.Second), warning.FindAllString(p.Output(), -1))
			return
		case <-time.After(50 * time.Millisecond):
		}
		flags, err := os.ReadFile(lib + "/kubeadm-flags.env")
		if _, late := os.Stat(lib + "/config.yaml"); err != nil || late != nil || m.kubelet != nil {
			continue
		}
		found := regexp.MustCompile(`KUBELET_KUBEADM_ARGS="(.*)"`).FindSubmatch(flags)
		if found == nil {
			continue
		}
		m.args = append([]string{"--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf", "--kubeconfig=/etc/kubernetes/kubelet.conf", "--config=/var/lib/kubelet/config.yaml"},
			strings.Fields(string(found[1]))...)
		m.startKubelet()
	}
}

// warning is a line of kubeadm about a check.
var warning = regexp.MustCompile(`(?m)\[WARNING .*$`)

// programs is a directory with only the programs that kubeadm calls, because it must not find a
// systemctl, with which it would stop and start the kubelet of this host.
func (m *member) programs() string {
	m.c.t.Helper()
	dir := m.dir + "/bin"
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	m.check(os.Mkdir(dir, 0o755))
	for _, name := range []string{"kubeadm", "kubelet"} {
		m.check(os.Symlink(m.Module+"/build/bin/"+name, dir+"/"+name))
	}
	for _, name := range []string{"conntrack", "cp", "crictl", "ethtool", "ip", "iptables", "losetup", "mount", "nsenter", "socat", "tc", "touch", "umount"} {
		if path, err := exec.LookPath(name); err == nil {
			m.check(os.Symlink(path, dir+"/"+name))
		}
	}
	return dir
}

// clientOf is the TLS configuration in a kubeconfig.
func clientOf(t *testing.T, path string) *tls.Config {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var cfg struct {
		Clusters []struct {
			Cluster struct {
				Authority []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(b, &cfg); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cfg.Users[0].User.Cert, cfg.Users[0].User.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cfg.Clusters[0].Cluster.Authority)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}
