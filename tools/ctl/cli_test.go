// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"berth/api/client"
	"berth/internal/base/asynclog"
	"berth/internal/base/config"
	"berth/tools/manifest"
)

// berth runs a command against an endpoint and returns what it wrote, and its error as a person
// reads it.
func berth(t *testing.T, endpoint string, args ...string) (out, problem string) {
	t.Helper()
	out, err := run(endpoint, args...)
	if err != nil {
		problem = client.Explain(err).Error()
	}
	return out, problem
}

func run(endpoint string, args ...string) (string, error) {
	var b bytes.Buffer
	cmd := New(Daemon{Serve: func(context.Context, config.Config, <-chan config.Config, func(), *asynclog.Log) error { return nil }})
	cmd.SetArgs(append([]string{"--endpoint", endpoint}, args...))
	cmd.SetOut(&b)
	cmd.SetErr(&b)
	err := cmd.ExecuteContext(context.Background())
	return b.String(), err
}

func says(t *testing.T, what, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("%s does not say %q:\n%s", what, w, got)
		}
	}
}

func services() *fake {
	f := newFake()
	f.addPod("aaa111", "default", "web")
	f.addPod("aab222", "default", "db")
	f.addContainer("bbb111", "aaa111", "nginx", 0, runtimeapi.ContainerState_CONTAINER_EXITED)
	f.addContainer("bbb222", "aaa111", "nginx", 1, runtimeapi.ContainerState_CONTAINER_RUNNING)
	ended := f.addContainer("bbc333", "aab222", "sql", 0, runtimeapi.ContainerState_CONTAINER_EXITED)
	ended.ExitCode, ended.Reason = 137, "OOMKilled"
	return f
}

func TestListsForPeople(t *testing.T) {
	at := serveFake(t, services())
	out, _ := berth(t, at, "ps")
	says(t, "ps", out, "bbb222", "nginx", "default/web", "RUNNING", "2h")
	if strings.Contains(out, "bbc333") {
		t.Errorf("ps lists what is not running:\n%s", out)
	}
	out, _ = berth(t, at, "ps", "-a")
	says(t, "ps -a", out, "bbc333", "EXITED", "137 OOMKilled")
	out, _ = berth(t, at, "pods")
	says(t, "pods", out, "aaa111", "READY", "3m", "10.88.0.9")
	out, _ = berth(t, at, "ps", "-o", "wide")
	says(t, "ps -o wide", out, "busybox:1", "aaa111")
	out, _ = berth(t, at, "pods", "-o", "wide", "-A", "--no-trunc")
	says(t, "pods -o wide", out, "runc", "CREATED")
	for _, tt := range []struct{ args, want string }{
		{"ps -q", "bbb222\n"},
		{"ps -o name", "default/web/nginx\n"},
		{"pods -q --state ready -n default", "aaa111\naab222\n"},
		{"pods -o name -n default", "default/web\ndefault/db\n"},
		{"images -q", "sha256:0123456789abcdef\nsha256:fedcba\n"},
		{"images -o name", "busybox:1\nx@sha256:1\n"},
	} {
		if out, problem := berth(t, at, strings.Fields(tt.args)...); out != tt.want || problem != "" {
			t.Errorf("berth %s: %q, want %q %s", tt.args, out, tt.want, problem)
		}
	}
	_, problem := berth(t, at, "ps", "-A", "-n", "default")
	says(t, "both", problem, "all-namespaces")
	out, _ = berth(t, at, "images")
	says(t, "images", out, "busybox:1", "5120 KiB", "x@sha256:1")
	out, _ = berth(t, at, "status")
	says(t, "status", out, "RuntimeReady", "true", "no CNI configuration")
	out, _ = berth(t, at, "version")
	says(t, "version", out, "berth v9", "CRI v1")
	out, _ = berth(t, at, "timeline", "nginx")
	says(t, "timeline", out, "bbb222", "exit settled", "code=42", "late")
	out, _ = berth(t, at, "debug", "lanes")
	says(t, "debug lanes", out, "backing off", "release", "unmount: busy")
}

