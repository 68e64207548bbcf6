// SPDX-License-Identifier: Apache-2.0

package surface

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/serve/cri"
)

var update = flag.Bool("update", false, "write docs/cri-fields.md anew")

const root = "../.."

// A field of a request that berth did not know was ignored. PROPERTIES 22.
func TestEveryFieldOfEveryRequestHasARow(t *testing.T) {
	rows, used := Rows(), map[string]bool{}
	fields := 0
	for _, m := range Methods() {
		all := Fields(m)
		for _, f := range all {
			fields++
			row, _, ok := Of(rows, all, f)
			used[row.Field] = true
			if !ok {
				t.Errorf("%s: %s (%s) has no row: is it honoured, refused or without effect?", f.Method, f.Path, f.Name)
			}
		}
	}
	if fields < 300 {
		t.Errorf("only %d fields were found", fields)
	}
	seen := map[string]bool{}
	for _, r := range rows {
		if !used[r.Field] {
			t.Errorf("%s: there is no such field, or another row holds for it", r.Field)
		}
		if seen[r.Field] {
			t.Errorf("%s has two rows", r.Field)
		}
		seen[r.Field] = true
		if r.Fate != Honoured && r.Text == "" {
			t.Errorf("%s is %s without a reason", r.Field, r.Fate)
		}
	}
}

// A row that names a test names one that exists.
func TestProofsExist(t *testing.T) {
	for _, r := range Rows() {
		for _, proof := range r.Proof {
			at := strings.LastIndexByte(proof, '.')
			// A room lies in its wing, or is one.
			var files []string
			for _, dir := range []string{"internal/", "internal/*/", "tools/", ""} {
				found, err := filepath.Glob(filepath.Join(root, dir+proof[:at], "*_test.go"))
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, found...)
			}
			if !slices.ContainsFunc(files, func(path string) bool {
				b, err := os.ReadFile(path)
				return err == nil && bytes.Contains(b, []byte("func "+proof[at+1:]+"("))
			}) {
				t.Errorf("%s: its proof %s does not exist", r.Field, proof)
			}
		}
	}
}

// inNode runs a test in a bubble with a node.
func inNode(t *testing.T, f func(t *testing.T, n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newNode(t)) })
}

// timeout is how long a call may take, in the bubble's time.
const timeout = time.Minute

// send sends a request by the name of its message.
func (n *node) send(method string, m proto.Message) error {
	n.t.Helper()
	wire, err := proto.Marshal(m)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), timeout)
	defer cancel()
	sent, err := n.call(ctx, method, wire)
	if !sent {
		n.t.Errorf("%s was not sent: %v", method, err)
	}
	return err
}

func TestRefusedFieldsAreRefusedByName(t *testing.T) {
	inNode(t, func(t *testing.T, n *node) {
		count := 0
		for _, r := range Rows() {
			if r.Fate != Refused {
				continue
			}
			count++
			err := n.send(strings.TrimSuffix(string(r.Request.ProtoReflect().Descriptor().Name()), "Request"), r.Request)
			name := r.Field[strings.LastIndexByte(r.Field, '.')+1:]
			if cri.Code(err) != r.Code || !strings.Contains(fmt.Sprint(err), name) {
				t.Errorf("%s: %s with %v, want %s with the name of the field", r.Field, cri.Code(err), err, r.Code)
			}
		}
		if count == 0 {
			t.Error("nothing is refused")
		}
		// What the rows refuse, they refuse before anything is made.
		if n := len(n.berth.Core.Pods.ListContainers(nil)); n != 2 {
			t.Errorf("%d containers are left", n)
		}
	})
}

// Every method has an answer of its own.
func TestEveryMethodIsServed(t *testing.T) {
	inNode(t, func(t *testing.T, n *node) {
		for _, m := range Methods() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := n.call(ctx, string(m.Name()), nil)
			cancel()
			if cri.Code(err) == codes.Unimplemented {
				t.Errorf("%s: %v", m.Name(), err)
			}
		}
	})
}

func TestListsSelect(t *testing.T) {
	inNode(t, func(t *testing.T, n *node) {
		pods := n.berth.Core.Pods
		for _, tt := range []struct {
			name   string
			filter *runtimeapi.ContainerFilter
			want   int
		}{
			{"everything", nil, 2},
			{"by ID", &runtimeapi.ContainerFilter{Id: n.runs}, 1},
			{"by the beginning of an ID", &runtimeapi.ContainerFilter{Id: n.runs[:12]}, 1},
			{"by state", &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}}, 1},
			{"by a state that is not known", &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: 77}}, 0},
			{"by pod", &runtimeapi.ContainerFilter{PodSandboxId: n.pod}, 2},
			{"by another pod", &runtimeapi.ContainerFilter{PodSandboxId: "f" + n.pod}, 0},
			{"by label", &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"name": "runs"}}, 1},
			{"by all together", &runtimeapi.ContainerFilter{Id: n.runs, LabelSelector: map[string]string{"name": "created"}}, 0},
		} {
			if got := pods.ListContainers(tt.filter); len(got) != tt.want {
				t.Errorf("containers %s: %v", tt.name, got)
			}
		}
		for _, tt := range []struct {
			name   string
			filter *runtimeapi.PodSandboxFilter
			want   int
		}{
			{"everything", nil, 1},
			{"by ID", &runtimeapi.PodSandboxFilter{Id: n.pod[:12]}, 1},
			{"by another ID", &runtimeapi.PodSandboxFilter{Id: "f" + n.pod}, 0},
			{"by state", &runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}}, 0},
			{"by label", &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"k": "v"}}, 1},
			{"by another label", &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"k": "w"}}, 0},
		} {
			if got := pods.ListPodSandbox(tt.filter); len(got) != tt.want {
				t.Errorf("sandboxes %s: %v", tt.name, got)
			}
		}
	})
}

// CRI says that an unknown runtime handler of an image is to be refused; it was ignored.
func TestAnImageIsForAHandlerThatThereIs(t *testing.T) {
	inNode(t, func(t *testing.T, n *node) {
		of := func(handler string) *runtimeapi.ImageSpec {
			return &runtimeapi.ImageSpec{Image: "registry.example/app:1", RuntimeHandler: handler}
		}
		for handler, want := range map[string]codes.Code{"": codes.OK, "runc": codes.OK, "absent": codes.InvalidArgument, "vm": codes.InvalidArgument} {
			for method, req := range map[string]proto.Message{
				"ListImages":      &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: of(handler)}},
				"ImageStatus":     &runtimeapi.ImageStatusRequest{Image: of(handler)},
				"PullImage":       &runtimeapi.PullImageRequest{Image: of(handler)},
				"RemoveImage":     &runtimeapi.RemoveImageRequest{Image: of(handler)},
				"CreateContainer": create(func(c *runtimeapi.ContainerConfig) { c.Metadata.Name, c.Image = "of-"+handler, of(handler) }),
			} {
				if err := n.send(method, req); cri.Code(err) != want {
					t.Errorf("%s for handler %q: %v, want %s", method, handler, err, want)
				}
			}
		}
	})
}

func TestDocumentIsMadeFromTheRows(t *testing.T) {
	path := filepath.Join(root, "docs/cri-fields.md")
	want := Document()
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("docs/cri-fields.md is not what the rows say (%v): go test ./test/surface -run Document -update", err)
	}
}
