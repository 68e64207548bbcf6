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

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/base/cri138"
	"berth/test/node"
	"berth/test/testimage/testregistry"
)

// PROPERTIES 69: a pod has a profile from a registry, together with a base: the OCI runtime makes the
// container with both, and berth-exec and the OCI runtime the processes of exec. It is pulled once,
// is not an image, is never pulled for a container, and outlives a restart; its removal changes
// nothing for those who have it.
func TestAPulledProfileConfines(t *testing.T) {
	n := joining(t, false)
	reg := testregistry.Start(t)
	ref := reg.PushProfile("team/profile:1", `{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_X86","SCMP_ARCH_X32"],
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
		err := n.ImageCall("PullSecurityProfile", &cri138.PullSecurityProfileRequest{
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
		if err := n.ImageCall("ListSecurityProfiles", &cri138.ListSecurityProfilesRequest{}, &resp); err != nil {
			t.Fatal(err)
		}
		return resp.GetProfiles()
	}
	if got := list(); len(got) != 1 || !slices.Equal(got[0].GetRefs(), []string{ref}) || got[0].GetSize() == 0 {
		t.Fatalf("kept are %v", got)
	}
	shown, err := n.Client.Node.Images(t.Context(), &berthv1.ImagesRequest{})
	if err != nil || len(shown.GetProfiles()) != 1 || shown.GetProfiles()[0].GetRefs()[0] != ref {
		t.Errorf("berth images verify finds %v, %v", shown.GetProfiles(), err)
	}
	disk, err := n.Client.Node.Disk(t.Context(), &berthv1.DiskRequest{})
	if err != nil || !slices.ContainsFunc(disk.GetShares(), func(s *berthv1.Share) bool { return s.GetWhat() == "profiles" && s.GetCount() == 1 && s.GetBytes() > 0 }) {
		t.Errorf("the disk has %v, %v", disk, err)
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
	st, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: ids["local"], Verbose: true})
	if err != nil || !strings.Contains(st.GetInfo()["info"], ref) {
		t.Errorf("inspect does not name it: %v, %v", st, err)
	}
	told, err := n.Client.Node.Timeline(t.Context(), &berthv1.TimelineRequest{Id: pod})
	if err != nil || strings.Count(told.String(), ref) < 3 { // pulled, and in each of two containers
		t.Errorf("the timeline does not name it: %v, %v", told, err)
	}
	before := executed(t, n, "helper", "")
	check("at first")
	if executed(t, n, "helper", "") == before {
		t.Error("berth-exec was not used")
	}

	n.Berth.Kill(syscall.SIGKILL)
	n.StartBerth()
	file := filepath.Join(n.Dir, "lib/profiles", strings.TrimPrefix(list()[0].GetDigest(), "sha256:")+".json")
	if err := os.Truncate(file, 100); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"wrong", "repaired", "whole"} {
		var parts []*berthv1.Part
		if want == "repaired" {
			resp, failed := n.Client.Control.RepairImage(t.Context(), &berthv1.RepairImageRequest{Image: ref})
			parts, err = resp.GetParts(), failed
		} else {
			resp, failed := n.Client.Node.VerifyImage(t.Context(), &berthv1.VerifyImageRequest{Image: ref})
			parts, err = resp.GetParts(), failed
		}
		if err != nil || len(parts) != 1 || parts[0].GetKind() != "profile" || parts[0].GetOutcome() != want {
			t.Errorf("it is %v, %v, want %s", parts, err, want)
		}
	}
	pull(true)
	if got := len(reg.Requests()); got != asked {
		t.Errorf("the registry was asked %d times, and then %d times", asked, got)
	}
	if err := create("later"); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	for range 2 {
		if err := n.ImageCall("RemoveSecurityProfile", &cri138.RemoveSecurityProfileRequest{Digest: list0(list())}, &cri138.RemoveSecurityProfileResponse{}); err != nil {
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