func TestListsForPrograms(t *testing.T) {
	at := serveFake(t, services())
	for _, args := range [][]string{{"ps", "-a"}, {"pods"}, {"images"}, {"images", "prune"}, {"pulls"}, {"df"}, {"status"}, {"version"}, {"timeline", "sql"}, {"debug", "lanes"}, {"inspect", "sql"}} {
		var v any
		fine := func(problem string) bool { // it is not ready; an image cannot be removed
			return problem == "" || args[0] == "status" || len(args) == 2 && args[1] == "prune"
		}
		out, problem := berth(t, at, append(args, "-o", "json")...)
		if err := json.Unmarshal([]byte(out), &v); err != nil || !fine(problem) {
			t.Errorf("%v -o json: %v %s\n%s", args, err, problem, out)
		}
		out, problem = berth(t, at, append(args, "-o", "yaml")...)
		if err := yaml.Unmarshal([]byte(out), &v); err != nil || !fine(problem) {
			t.Errorf("%v -o yaml: %v %s\n%s", args, err, problem, out)
		}
	}
	_, problem := berth(t, at, "ps", "-o", "xml")
	says(t, "-o xml", problem, `"xml"`, "table, wide, name, json or yaml")
}

func TestNames(t *testing.T) {
	at := serveFake(t, services())
	for name, id := range map[string]string{
		"bbc333": "bbc333", "bbc": "bbc333", "sql": "bbc333", "db/sql": "bbc333",
		"web": "aaa111", "default/web": "aaa111", "aab": "aab222",
		"nginx":  "bbb222", // the latest attempt
		"bbb111": "bbb111",
	} {
		out, problem := berth(t, at, "inspect", name)
		var v struct{ Status struct{ ID string } }
		if err := json.Unmarshal([]byte(out), &v); err != nil || v.Status.ID != id {
			t.Errorf("%s is %q, not %s: %s", name, v.Status.ID, id, problem)
		}
	}
	_, problem := berth(t, at, "inspect", "bb")
	says(t, "an ambiguous prefix", problem, "bbb111", "bbb222", "bbc333", "(default/web/nginx)", "an ID")
	_, problem = berth(t, at, "stop", "none")
	says(t, "an unknown name", problem, `"none"`, "berth ps -a")
	_, problem = berth(t, at, "stop", "")
	says(t, "no name", problem, "empty")
}

// picked is what a name means to a command that takes containers, or both.
func picked(t *testing.T, f *fake, what string, pods bool) string {
	t.Helper()
	c, err := client.Dial(serveFake(t, f))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	o, err := resolve(t.Context(), c, what, pods, true)
	if err != nil {
		return err.Error()
	}
	return o.id
}

