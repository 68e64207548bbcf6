// SPDX-License-Identifier: Apache-2.0

package e2e

import (
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

// PROPERTIES 40: of an image that a rule refuses no byte is fetched, whoever asks and however it came
// here nothing runs from it, and what runs is left alone. A change of the file holds at once, and a
// file that cannot be used stops pulls and creations, and neither berth nor containers.
func TestAnImageThatIsNotAllowedIsNeitherFetchedNorRun(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		dir := node.TempDir(t)
		var away atomic.Bool
		reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if away.Load() && strings.Contains(r.URL.Path, ".sig") {
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
		app, evil := reg.Push("team/app:1", busybox), reg.Push("evil/app:1", small(t, "evil"))
		vouched, err := mutate.Config(busybox, v1.Config{Env: []string{"SIGNED=yes"}})
		if err != nil {
			t.Fatal(err)
		}
		signed := reg.Push("signed/app:1", vouched)
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		public, err := x509.MarshalPKIXPublicKey(key.Public())
		if err != nil {
			t.Fatal(err)
		}
		write := func(name, text string) string {
			t.Helper()
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}
		keyFile := write("key.pub", string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})))
		rules := `
[[rules]]
name = "of the test"
registries = ["localhost"]
action = "allow"

[[rules]]
name = "team"
namespaces = ["default"]
repositories = ["` + reg.Addr + `/team/**"]
action = "allow"

[[rules]]
name = "signed"
namespaces = ["default"]
repositories = ["` + reg.Addr + `/signed/**"]
action = "allow"
signatures = "required"
keys = ["` + keyFile + `"]

[[rules]]
name = "nobody else"
registries = ["*"]
action = "deny"
`
		file := write("policy.toml", rules)
		configure := func(failure string) string {
			return write("config.toml", "[image]\npolicy_file = '"+file+"'\npolicy_failure = '"+failure+"'\n")
		}
		n := node.Start(t, node.Options{External: external, Args: []string{
			"--config", configure("closed"),
			"--metrics", "127.0.0.1:0",
			"--set", "runtimes.runc.sandbox_image=" + pauseImage(t), // which no rule allows, and berth needs
		}})
		if err := os.Chmod(n.Dir, 0o711); err != nil {
			t.Fatal(err)
		}
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		pull := func(ref string, sandbox *runtimeapi.PodSandboxConfig) error {
			_, err := n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}, SandboxConfig: sandbox})
			return err
		}
		container := func(name, ref string) (string, error) {
			c := node.ContainerConfig(name, "sleep", "1000")
			c.Image.Image = ref
			resp, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c, SandboxConfig: cfg})
			return resp.GetContainerId(), err
		}
		expect := func(what string, err error, code codes.Code, words ...string) {
			t.Helper()
			got := status.Convert(err)
			if got.Code() != code {
				t.Errorf("%s: %v, want %s", what, err, code)
			}
			for _, w := range words {
				if !strings.Contains(got.Message(), w) {
					t.Errorf("%s: %v does not say %q", what, err, w)
				}
			}
		}
		// asked returns what the registry was asked about a repository: all, or what fetches.
		asked := func(repository string, fetches bool) (list []string) {
			for _, r := range reg.Requests() {
				if strings.Contains(r.Path, "/"+repository+"/") && (!fetches || r.Method != http.MethodHead && !strings.Contains(r.Path, ".sig")) {
					list = append(list, r.Method+" "+r.Path)
				}
			}
			return list
		}

		expect("a registry that is not allowed", pull(evil, cfg), codes.PermissionDenied, evil, `rule "nobody else" of `+file, "namespace default")
		if got := asked("evil/app", false); len(got) != 0 {
			t.Errorf("the registry was asked about what is refused: %q", got)
		}
		expect("a namespace for which it is not allowed", pull(app, nil), codes.PermissionDenied, "no pod")
		expect("what is allowed", pull(app, cfg), codes.OK)
		running, err := container("app", app)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: running}); err != nil {
			t.Fatal(err)
		}

		err = pull(signed, cfg)
		expect("what is not signed", err, codes.Unknown, `rule "signed"`)
		if !strings.HasPrefix(status.Convert(err).Message(), "SignatureValidationFailed") {
			t.Errorf("the kubelet does not know it: %v", err)
		}
		away.Store(true)
		expect("a registry that does not say", pull(signed, cfg), codes.Unavailable, "could not be asked for")
		away.Store(false)
		if got := asked("signed/app", true); len(got) != 0 {
			t.Errorf("fetched of what is refused: %q", got)
		}
		tag, sig := signature(t, key, vouched)
		reg.Push("signed/app:"+tag, sig)
		expect("what is signed", pull(signed, cfg), codes.OK)
		away.Store(true) // from here on it is remembered
		id, err := container("signed", signed)
		expect("a container of what is signed", err, codes.OK)
		if err == nil {
			if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
				t.Error(err)
			}
		}

		archive := filepath.Join(dir, "evil.tar")
		if err := testimage.WriteOCIArchive(archive, evil, busybox); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Import(t.Context(), archive, ""); err != nil {
			t.Errorf("an import is root's: %v", err)
		}
		_, err = container("evil", evil)
		expect("a container of what came otherwise", err, codes.PermissionDenied, `rule "nobody else"`)
		line, err := n.Timeline(t.Context(), pod)
		for _, word := range []string{"image not pulled", "container not made", "nobody else"} {
			if err != nil || !strings.Contains(string(line), word) {
				t.Errorf("the timeline does not say %q: %s %v", word, line, err)
			}
		}
		metrics := func() string {
			t.Helper()
			at := regexp.MustCompile(`metrics are served.*address=(\S+)`).FindStringSubmatch(n.Berth.Output())
			if at == nil {
				t.Fatal("no metrics are served")
			}
			resp, err := http.Get("http://" + at[1] + "/metrics") //nolint:noctx // of the test's own berth
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		count := func(line string) {
			t.Helper()
			if text := metrics(); !strings.Contains(text, line+"\n") {
				t.Errorf("%s is not in the metrics:\n%s", line, strings.Join(regexp.MustCompile(`(?m)^berth_image_policy.*$`).FindAllString(text, -1), "\n"))
			}
		}
		count(`berth_image_policy_decisions_total{at="pull",decision="refused",rule="nobody else"} 2`)
		count(`berth_image_policy_decisions_total{at="pull",decision="unanswered",rule="signed"} 1`)
		count(`berth_image_policy_decisions_total{at="create",decision="refused",rule="nobody else"} 1`)
		count("berth_image_policy_usable 1")

		// A change of the file holds without a restart, and without a signal.
		write("policy.toml", strings.Replace(rules, "/team/**\"]", "/team/**\", \""+reg.Addr+"/evil/**\"]", 1))
		id, err = container("evil", evil)
		expect("what is allowed now", err, codes.OK)
		if err == nil {
			if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
				t.Error(err)
			}
		}
		// Half of the file, over a kill.
		write("policy.toml", rules[:len(rules)/2])
		expect("a file that is half written", pull(app, cfg), codes.Unavailable, "image.policy_failure is closed", file)
		n.Berth.Kill(syscall.SIGKILL)
		n.StartBerth()
		_, err = container("again", app)
		expect("a file that is half written", err, codes.Unavailable, "image.policy_failure is closed", file)
		count("berth_image_policy_usable 0")
		st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
		if err != nil || !strings.Contains(st.GetInfo()["warnings"], "the image policy cannot be used") || !st.GetStatus().GetConditions()[0].GetStatus() {
			t.Errorf("%v %v", st, err)
		}
		cs, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: running})
		if err != nil || cs.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("what ran does not run any more: %v %v", cs, err)
		}
		n.Pod(n.PodConfig()) // with a sandbox image
		configure("open")
		n.Berth.Signal(syscall.SIGHUP)
		n.Until("everything is let in", func() bool { return pull(evil, cfg) == nil })
	})
}
