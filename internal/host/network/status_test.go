// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// plugged is a network whose plug-ins answer as the test says.
type plugged struct {
	*Network
	mu     sync.Mutex
	answer func(ctx context.Context) error
	asked  int
}

func (p *plugged) say(answer func(ctx context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

func (p *plugged) questions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

func says(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

func hangs(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// plug runs a network in the bubble of a test.
func plug(t *testing.T, f func(t *testing.T, p *plugged)) {
	synctest.Test(t, func(t *testing.T) {
		bin, _ := fake(t)
		n, err := New(Config{
			ConfDir:  t.TempDir(),
			BinDirs:  []string{bin},
			CacheDir: filepath.Join(t.TempDir(), "cache"),
			Logger:   slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		p := &plugged{Network: n, answer: says(nil)}
		n.watch = func() (watcher, error) { return still{}, nil }
		n.ask = func(ctx context.Context, _ *libcni.NetworkConfigList, _ bool) error {
			p.mu.Lock()
			p.asked++
			answer := p.answer
			p.mu.Unlock()
			return answer(ctx)
		}
		p.use(t, "one")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- n.Run(ctx, noNotes{}) }()
		synctest.Wait()
		f(t, p)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func (p *plugged) use(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.cfg.ConfDir, "1.conflist"), conflist(name, ""), 0o600); err != nil {
		t.Fatal(err)
	}
	p.reload()
}

// expect waits for a while and compares what Status says.
func (p *plugged) expect(t *testing.T, after time.Duration, text string) {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	err := p.Status()
	if text == "" && err != nil || text != "" && (!errors.Is(err, errdefs.ErrUnavailable) || !strings.Contains(err.Error(), text)) {
		t.Errorf("%v, want %q", err, text)
	}
}

// PROPERTIES 53: NetworkReady was true while the plug-in said that it was not ready.
func TestANodeIsNotReadyWhileItsPluginSaysSo(t *testing.T) {
	plug(t, func(t *testing.T, p *plugged) {
		p.expect(t, 0, "")
		p.say(says(types.NewError(50, "no route to the controller", "since noon")))
		p.expect(t, statusInterval, "not ready: no route to the controller: since noon (CNI's code 50)")
		p.say(says(nil))
		p.expect(t, statusAgain, "")
		p.say(says(types.NewError(51, "limited connectivity", "")))
		p.expect(t, statusInterval, "limited connectivity")
	})
}

// PROPERTIES 53 and 33: a question that was not answered once is not an answer. A plug-in that never
// answers, or has gone, is said, and does not keep a client of Status waiting.
func TestAPluginThatDoesNotAnswerIsSaid(t *testing.T) {
	for what, answer := range map[string]func(context.Context) error{
		"hangs":   hangs,
		"crashes": says(errors.New("plug-in n: exit status 2")),
	} {
		t.Run(what, func(t *testing.T) {
			plug(t, func(t *testing.T, p *plugged) {
				p.say(answer)
				p.expect(t, statusInterval+time.Second, "") // the question is asked, and remains without an answer
				p.say(says(nil))
				p.expect(t, statusAgain+statusTimeout, "")
				p.say(answer)
				p.expect(t, statusInterval+silentAnswers*(statusAgain+statusTimeout), "cannot be asked whether it is ready")
				p.say(says(nil))
				p.expect(t, statusAgain+statusTimeout, "")
			})
		})
	}
}

// PROPERTIES 33: what berth lacks to ask says nothing about a plug-in, and nor does one that is of CNI 1.1
// and does not know the question.
func TestWhatSaysNothingAboutAPluginMakesNoNodeNotReady(t *testing.T) {
	for _, err := range []error{
		fmt.Errorf("start plug-in n: %w", unix.EMFILE),
		types.NewError(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND: STATUS", ""),
	} {
		plug(t, func(t *testing.T, p *plugged) {
			p.say(says(err))
			p.expect(t, 10*statusInterval, "")
		})
	}
}

// An answer is about one network: another one that is configured is asked at once.
func TestANetworkThatIsConfiguredAnewIsAskedAtOnce(t *testing.T) {
	plug(t, func(t *testing.T, p *plugged) {
		p.say(says(types.NewError(50, "not yet", "")))
		p.expect(t, statusInterval, "not yet")
		p.say(says(types.NewError(50, "nor this one", "")))
		p.use(t, "two")
		p.expect(t, 0, "nor this one")
		p.say(says(nil))
		before := p.questions()
		p.reload() // nothing has changed
		p.expect(t, 0, "nor this one")
		if p.questions() != before {
			t.Error("it was asked again although nothing has changed")
		}
	})
}

// statusOf asks the plug-ins of a network once.
func statusOf(t *testing.T, n *Network) error {
	t.Helper()
	n.askStatus(t.Context())
	return n.Status()
}

// PROPERTIES 53: a plug-in of CNI 1.1 is asked by its program, and one of a version before is not. A
// program that has been removed is noticed with any version.
func TestAPluginIsAskedByItsProgram(t *testing.T) {
	for version, want := range map[string]string{"1.1.0": "the agent is away", "1.0.0": ""} {
		t.Run(version, func(t *testing.T) {
			bin := t.TempDir()
			script := `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}' ;;
STATUS) echo '{"cniVersion":"1.1.0","code":50,"msg":"the agent is away"}'; exit 1 ;;
esac
`
			list := `{"cniVersion":"` + version + `","name":"n","plugins":[{"type":"scripted"}]}`
			n := build(t, func(c *Config) {
				c.BinDirs, c.Default = []string{bin}, nil
				if err := errors.Join(os.WriteFile(bin+"/scripted", []byte(script), 0o755), os.MkdirAll(c.ConfDir, 0o755), os.WriteFile(c.ConfDir+"/1.conflist", []byte(list), 0o600)); err != nil {
					t.Fatal(err)
				}
			})
			if err := statusOf(t, n); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%v", err)
			}
			if err := os.Remove(bin + "/scripted"); err != nil {
				t.Fatal(err)
			}
			var err error
			for range silentAnswers {
				err = statusOf(t, n)
			}
			if err == nil || !strings.Contains(err.Error(), `failed to find plugin "scripted"`) {
				t.Errorf("its program was removed: %v", err)
			}
		})
	}
}

// PROPERTIES 53: the plug-ins of berth's own bridge are asked, too, if they have STATUS.
func TestTheDefaultBridgeIsAsked(t *testing.T) {
	n := build(t, nil)
	if err := statusOf(t, n); err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for name, status := range map[string]string{"bridge": `echo '{"cniVersion":"1.1.0","code":50,"msg":"no bridges today"}'; exit 1`, "portmap": ":"} {
		script := `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}' ;;
STATUS) ` + status + ` ;;
esac
`
		if err := os.WriteFile(bin+"/"+name, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n = build(t, func(c *Config) { c.BinDirs = []string{bin} })
	if err := statusOf(t, n); err == nil || !strings.Contains(err.Error(), "no bridges today") {
		t.Errorf("%v", err)
	}
}

// PROPERTIES 53: the bridge of the pods was deleted, and nothing said so.
func TestABridgeThatIsDeletedIsSaid(t *testing.T) {
	var log strings.Builder
	n := build(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	said := func() int { return strings.Count(log.String(), "bridge was deleted") }
	if err := statusOf(t, n); err != nil || said() != 0 {
		t.Fatalf("%v, %s", err, log.String())
	}
	for round := range 2 {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: n.cfg.Default.Name}}
		if err := netlink.LinkAdd(bridge); err != nil {
			t.Fatal(err)
		}
		if err := statusOf(t, n); err != nil || said() != round {
			t.Errorf("%v, %s", err, log.String())
		}
		if err := netlink.LinkDel(bridge); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := statusOf(t, n); err != nil || said() != round+1 {
				t.Errorf("%v, said %d times in round %d", err, said(), round)
			}
		}
	}
}