// A pod was no name for its only container, and the namespace of a container could not be said.
func TestAPodStandsForItsContainer(t *testing.T) {
	f := services()
	f.addPod("aac333", "kube-system", "web")
	f.addContainer("ccc111", "aac333", "nginx", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	f.addPod("aad444", "default", "two")
	f.addContainer("ddd111", "aad444", "app", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	f.addContainer("ddd222", "aad444", "side", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	f.addContainer("ddd333", "aad444", "init", 0, runtimeapi.ContainerState_CONTAINER_EXITED)
	f.addPod("aae555", "default", "main")
	f.addContainer("eee111", "aae555", "init", 0, runtimeapi.ContainerState_CONTAINER_EXITED)
	f.addContainer("eee222", "aae555", "main", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	f.addPod("aaf666", "default", "empty")
	f.addPod("aba777", "default", "again")
	f.addContainer("fff111", "aba777", "app2", 0, runtimeapi.ContainerState_CONTAINER_EXITED)
	f.pods[len(f.pods)-1].State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	f.addPod("aba888", "default", "again")
	f.addContainer("fff222", "aba888", "app2", 0, runtimeapi.ContainerState_CONTAINER_RUNNING)
	for _, c := range []struct {
		what string
		pods bool
		want []string
	}{
		{"default/web/nginx", false, []string{"bbb222"}},
		{"kube-system/web/nginx", true, []string{"ccc111"}},
		{"default/web", false, []string{"bbb222"}},
		{"aab", false, []string{"bbc333"}}, // the pod's ID; its container has ended
		{"db", false, []string{"bbc333"}},
		{"db", true, []string{"aab222"}},
		{"main", false, []string{"eee222"}}, // pod and container
		{"main", true, []string{"ambiguous", "container eee222 (default/main/main)", "pod aae555 (default/main)"}},
		{"again", false, []string{"fff222"}}, // the latest sandbox
		{"again", true, []string{"aba888"}},
		{"again/app2", true, []string{"fff222"}},
		{"web", false, []string{"ambiguous", "default/web/nginx", "kube-system/web/nginx"}},
		{"web/nginx", false, []string{"ambiguous", "default/web/nginx", "kube-system/web/nginx"}},
		{"two", false, []string{"pod default/two has 3 containers", "default/two/app", "default/two/side", "name one"}},
		{"two/side", false, []string{"ddd222"}},
		{"empty", false, []string{"pod default/empty has no container"}},
	} {
		got := picked(t, f, c.what, c.pods)
		if len(c.want) == 1 && len(c.want[0]) == 6 && got != c.want[0] {
			t.Errorf("%s is %s, not %s", c.what, got, c.want[0])
		}
		says(t, c.what, got, c.want...)
	}
	serveStreams(t, f)
	at := serveFake(t, f)
	for _, args := range [][]string{{"db", "--", "prog"}, {"two", "-c", "side", "prog"}, {"-c", "app", "two", "prog"}} {
		if out, _, err := withInput(at, "", append([]string{"exec"}, args...)...); out != "no input\n" || err != nil {
			t.Errorf("exec %q: %q %v", args, out, err)
		}
	}
	_, problem := berth(t, at, "exec", "two", "-c", "none", "--", "sh")
	says(t, "a container that is not there", problem, "default/two", "none")
}

func TestStopUsesTheGracePeriodOfThePod(t *testing.T) {
	f := services()
	f.cts[2].Annotations = map[string]string{manifest.AnnotationGrace: "77"}
	at := serveFake(t, f)
	berth(t, at, "stop", "nginx")
	berth(t, at, "stop", "sql")
	berth(t, at, "stop", "-t", "3", "db")
	if want := []string{"stop bbb222 10", "stop bbc333 77", "stop bbc333 3", "stop-pod aab222"}; !slices.Equal(f.calls, want) {
		t.Errorf("got %q, want %q", f.calls, want)
	}
}

func TestRemoveRefusesWhatIsRunning(t *testing.T) {
	f := services()
	at := serveFake(t, f)
	_, problem := berth(t, at, "rm", "web")
	says(t, "rm of a pod", problem, "web", "READY", "--force")
	_, problem = berth(t, at, "rm", "nginx")
	says(t, "rm of a container", problem, "nginx", "RUNNING", "--force")
	_, problem = berth(t, at, "rm")
	says(t, "rm", problem, "--all")
	_, problem = berth(t, at, "rm", "-f", "--all", "sql") // it removed every pod
	says(t, "rm --all of one", problem, "--all", "sql")
	if len(f.calls) > 0 {
		t.Errorf("rm removed something: %q", f.calls)
	}
	berth(t, at, "rm", "sql")
	berth(t, at, "rm", "-f", "-a")
	if want := []string{"remove bbc333", "remove-pod aaa111", "remove-pod aab222"}; !slices.Equal(f.calls, want) {
		t.Errorf("got %q, want %q", f.calls, want)
	}
}

// What becomes of containers comes from the timeline, without the steps in between, and goes on
// until somebody ends it.
func TestEventsComeFromTheTimeline(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	root := New(Daemon{})
	root.SetArgs([]string{"-r", serveFake(t, services()), "events", "--since", "1h"})
	root.SetOut(writerFunc(func(b []byte) (int, error) {
		defer cancel() // one line is enough
		return out.Write(b)
	}))
	if err := root.ExecuteContext(ctx); err != nil {
		t.Error(err)
	}
	if got := out.String(); !strings.Contains(got, "default/db/sql: exit settled  (code=42)") || strings.Contains(got, "reported") {
		t.Errorf("%q", got)
	}
}

type writerFunc func(b []byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestEventsOfAnotherRuntime(t *testing.T) {
	f := services()
	f.events = []*runtimeapi.ContainerEventResponse{{
		ContainerId: "bbc333", ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, CreatedAt: 1,
		PodSandboxStatus: f.pods[1], ContainersStatuses: []*runtimeapi.ContainerStatus{f.cts[2]},
	}}
	out, problem := berth(t, serveFake(t, f), "events")
	says(t, "events", out+problem, "STOPPED", "bbc333", "default/db/sql", "137 OOMKilled")
}

func TestImages(t *testing.T) {
	f := newFake()
	at := serveFake(t, f)
	out, _ := berth(t, at, "pull", "x/y:1", "--creds", "me:se:cret")
	says(t, "pull", out, "sha256:pulled")
	if !slices.Equal(f.calls, []string{"pull x/y:1 me"}) {
		t.Errorf("got %q", f.calls)
	}
	_, problem := berth(t, at, "pull", "x", "--creds", "me")
	says(t, "--creds", problem, "USER:PASSWORD")
	_, problem = berth(t, at, "pull", "nowhere/x")
	if problem != "registry nowhere does not answer" {
		t.Errorf("an unreachable registry is reported as an unreachable service: %q", problem)
	}
	out, _ = berth(t, at, "import", "a.tar", "--ref", "r:1")
	says(t, "import", out, "a.tar as r:1", "left out: image other:1: it is for another node")
}

func TestNoServiceIsRunning(t *testing.T) {
	at := filepath.Join(t.TempDir(), "none")
	for _, args := range [][]string{{"ps"}, {"stop", "x"}, {"version"}, {"events"}, {"timeline", "x"}} {
		_, problem := berth(t, at, args...)
		if want := "berth does not answer at " + at + "; is `berth serve` running?"; problem != want {
			t.Errorf("%v: %q, want %q", args, problem, want)
		}
	}
	_, problem := berth(t, "localhost:1", "ps")
	says(t, "an endpoint that is not a socket", problem, "localhost:1", "unix:///")
}

const podYAML = `
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 4
  volumes: [{name: v, emptyDir: {}}]
  initContainers: [{name: first, image: a}, {name: second, image: a}]
  containers:
  - {name: one, image: b, imagePullPolicy: Always, args: ["$(IP)"], env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}
  - {name: two, image: a}
`

func play(t *testing.T, f *fake, text string, args ...string) (out, problem string, code int, dir string) {
	t.Helper()
	dir = t.TempDir()
	file := filepath.Join(dir, "pod.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := run(serveFake(t, f), append([]string{"play", file, "--log-dir", filepath.Join(dir, "l"), "--volume-dir", filepath.Join(dir, "v")}, args...)...)
	if err != nil {
		problem, code = client.Explain(err).Error(), ExitCode(err)
	}
	return out, problem, code, dir
}

func TestPlayRunsInitContainersFirst(t *testing.T) {
	f := newFake()
	f.ends = map[string]int32{"first": 0, "second": 0, "one": 0, "two": 3}
	f.images["b"] = &runtimeapi.Image{}
	out, problem, code, dir := play(t, f, podYAML, "--wait", "--rm")
	want := []string{
		"pull a default", "pull b default", "run pod0 ",
		"create first", "start first", "create second", "start second", "create one", "start one", "create two", "start two",
		"remove-pod pod0",
	}
	if !slices.Equal(f.calls, want) {
		t.Fatalf("got  %q\nwant %q\n%s", f.calls, want, problem)
	}
	says(t, "play", out, "pod pod0", "two ended with 3")
	if says(t, "play", problem, "3"); code != 3 {
		t.Errorf("the exit code is %d", code)
	}
	one := f.created[2]
	if got := string(one.GetEnvs()[0].GetValue()) + " " + one.GetArgs()[0]; got != "10.88.0.9 10.88.0.9" {
		t.Errorf("the pod's address is %q", got)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "v", "*")); len(left) > 0 {
		t.Errorf("play --rm leaves %v", left)
	}
	// What was looked at for runAsNonRoot and pulled is what runs, whatever the name stands for by
	// then.
	if got := f.created[0].GetImage(); got.GetImage() != "sha256:pulled" || got.GetUserSpecifiedImage() != "a" {
		t.Errorf("PROPERTIES 57: the container is made from %v", got)
	}
}

// The service got a path that was relative to the directory of the command, and a second play made
// a second pod of the same name without a word.
func TestPlayNamesPathsAsTheServiceSeesThemAndRunsAPodOnce(t *testing.T) {
	t.Chdir(t.TempDir())
	f := newFake()
	const text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: one, image: a}]}\n"
	out, problem, _, _ := play(t, f, text, "--log-dir", "logs", "--volume-dir", "volumes")
	if problem != "" {
		t.Fatal(out, problem)
	}
	if dir := f.sandbox.GetLogDirectory(); !filepath.IsAbs(dir) || !strings.Contains(dir, "/logs/") {
		t.Errorf("the service got the log directory %s", dir)
	}
	_, problem, code, _ := play(t, f, text)
	says(t, "a second play", problem, "default/p runs already", "berth rm -f pod0")
	if code != 1 || len(f.pods) != 1 {
		t.Errorf("exit code %d, %d pods", code, len(f.pods))
	}
}

// The service knows what to do with the archive of a checkpoint.
func TestPlayDoesNotPullAnArchive(t *testing.T) {
	f := newFake()
	f.ends = map[string]int32{"one": 0}
	const text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: one, image: /c.tar}]}\n"
	if _, problem, code, _ := play(t, f, text, "--wait"); code != 0 {
		t.Error(problem)
	}
	if want := []string{"run pod0 ", "create one", "start one"}; !slices.Equal(f.calls, want) || f.created[0].GetImage().GetImage() != "/c.tar" {
		t.Errorf("got %q, want %q", f.calls, want)
	}
	f = newFake()
	_, problem, _, _ := play(t, f, strings.Replace(text, "image: /c.tar", "image: /c.tar, securityContext: {runAsNonRoot: true}", 1))
	says(t, "runAsNonRoot", problem, "/c.tar", "runAsUser")
}

