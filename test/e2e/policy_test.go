// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// signature is what cosign pushes beside an image.
func signature(t *testing.T, key *ecdsa.PrivateKey, of v1.Image) (tag string, img v1.Image) {
	t.Helper()
	digest, err := of.Digest()
	if err != nil {
		t.Fatal(err)
	}
	payload := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":""},"image":{"docker-manifest-digest":"%s"},"type":"cosign container image signature"},"optional":null}`, digest)
	sum := sha256.Sum256(payload)
	signed, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
		Layer:       static.NewLayer(payload, "application/vnd.dev.cosign.simplesigning.v1+json"),
		Annotations: map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(signed)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return digest.Algorithm + "-" + digest.Hex + ".sig", img
}

// policed is a node whose images have a policy, with the registry that they come from and a pod.
type policed struct {
	*node.Node
	t    *testing.T
	dir  string
	reg  *testregistry.Registry
	away atomic.Bool // the registry does not say what is signed

	app, evil, signed string
	key               *ecdsa.PrivateKey
	vouched           v1.Image // what is signed

	rules, file string
	cfg         *runtimeapi.PodSandboxConfig
	pod         string
}

func startPoliced(t *testing.T, external bool) *policed {
	t.Helper()
	p := &policed{t: t, dir: node.TempDir(t)}
	p.reg = testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if p.away.Load() && strings.Contains(r.URL.Path, ".sig") {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			next.ServeHTTP(w, r)
		})
	}))
	busybox, err := testimage.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	p.app, p.evil = p.reg.Push("team/app:1", busybox), p.reg.Push("evil/app:1", small(t, "evil"))
	if p.vouched, err = mutate.Config(busybox, v1.Config{Env: []string{"SIGNED=yes"}}); err != nil {
		t.Fatal(err)
	}
	p.signed = p.reg.Push("signed/app:1", p.vouched)
	if p.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(p.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	keyFile := p.write("key.pub", string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})))
	p.rules = strings.NewReplacer("REGISTRY", p.reg.Addr, "KEY", keyFile).Replace(`
[[rules]]
name = "of the test"
registries = ["localhost"]
action = "allow"

[[rules]]
name = "team"
namespaces = ["default"]
repositories = ["REGISTRY/team/**"]
action = "allow"

[[rules]]
name = "signed"
namespaces = ["default"]
repositories = ["REGISTRY/signed/**"]
action = "allow"
signatures = "required"
keys = ["KEY"]

[[rules]]
name = "nobody else"
registries = ["*"]
action = "deny"
`)
	p.file = p.write("policy.toml", p.rules)
	p.Node = node.Start(t, node.Options{External: external, Args: []string{
		"--config", p.configure("closed"),
		"--metrics", "127.0.0.1:0",
		"--set", "runtimes.runc.sandbox_image=" + pauseImage(t), // which no rule allows, and berth needs
	}})
	if err := os.Chmod(p.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
	p.cfg = p.PodConfig()
	p.pod = p.Pod(p.cfg)
	return p
}

func (p *policed) write(name, text string) string {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

func (p *policed) configure(failure string) string {
	return p.write("config.toml", "[image]\npolicy_file = '"+p.file+"'\npolicy_failure = '"+failure+"'\n")
}

func (p *policed) pull(ref string, sandbox *runtimeapi.PodSandboxConfig) error {
	_, err := p.PullImage(p.t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}, SandboxConfig: sandbox})
	return err
}

// container makes a container of an image.
func (p *policed) container(name, ref string) (string, error) {
	c := node.ContainerConfig(name, "sleep", "1000")
	c.Image.Image = ref
	resp, err := p.CreateContainer(p.t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: p.pod, Config: c, SandboxConfig: p.cfg})
	return resp.GetContainerId(), err
}

// made makes a container of an image, which has to be allowed, and removes it.
func (p *policed) made(what, ref string) {
	p.t.Helper()
	id, err := p.container("made", ref)
	p.expect(what, err, codes.OK)
	if err != nil {
		return
	}
	if _, err := p.RemoveContainer(p.t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		p.t.Error(err)
	}
}

func (p *policed) expect(what string, err error, code codes.Code, words ...string) {
	p.t.Helper()
	got := status.Convert(err)
	if got.Code() != code {
		p.t.Errorf("%s: %v, want %s", what, err, code)
	}
	for _, w := range words {
		if !strings.Contains(got.Message(), w) {
			p.t.Errorf("%s: %v does not say %q", what, err, w)
		}
	}
}

// asked returns what the registry was asked about a repository: all, or what fetches.
func (p *policed) asked(repository string, fetches bool) (list []string) {
	for _, r := range p.reg.Requests() {
		if strings.Contains(r.Path, "/"+repository+"/") && (!fetches || r.Method != http.MethodHead && !strings.Contains(r.Path, ".sig")) {
			list = append(list, r.Method+" "+r.Path)
		}
	}
	return list
}

// counted expects a line in the metrics.
func (p *policed) counted(line string) {
	p.t.Helper()
	at := regexp.MustCompile(`metrics are served.*address=(\S+)`).FindStringSubmatch(p.Berth.Output())
	if at == nil {
		p.t.Fatal("no metrics are served")
	}
	resp, err := http.Get("http://" + at[1] + "/metrics") // of the test's own berth
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	if !strings.Contains(string(text), line+"\n") {
		p.t.Errorf("%s is not in the metrics:\n%s", line, bytes.Join(regexp.MustCompile(`(?m)^berth_image_policy.*$`).FindAll(text, -1), []byte("\n")))
	}
}

