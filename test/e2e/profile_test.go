// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
	"berth/test/node"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// newCall calls a method that is new in CRI 1.38.
func newCall(t *testing.T, n *node.Node, method string, req, resp proto.Message) error {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+n.Dir+"/berth.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.Invoke(t.Context(), "/runtime.v1.ImageService/"+method, req, resp)
}

// pushProfile pushes a seccomp profile, and returns its reference with a digest.
func pushProfile(t *testing.T, reg *testregistry.Registry, body string) string {
	t.Helper()
	const kind = "application/vnd.cncf.seccomp-profile.config.v1+json"
	a, err := testimage.Artifact(testimage.ArtifactConfig{Type: kind, ConfigType: kind}, testimage.Blob{MediaType: "application/json", Body: []byte(body)})
	if err != nil {
		t.Fatal(err)
	}
	d, err := a.Digest()
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(reg.Push("team/profile:1", a), ":1")
	return name + "@" + d.String()
}

// PROPERTIES 69: a pod has a profile from a registry, together with a base: the OCI runtime makes the
// container with both, and berth-exec and the OCI runtime the processes of exec. It is pulled once,
// is not an image, is never pulled for a container, and outlives a restart; its removal changes
// nothing for those who have it.
func TestAPulledProfileConfines(t *testing.T) {
	n := joining(t, false)
	reg := testregistry.Start(t)
	ref := pushProfile(t, reg, `{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_X86","SCMP_ARCH_X32"],
		"syscalls":[{"names":["chmod","fchmodat","fchmodat2","fchmod"],"action":"SCMP_ACT_ERRNO","errnoRet":13}]}`)
	base := filepath.Join(n.Dir, "base.json")
	if err := os.WriteFile(base, []byte(`{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_X86","SCMP_ARCH_X32"],
		"syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":28}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	const look = "(chmod 755 /; mkdir /made; swapoff /x; grep -E '^Seccomp(_filters)?:' /proc/self/status) 2>&1"
	confined := func(name string, of *cri138.SecurityProfileBase) *runtimeapi.ContainerConfig {
		c := node.ContainerConfig(name, "sh", "-c", look+"; echo looked; sleep 1000")
		c.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_ADMIN"}}
		c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: cri138.SecurityProfile_OCI}
		cri138.Set(c.Linux.SecurityContext.Seccomp, &cri138.SecurityProfile{OciRef: ref, BaseProfile: of})
		return c
	}
	create := func(name string) error {
		_, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, SandboxConfig: cfg, Config: confined(name, nil)})
		return err
	}
	if err := create("early"); status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), ref) {
		t.Errorf("before it was pulled: %v", err)
	}
	pull := func(want bool) {
		t.Helper()
		var resp cri138.PullSecurityProfileResponse
		err := newCall(t, n, "PullSecurityProfile", &cri138.PullSecurityProfileRequest{
			Image:         &runtimeapi.ImageSpec{Image: ref, UserSpecifiedImage: ref},
			SandboxConfig: cfg,
			ProfileKind:   cri138.SecurityProfileKind_Seccomp,
		}, &resp)
		if err != nil || resp.GetCached() != want {
			t.Fatalf("cached %v, %v", resp.GetCached(), err)
		}
	}
	pull(false)
	asked := len(reg.Requests())
	pull(true)
	list := func() (all []*cri138.SecurityProfileInfo) {
		t.Helper()
		var resp cri138.ListSecurityProfilesResponse
		if err := newCall(t, n, "ListSecurityProfiles", &cri138.ListSecurityProfilesRequest{}, &resp); err != nil {
			t.Fatal(err)
		}
		return resp.GetProfiles()
	}
	if got := list(); len(got) != 1 || !slices.Equal(got[0].GetRefs(), []string{ref}) || got[0].GetSize() == 0 {
		t.Fatalf("kept are %v", got)
	}
	images, err := n.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil || strings.Contains(images.String(), "team/profile") {
		t.Errorf("it is an image: %v %v", images, err)
	}

	const filters = "Seccomp:\t2\nSeccomp_filters:\t1\n"
	ids := map[string]string{}
	wants := map[string]string{
		"default": "chmod: /: Permission denied\nswapoff: /x: Operation not permitted\n" + filters,
		"local":   "chmod: /: Permission denied\nmkdir: can't create directory '/made': No space left on device\nswapoff: /x: No such file or directory\n" + filters,
	}
	check := func(when string) {
		t.Helper()
		for name, want := range wants {
			for range 2 {
				got, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: ids[name], Cmd: []string{"sh", "-c", "rmdir /made; " + look}})
				if out := string(got.GetStdout()); err != nil || out != want {
					t.Errorf("%s, exec in %s: %v\n%q\nwant\n%q", when, name, err, out, want)
				}
			}
		}
	}
	for name, of := range map[string]*cri138.SecurityProfileBase{
		"default": nil,
		"local":   {Type: cri138.SecurityProfileBase_Localhost, LocalhostRef: base},
	} {
		ids[name] = n.Run(pod, cfg, confined(name, of))
		n.Until("it has looked", func() bool { return strings.HasSuffix(n.Log(ids[name]), "looked\n") })
		if got := strings.TrimSuffix(n.Log(ids[name]), "looked\n"); got != wants[name] {
			t.Errorf("%s: \n%q\nwant\n%q", name, got, wants[name])
		}
	}
	before := executed(t, n, "helper", "")
	check("at first")
	if executed(t, n, "helper", "") == before {
		t.Error("berth-exec was not used")
	}

	n.Berth.Kill(syscall.SIGKILL)
	n.StartBerth()
	pull(true)
	if got := len(reg.Requests()); got != asked {
		t.Errorf("the registry was asked %d times, and then %d times", asked, got)
	}
	if err := create("later"); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	for range 2 {
		if err := newCall(t, n, "RemoveSecurityProfile", &cri138.RemoveSecurityProfileRequest{Digest: list0(list())}, &cri138.RemoveSecurityProfileResponse{}); err != nil {
			t.Error(err)
		}
	}
	if err := create("last"); status.Code(err) != codes.NotFound || len(list()) != 0 {
		t.Errorf("after its removal: %v, %v", err, list())
	}
	n.Until("exec works", func() bool {
		_, err := execSync(t, n, ids["default"], "true", 10*time.Second)
		return err == nil
	})
	check("after a restart and its removal")
}

func list0(all []*cri138.SecurityProfileInfo) string {
	if len(all) == 0 {
		return "sha256:gone"
	}
	return all[0].GetDigest()
}