// A play that failed half-way left a stopped pod and said nothing about it.
func TestPlayRemovesWhatItMadeWhenAStepFails(t *testing.T) {
	f := newFake()
	f.ends = map[string]int32{"first": 9}
	out, problem, code, dir := play(t, f, podYAML)
	says(t, "the error", problem, "first", "9", "/logs/first/0.log")
	says(t, "play", out, "pod pod0 is removed", filepath.Join(dir, "l"))
	if code != 1 || slices.Contains(f.calls, "create second") || !slices.Contains(f.calls, "remove-pod pod0") {
		t.Errorf("exit code %d after %q", code, f.calls)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "v", "*")); len(left) > 0 {
		t.Errorf("play leaves %v", left)
	}
}

func TestPlayKeepsWhatItMadeIfAsked(t *testing.T) {
	f := newFake()
	f.ends = map[string]int32{"first": 9}
	out, problem, code, _ := play(t, f, podYAML, "--keep")
	says(t, "the error", problem, "first", "9")
	says(t, "play", out, "pod pod0 is left", "berth rm pod0")
	if code != 1 || slices.Contains(f.calls, "remove-pod pod0") || !slices.Contains(f.calls, "stop-pod pod0") {
		t.Errorf("exit code %d after %q", code, f.calls)
	}
}

