// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"berth/internal/base/cri138"
	"berth/test/node"
	"berth/test/testimage/testregistry"
)

// PROPERTIES 69: a kubelet of 1.38 lets berth pull a seccomp profile from a registry for its pods. A
// pod has the intersection of the profile and its base; the next one has it without the registry,
// also with another base; once the profile is removed, a pod waits for it with the reason, and
// starts when the registry is back. Only a kubelet of 1.38 knows such profiles: `make test-kubelet
// KUBERNETES=1.38`.
func TestAProfileIsPulledByAKubelet138(t *testing.T) {
	k := start(t, node.Options{}, false, "  SecurityProfileOCI: true")
	var away atomic.Bool
	reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if away.Load() {
				http.Error(w, "the registry is away", http.StatusServiceUnavailable)
				return
			}
			next.ServeHTTP(w, r)
		})
	}))
	const every = `{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_X86","SCMP_ARCH_X32"],"syscalls":[{"names":`
	ref := reg.PushProfile("team/profile:1", every+`["chmod","fchmodat","fchmodat2"],"action":"SCMP_ACT_ERRNO","errnoRet":13}]}`)
	if err := os.MkdirAll(k.dir+"/root/seccomp", 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(k.dir+"/root/seccomp/base.json", []byte(every+`["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":28}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	add := func(pod, base string) {
		t.Helper()
		k.change("confined", pod, "PROFILE", ref, "BASE", base)
	}
	const denied = "chmod: /: Permission denied\n"
	prints := func(pod, want string) {
		t.Helper()
		k.until(pod, "running", running)
		log := func() string { text, _ := k.get("/containerLogs/default/" + pod + "-node/confined"); return text }
		if !k.eventually(func() bool { return log() == want }) {
			t.Errorf("%s printed %q, want %q", pod, log(), want)
		}
	}

	add("first", "")
	prints("first", denied+"Seccomp:\t2\n")
	away.Store(true)
	add("kept", "")
	prints("kept", denied+"Seccomp:\t2\n")
	add("based", ", baseProfile: {type: Localhost, localhostProfile: base.json}")
	prints("based", denied+"mkdir: can't create directory '/made': No space left on device\nSeccomp:\t2\n")

	var kept cri138.ListSecurityProfilesResponse
	if err := k.ImageCall("ListSecurityProfiles", &cri138.ListSecurityProfilesRequest{}, &kept); err != nil || len(kept.GetProfiles()) != 1 {
		t.Fatalf("kept are %v, %v", kept.GetProfiles(), err)
	}
	remove := &cri138.RemoveSecurityProfileRequest{Digest: kept.GetProfiles()[0].GetDigest()}
	if err := k.ImageCall("RemoveSecurityProfile", remove, &cri138.RemoveSecurityProfileResponse{}); err != nil {
		t.Fatal(err)
	}
	add("waits", "")
	k.until("waits", "waiting for its profile", func(p pod) bool {
		w := p.only().State.Waiting
		return w != nil && w.Reason == "CreateContainerConfigError" && strings.HasPrefix(w.Message, "RegistryUnavailable: ")
	})
	away.Store(false)
	prints("waits", denied+"Seccomp:\t2\n")
	for _, pod := range []string{"first", "kept", "based", "waits"} {
		k.remove(pod)
	}
	k.gone()
}
