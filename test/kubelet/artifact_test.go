// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// PROPERTIES 25: a kubelet pulls an OCI artifact and mounts it into a container as a volume, all of it
// and a directory in it. It stays mounted when berth is killed and its name is removed, goes with the
// pod, and an artifact that cannot be laid out keeps its pod waiting with the reason.
func TestAnArtifactIsAVolumeOfAPod(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, k *kubelet) {
		reg := testregistry.Start(t)
		push := func(name, title string) string {
			img, err := testimage.Artifact(testimage.ArtifactConfig{Type: "application/vnd.test.model"},
				testimage.Blob{Title: "weights.bin", Body: bytes.Repeat([]byte("0123456789abcde\n"), 70001)},
				testimage.Blob{Title: title, MediaType: "application/json", Body: []byte("{}\n")})
			if err != nil {
				t.Fatal(err)
			}
			return reg.Push(name, img)
		}
		ref := push("team/model:1", "conf/a.json")
		k.change("artifact", "artifact", "ARTIFACT", ref)
		c := k.until("artifact", "running", running).only()
		printed := func() string {
			text, err := k.get("/containerLogs/default/artifact-node/artifact")
			if err != nil {
				return err.Error()
			}
			return text
		}
		const want = "{}\n{}\n1120016\nnobody writes\n"
		if !k.eventually(func() bool { return printed() == want }) {
			t.Errorf("it printed %q", printed())
		}
		k.Berth.Kill(syscall.SIGKILL)
		k.StartBerth()
		if _, err := k.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			t.Error(err)
		}
		k.untilPrinted(t, "artifact", "wc -c /model/weights.bin", "1120016 /model/weights.bin\n")
		if now := k.until("artifact", "running", running).only(); now.ContainerID != c.ContainerID || now.RestartCount != c.RestartCount {
			t.Errorf("the container is %+v, and was %+v", now, c)
		}

		k.change("artifact", "bad", "ARTIFACT", push("team/bad:1", "../a.json"))
		k.until("bad", "waiting for its image", func(p pod) bool {
			w := p.only().State.Waiting
			return w != nil && strings.Contains(w.Reason, "ImagePull") // or its back-off
		})
		k.remove("artifact")
		k.remove("bad")
		k.gone()
	})
}