// The volumes of a pod that is there already are not those of a play that fails.
func TestPlaySparesTheVolumesOfAnotherPod(t *testing.T) {
	f := newFake()
	dir := t.TempDir()
	precious := filepath.Join(dir, "fixed", "v")
	if err := os.MkdirAll(precious, 0o755); err != nil {
		t.Fatal(err)
	}
	f.refuseRun = status.Error(codes.AlreadyExists, "the pod exists")
	_, problem, _, _ := play(t, f, strings.Replace(podYAML, "name: p}", "name: p, uid: fixed}", 1), "--volume-dir", dir)
	says(t, "play", problem, "the pod exists")
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("the volumes are gone: %v", err)
	}
}

func TestPlayMakesNothingWithoutItsImages(t *testing.T) {
	for text, want := range map[string]string{
		strings.ReplaceAll(podYAML, "image: b", "image: nowhere/b"):                                                              "container one: pull image nowhere/b: registry nowhere does not answer",
		strings.ReplaceAll(podYAML, "imagePullPolicy: Always", "imagePullPolicy: Never"):                                         "is not on the node",
		strings.ReplaceAll(podYAML, "imagePullPolicy: Always", "imagePullPolicy: Always, securityContext: {runAsNonRoot: true}"): "runAsNonRoot",
	} {
		f := newFake()
		_, problem, _, _ := play(t, f, text)
		says(t, "play", problem, want)
		if slices.ContainsFunc(f.calls, func(s string) bool { return strings.HasPrefix(s, "run ") }) {
			t.Errorf("play made something: %q", f.calls)
		}
	}
}