// PROPERTIES 40: of an image that a rule refuses no byte is fetched, whoever asks and however it
// came here nothing runs from it, and what runs is left alone. A change of the file holds at once,
// and a file that cannot be used stops pulls and creations, and neither berth nor containers.
func TestAnImageThatIsNotAllowedIsNeitherFetchedNorRun(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		p := startPoliced(t, external)
		running := p.pullsWhatIsAllowed()
		p.fetchesWhatIsSigned()
		p.runsNothingElse()
		p.followsItsFile(running)
	})
}

// pullsWhatIsAllowed returns a container that runs from it.
func (p *policed) pullsWhatIsAllowed() (running string) {
	p.t.Helper()
	p.expect("a registry that is not allowed", p.pull(p.evil, p.cfg), codes.PermissionDenied, p.evil, `rule "nobody else" of `+p.file, "namespace default")
	if got := p.asked("evil/app", false); len(got) != 0 {
		p.t.Errorf("the registry was asked about what is refused: %q", got)
	}
	p.expect("a namespace for which it is not allowed", p.pull(p.app, nil), codes.PermissionDenied, "no pod")
	p.expect("what is allowed", p.pull(p.app, p.cfg), codes.OK)
	running, err := p.container("app", p.app)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.StartContainer(p.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: running}); err != nil {
		p.t.Fatal(err)
	}
	return running
}

// fetchesWhatIsSigned leaves the registry without an answer about signatures: from then on they are
// remembered.
func (p *policed) fetchesWhatIsSigned() {
	p.t.Helper()
	err := p.pull(p.signed, p.cfg)
	p.expect("what is not signed", err, codes.Unknown, `rule "signed"`)
	if !strings.HasPrefix(status.Convert(err).Message(), "SignatureValidationFailed") {
		p.t.Errorf("the kubelet does not know it: %v", err)
	}
	p.away.Store(true)
	p.expect("a registry that does not say", p.pull(p.signed, p.cfg), codes.Unavailable, "could not be asked for")
	p.away.Store(false)
	if got := p.asked("signed/app", true); len(got) != 0 {
		p.t.Errorf("fetched of what is refused: %q", got)
	}
	tag, sig := signature(p.t, p.key, p.vouched)
	p.reg.Push("signed/app:"+tag, sig)
	p.expect("what is signed", p.pull(p.signed, p.cfg), codes.OK)
	p.away.Store(true)
	p.made("a container of what is signed", p.signed)
}

// runsNothingElse has an image imported that no rule allows, and expects that what was refused so
// far is in the timeline and counted.
func (p *policed) runsNothingElse() {
	p.t.Helper()
	busybox, err := testimage.Busybox()
	if err != nil {
		p.t.Fatal(err)
	}
	archive := filepath.Join(p.dir, "evil.tar")
	if err := testimage.WriteOCIArchive(archive, p.evil, busybox); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.Import(p.t.Context(), archive, ""); err != nil {
		p.t.Errorf("an import is root's: %v", err)
	}
	_, err = p.container("evil", p.evil)
	p.expect("a container of what came otherwise", err, codes.PermissionDenied, `rule "nobody else"`)
	line, err := p.Timeline(p.t.Context(), p.pod)
	for _, word := range []string{"image not pulled", "container not made", "nobody else"} {
		if err != nil || !strings.Contains(line, word) {
			p.t.Errorf("the timeline does not say %q: %s %v", word, line, err)
		}
	}
	p.counted(`berth_image_policy_decisions_total{at="pull",decision="refused",rule="nobody else"} 2`)
	p.counted(`berth_image_policy_decisions_total{at="pull",decision="unanswered",rule="signed"} 1`)
	p.counted(`berth_image_policy_decisions_total{at="create",decision="refused",rule="nobody else"} 1`)
	p.counted("berth_image_policy_usable 1")
}

// followsItsFile changes the file of the rules, without a restart and without a signal.
func (p *policed) followsItsFile(running string) {
	p.t.Helper()
	p.write("policy.toml", strings.Replace(p.rules, "/team/**\"]", "/team/**\", \""+p.reg.Addr+"/evil/**\"]", 1))
	p.made("what is allowed now", p.evil)
	// Half of the file, over a kill.
	p.write("policy.toml", p.rules[:len(p.rules)/2])
	p.expect("a file that is half written", p.pull(p.app, p.cfg), codes.Unavailable, "image.policy_failure is closed", p.file)
	p.Berth.Kill(syscall.SIGKILL)
	p.StartBerth()
	_, err := p.container("again", p.app)
	p.expect("a file that is half written", err, codes.Unavailable, "image.policy_failure is closed", p.file)
	p.counted("berth_image_policy_usable 0")
	st, err := p.Status(p.t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	if err != nil || !strings.Contains(st.GetInfo()["warnings"], "the image policy cannot be used") || !st.GetStatus().GetConditions()[0].GetStatus() {
		p.t.Errorf("%v %v", st, err)
	}
	cs, err := p.ContainerStatus(p.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: running})
	if err != nil || cs.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		p.t.Errorf("what ran does not run any more: %v %v", cs, err)
	}
	p.Pod(p.PodConfig()) // with a sandbox image
	p.configure("open")
	p.Berth.Signal(syscall.SIGHUP)
	p.Until("everything is let in", func() bool { return p.pull(p.evil, p.cfg) == nil })
}
