// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"

	"google.golang.org/protobuf/types/known/timestamppb"

	berthv1 "berth/api/berth/v1"
)

func TestImagesAreListedWithWhatUsesThem(t *testing.T) {
	f := newFake()
	at := serveFake(t, f)
	out, problem := berth(t, at, "images")
	says(t, "images", out, "busybox:1", "5120 KiB", "9216 KiB", "3072 KiB", "3h ago", "configuration, archive", "a/b/c, d/e/f and 1 more", "x@sha256:1", "artifact")
	if problem != "" {
		t.Error(problem)
	}
	out, _ = berth(t, at, "images", "-o", "json")
	var doc struct {
		Items []struct {
			ID       string
			RepoTags []string
			Size     int64
			Frees    int64
			Users    []string
			Created  time.Time
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Items) != 2 || doc.Items[0].Size != 5242880 || doc.Items[0].Frees != 3<<20 ||
		len(doc.Items[0].Users) != 3 || doc.Items[0].Created.IsZero() || !slices.Equal(doc.Items[0].RepoTags, []string{"busybox:1"}) {
		t.Errorf("%+v %v\n%s", doc, err, out)
	}
	f.plain = true // another runtime
	out, problem = berth(t, at, "images")
	says(t, "images of another runtime", out, "busybox:1", "5120 KiB", "x@sha256:1")
	if problem != "" || strings.Contains(out, "FREES") {
		t.Errorf("%s\n%s", problem, out)
	}
}

func TestPruneSaysWhatItFrees(t *testing.T) {
	f := newFake()
	at := serveFake(t, f)
	out, problem := berth(t, at, "images", "prune", "--dry-run")
	says(t, "a dry run", out, "old:1", "7168 KiB would be freed", "2 images are used, 1 pinned")
	says(t, "what cannot be removed", problem, "stuck:1", "the disk is read-only")
	out, _ = berth(t, at, "images", "prune", "--older-than", "1h")
	says(t, "a run", out, "7168 KiB were freed")
	if want := []string{"prune true 2m0s", "prune false 1h0m0s"}; !slices.Equal(f.calls, want) {
		t.Errorf("%q, want %q", f.calls, want)
	}
	_, problem = berth(t, at, "images", "prune", "--older-than", "-1s")
	says(t, "an age below 0", problem, "--older-than")
}

// One name is taken away, and what goes with it is said; a service without the call, which removes
// all names, is asked for that only with --force.
func TestTheRemovalOfAnImageSaysWhatGoes(t *testing.T) {
	f := newFake()
	at := serveFake(t, f)
	for _, tt := range []struct {
		args []string
		says []string
	}{
		{[]string{"one:1"}, []string{"removed the name one:1", "the image 1 stays, as other:2"}},
		{[]string{"last:1"}, []string{"removed the image 2; 7168 KiB are freed; it was pinned", "used by team/web/app"}},
		{[]string{"last:1", "--dry-run"}, []string{"would remove the image 2; 7168 KiB would be freed"}},
		{[]string{"absent", "one:1"}, []string{"absent", "not on this node", "removed the name one:1"}},
	} {
		out, problem := berth(t, at, append([]string{"images", "rm"}, tt.args...)...)
		says(t, strings.Join(tt.args, " "), out+problem, tt.says...)
	}
	f.plain = true
	f.images["busybox"] = &runtimeapi.Image{Id: "sha256:3", Pinned: true, RepoTags: []string{"busybox:1", "other:1"}}
	_, problem := berth(t, at, "images", "rm", "busybox")
	says(t, "an image with other names", problem, "busybox:1, other:1", "--force")
	out, problem := berth(t, at, "images", "rm", "--force", "busybox")
	says(t, "with --force", out, "removed the name other:1", "removed the image 3")
	if problem != "" {
		t.Error(problem)
	}
	_, problem = berth(t, at, "images", "rm", "absent")
	says(t, "what is not there", problem, "not on this node")
}

func TestDfSaysWhatTakesTheSpace(t *testing.T) {
	out, problem := berth(t, serveFake(t, newFake()), "df")
	says(t, "df", out, "images", "70 MiB", "40 MiB", "1024 KiB and 1 not measured", "/var/lib/berth: 20 GiB of 50 GiB are free")
	if problem != "" {
		t.Error(problem)
	}
}

// inFlight are transfers of each kind.
func inFlight() []*berthv1.Transfer {
	since := timestamppb.New(time.Now().Add(-90 * time.Second))
	return []*berthv1.Transfer{
		{Image: "registry.example/a:1", Kind: "pull", State: "fetching", Since: since,
			Total: 40 << 20, Fetched: 10 << 20, Blobs: 5, Complete: 2, Waiters: []string{"team/web", "", ""}},
		{Image: "registry.example/b:1", Kind: "pull", State: "unpacking", Since: since,
			Total: 40 << 20, Fetched: 40 << 20, Blobs: 5, Complete: 5, Unpacking: 2, Waiters: []string{""}},
		{Image: "registry.example/c:1", Kind: "pull", State: "waiting", Since: since, Archive: "/preload/\x1b[2J.tar", Waiters: []string{"team/db"}},
		{Image: "registry.example/d:1", Kind: "pull", State: "fetching", Since: since, Problem: "containerd does\nnot answer"},
		{Image: "/preload/x.tar", Kind: "preload", State: "fetching", Since: since, Total: 100, Fetched: 50},
	}
}

func TestPullsSayHowFarTheyAre(t *testing.T) {
	f := newFake()
	at := serveFake(t, f)
	if out, problem := berth(t, at, "pulls"); !strings.HasPrefix(out, "IMAGE") || problem != "" {
		t.Errorf("%s\n%s", out, problem)
	}
	f.transfers = inFlight()
	out, _ := berth(t, at, "pulls")
	says(t, "pulls", out, "registry.example/a:1", "10 MiB of 40 MiB (25%)", "2 of 5", "1m ago", "team/web, 2 clients",
		"unpacking, 2 unpacking", "a client", `waits for "/preload/\x1b[2J.tar"`, `"containerd does\nnot answer"`, "/preload/x.tar", "50 B of 100 B (50%)")
	if strings.Contains(out, "\x1b") {
		t.Errorf("%q acts on a terminal", out)
	}
	_, problem := berth(t, at, "pulls", "--watch", "--interval", "1ms")
	says(t, "a short interval", problem, "--interval")
}

// Watching a terminal, the list takes the place of the one before, and nothing that an image or an
// archive is called acts on the terminal.
func TestPullsAreRedrawnInPlace(t *testing.T) {
	f := newFake()
	f.transfers = inFlight()
	c, err := client.Dial(serveFake(t, f))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var b bytes.Buffer
	if err := redraw(t.Context(), &printer{format: "table"}, &b, c); err != nil {
		t.Fatal(err)
	}
	text, whole := strings.CutPrefix(b.String(), homeCursor)
	text, all := strings.CutSuffix(text, clearRest)
	if !whole || !all || strings.Contains(strings.ReplaceAll(text, clearLine+"\r\n", "\n"), "\x1b") || strings.Count(text, clearLine+"\r\n") != 6 {
		t.Errorf("%q", b.String())
	}
}

// Watching ends with Ctrl-C, which is not an error.
func TestWatchingEnds(t *testing.T) {
	f := newFake()
	at := serveFake(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	cmd := New(Daemon{})
	var b bytes.Buffer
	cmd.SetOut(&b)
	cmd.SetArgs([]string{"--endpoint", at, "pulls", "--watch", "--interval", "100ms", "-o", "json"})
	done := make(chan error)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	for looks := 0; looks < 2; {
		time.Sleep(10 * time.Millisecond)
		f.mu.Lock()
		looks = len(f.calls)
		f.mu.Unlock()
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