func TestServeTakesItsSettingsFromFileFlagsAndSet(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, []byte("root = '/from-file'\nstate = '/s'\n[log]\nlevel = 'debug'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var got config.Config
	var out, log bytes.Buffer
	cmd := New(Daemon{Serve: func(_ context.Context, c config.Config, _ <-chan config.Config, ready func(), log *asynclog.Log) error {
		got = c
		log.Debug("hello")
		ready()
		return nil
	}})
	cmd.SetArgs([]string{"serve", "--config", file, "--root", "/from-flag", "--address", "/a.sock", "--cni-bin-dir", "/x", "--cni-bin-dir", "/y", "--metrics", "localhost:1", "--set", "lanes.backoff_max=3s"})
	cmd.SetOut(&out)
	cmd.SetErr(&log)
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		t.Fatal(err)
	}
	says(t, "serve", out.String(), "berth is ready on /a.sock\n")
	says(t, "the log", log.String(), "level=DEBUG msg=hello")
	if got.Root != "/from-flag" || got.State != "/s" || !slices.Equal(got.Network.BinDirs, []string{"/x", "/y"}) || got.Metrics.Address != "localhost:1" {
		t.Errorf("got %+v", got)
	}
	_, problem := berth(t, "/s", "serve", "--config", file, "--set", "lanes.backof_max=3s")
	says(t, "--set", problem, `"lanes.backoff_max"`)
	_, problem = berth(t, "/s", "serve", "--config", file, "--root", "here")
	says(t, "--root", problem, "root", "absolute")
}

// A user's berth serves streams beside its CRI socket, wherever that is, unless the user says
// where.
func TestStreamsAreServedBesideTheSocket(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	long := "/" + strings.Repeat("x", 95) + ".sock" // for a socket, and not for one beside it
	for _, tc := range []struct{ text, want string }{
		{"", "/a.sock.streams"},
		{"[streams]\nsocket = '/from-file'\n", "/from-file"},
		{"address = '" + long + "'\n", ""},
	} {
		if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var got config.Config
		cmd := New(Daemon{Serve: func(_ context.Context, c config.Config, _ <-chan config.Config, _ func(), _ *asynclog.Log) error {
			got = c
			return nil
		}})
		args := []string{"serve", "--config", file, "--" + streamsBeside}
		if tc.want != "" {
			args = append(args, "--address", "/a.sock")
		}
		cmd.SetArgs(args)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err != nil || got.Streams.Socket != tc.want {
			t.Errorf("%q: streams are served on %q: %v", tc.text, got.Streams.Socket, err)
		}
	}
}

// SIGHUP ended the service. The file is read again: what can change does, what needs a restart is
// named, and a file that cannot be used changes nothing.
func TestSIGHUPReadsTheSettingsAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hangup := func() {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	r, w := io.Pipe()
	lines := bufio.NewScanner(r)
	logged := func(what ...string) {
		t.Helper()
		for lines.Scan() {
			if all := lines.Text(); !slices.ContainsFunc(what, func(s string) bool { return !strings.Contains(all, s) }) {
				return
			}
		}
		t.Errorf("the log ended without %q", what)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	got := make(chan config.Config)
	cmd := New(Daemon{Serve: func(ctx context.Context, c config.Config, changes <-chan config.Config, _ func(), log *asynclog.Log) error {
		got <- c
		for {
			select {
			case c := <-changes:
				log.Debug("settings", "level", c.Log.Level)
				got <- c
			case <-ctx.Done():
				return nil
			}
		}
	}})
	write("")
	cmd.SetArgs([]string{"serve", "--config", file, "--root", "/from-flag"})
	cmd.SetOut(io.Discard)
	cmd.SetErr(w)
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	if c := <-got; c.Log.Level != "info" {
		t.Errorf("%+v", c)
	}

	drop := strings.TrimSuffix(file, "toml") + "conf.d"
	if err := errors.Join(os.Mkdir(drop, 0o700), os.WriteFile(filepath.Join(drop, "x.toml"), []byte("rot = 1\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	hangup()
	logged("level=ERROR", "cannot be used", filepath.Join(drop, "x.toml"), "rot")
	if err := os.WriteFile(filepath.Join(drop, "x.toml"), []byte("image.pinned = ['app']\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	write("root = '/elsewhere'\nstate = '/s'\n[log]\nlevel = 'debug'\n[image.auth.'registry.example']\nusername = 'me'\npassword = 'geheim'\n")
	hangup()
	logged("level=WARN", "need a restart", "state")
	logged("read again", "log.level", "image.auth")
	c := <-got
	if c.Log.Level != "debug" || string(c.Image.Auth["registry.example"].Password) != "geheim" || c.State == "/s" || c.Root != "/from-flag" || len(c.Image.Pinned) != 1 {
		t.Errorf("%+v", c)
	}
	logged("level=DEBUG", "settings") // the level holds
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	hangup()
	logged("level=WARN", "open to others", "passwords")
	<-got
	stop()
	go func() { _, _ = io.Copy(io.Discard, r) }()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestConfigCommands(t *testing.T) {
	out, _ := berth(t, "/s", "config", "default")
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	out2, problem := berth(t, "/s", "config", "show", file)
	says(t, "config show", out2, "# Set in "+file+", line ")
	if out2 = regexp.MustCompile(`# Set in .*\n`).ReplaceAllString(out2, ""); out2 != out || problem != "" {
		t.Errorf("show prints the defaults differently: %s\n%s", problem, out2)
	}
	out, _ = berth(t, "/s", "config", "check", file)
	says(t, "config check", out, "valid")
	drop := filepath.Join(filepath.Dir(file), "c.conf.d", "10-log.toml")
	if err := errors.Join(os.Mkdir(filepath.Dir(drop), 0o700), os.WriteFile(drop, []byte("[log]\nlevel = 'debug'\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	out, _ = berth(t, "/s", "config", "check", file)
	says(t, "config check", out, "valid", drop+" sets log.level\n")
	out, _ = berth(t, "/s", "config", "show", file)
	says(t, "config show", out, "# Set in "+drop+", line 2.\nlevel = 'debug'")
	if err := os.WriteFile(drop, []byte("[log]\nlevel = 'loud'\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, problem = berth(t, "/s", "config", "check", file)
	says(t, "config check", problem, drop+", line 2: log.level:")
	// PROPERTIES 66: a mistake in hosts.toml was found by the pull that it stops.
	hosts := filepath.Join(filepath.Dir(file), "certs.d", "registry.example", "hosts.toml")
	if err := errors.Join(os.MkdirAll(filepath.Dir(hosts), 0o700), os.WriteFile(hosts, []byte("server = 'https://a'\nservers = ['b']\n"), 0o600),
		os.WriteFile(drop, []byte("[image]\nregistry_dir = '"+filepath.Dir(filepath.Dir(hosts))+"'\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	_, problem = berth(t, "/s", "config", "check", file)
	says(t, "config check", problem, hosts+`, line 2: there is no setting "servers"`)
	if err := os.WriteFile(file, []byte("rot = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, problem = berth(t, "/s", "config", "check", file)
	says(t, "config check", problem, file, "line 1", `"rot"`, `"root"`)
}

// The help said that 0 lifts the limit, and the service gives up after CRI's default.
func TestTheHelpOfCheckpointSaysWhatTheServiceDoes(t *testing.T) {
	out, err := run("", "checkpoint", "--help")
	if want := "seconds after which the checkpoint is given up; 0: 60"; err != nil || !strings.Contains(out, want) {
		t.Errorf("%v: %s", err, out)
	}
}
