// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// noNotes drops the events of pods.
type noNotes struct{}

func (noNotes) HostPortsRestored(string)    {}
func (noNotes) HostPortsLost(string, error) {}

// noted keeps the events of pods.
type noted struct{ events []string }

func (n *noted) HostPortsRestored(id string) { n.events = append(n.events, id+" restored") }
func (n *noted) HostPortsLost(id string, err error) {
	n.events = append(n.events, id+" lost: "+err.Error())
}

// onAnotherHost runs a test in a thread with a network namespace of its own, which stands for the
// host: its rules can be flushed without harm. iptables writes into a firewall there.
func onAnotherHost(t *testing.T, firewall string, f func(t *testing.T)) {
	t.Helper()
	useFirewall(t, firewall)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with its goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		run(t, "ip", "link", "set", "lo", "up")
		f(t)
	}()
	<-done
}

// useFirewall lets the program iptables write into a firewall from now on.
func useFirewall(t *testing.T, firewall string) {
	t.Helper()
	programs, err := programsOf(t.TempDir(), firewall)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// natRules returns the rules of the table nat that publish ports or masquerade.
func natRules(t *testing.T) (rules []string) {
	t.Helper()
	for line := range strings.Lines(run(t, "iptables", "-t", "nat", "-S")) {
		if strings.HasPrefix(line, "-A") {
			rules = append(rules, strings.TrimSpace(line))
		}
	}
	slices.Sort(rules)
	return rules
}

// firewalld, ufw and nft remove all rules when they load their own.
//
// PROPERTIES 67
func TestHostPortsComeBackAfterAFlush(t *testing.T) {
	for _, firewall := range []string{legacy, nfTables} {
		for what, flush := range map[string][][]string{
			"all":       {{"-F"}, {"-X"}},
			"one chain": {{"-F", "PREROUTING"}},
			"a pod's":   {{"-F", "CNI-HOSTPORT-DNAT"}},
		} {
			t.Run(firewall+" "+what, func(t *testing.T) {
				onAnotherHost(t, firewall, func(t *testing.T) {
					n := build(t, nil)
					for i, id := range []string{"first", "second"} {
						connectPod(t, n, Pod{ID: id, Ports: []PortMapping{{HostPort: int32(18080 + i), ContainerPort: 80, Protocol: "tcp"}}})
					}
					was := natRules(t)
					before, err := firewallMark()
					if err != nil {
						t.Fatal(err)
					}
					for _, args := range flush {
						run(t, "iptables", append([]string{"-t", "nat"}, args...)...)
					}
					if now, err := firewallMark(); err != nil || now == before {
						t.Errorf("the flush is not noticed: %q and %q, %v", before, now, err)
					}
					var notes noted
					if !n.mend(t.Context(), &notes) {
						t.Error("an attempt failed")
					}
					if now := natRules(t); !slices.Equal(now, was) {
						t.Errorf("rules after the flush:\n%s\nbefore:\n%s", strings.Join(now, "\n"), strings.Join(was, "\n"))
					}
					if want := []string{"first restored", "second restored"}; !slices.Equal(notes.events, want) {
						t.Errorf("noted %q, want %q", notes.events, want)
					}
					notes = noted{}
					if !n.mend(t.Context(), &notes) || len(notes.events) > 0 {
						t.Errorf("a second look noted %q", notes.events)
					}
				})
			})
		}
	}
}

// Rules may be flushed while berth is away.
//
// PROPERTIES 67
func TestHostPortsOfAnEarlierBerthComeBack(t *testing.T) {
	onAnotherHost(t, nfTables, func(t *testing.T) {
		n := build(t, nil)
		p, r := connectPod(t, n, Pod{ID: "older", Ports: []PortMapping{{HostPort: 18080, ContainerPort: 80, Protocol: "tcp"}}})
		was := natRules(t)
		for name, flush := range map[string]func(){
			"whole":   func() {},
			"flushed": func() { run(t, "iptables", "-t", "nat", "-F") },
		} {
			flush()
			next, err := New(n.cfg)
			if err != nil {
				t.Fatal(err)
			}
			next.Restore(p, r)
			var notes noted
			if !next.mend(t.Context(), &notes) {
				t.Error("an attempt failed")
			}
			if now := natRules(t); !slices.Equal(now, was) {
				t.Errorf("%s: rules:\n%s\nbefore:\n%s", name, strings.Join(now, "\n"), strings.Join(was, "\n"))
			}
			if (len(notes.events) > 0) != (name == "flushed") {
				t.Errorf("%s: noted %q", name, notes.events)
			}
		}
	})
}

// A host may switch from one firewall to the other while pods run.
//
// PROPERTIES 67
func TestRulesAreRemovedWhereTheyWereMade(t *testing.T) {
	for from, to := range map[string]string{legacy: nfTables, nfTables: legacy} {
		t.Run(from, func(t *testing.T) {
			onAnotherHost(t, from, func(t *testing.T) {
				n := build(t, nil)
				p := Pod{ID: "switched", Name: "p", Namespace: "ns", UID: "u", NetNS: pinned(t), Ports: []PortMapping{{HostPort: 18080, ContainerPort: 80, Protocol: "tcp"}}}
				r, err := n.Setup(t.Context(), p)
				if err != nil {
					t.Fatal(err)
				}
				was := os.Getenv("PATH")
				useFirewall(t, to)
				if err := n.Teardown(context.Background(), p, r); err != nil {
					t.Error(err)
				}
				t.Setenv("PATH", was)
				for _, rule := range natRules(t) {
					if strings.Contains(rule, "switched") || strings.Contains(rule, podChain) {
						t.Errorf("rule left in the %s firewall: %s", from, rule)
					}
				}
			})
		})
	}
}

// No rules are made for a pod that is being disconnected: they would lead to the next pod that has
// its address.
//
// PROPERTIES 67
func TestAPodThatIsDisconnectedIsNotPublishedAgain(t *testing.T) {
	onAnotherHost(t, nfTables, func(t *testing.T) {
		n := build(t, nil)
		p := Pod{ID: "leaving", Name: "p", Namespace: "ns", UID: "u", NetNS: pinned(t), Ports: []PortMapping{{HostPort: 18080, ContainerPort: 80, Protocol: "tcp"}}}
		r, err := n.Setup(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		pods := n.published.all() // as a look has them that began before
		if err := n.Teardown(context.Background(), p, r); err != nil {
			t.Fatal(err)
		}
		for _, pub := range pods {
			if _, err := n.publishAgain(t.Context(), pub, ruleSet{}, true, noNotes{}); err != nil {
				t.Error(err)
			}
		}
		for _, rule := range natRules(t) {
			if strings.Contains(rule, "leaving") {
				t.Errorf("rule of a pod that is gone: %s", rule)
			}
		}
	})
}

// The plug-ins of another program's network were called each minute, though nothing had changed.
//
// PROPERTIES 67
func TestANetworkIsCheckedWhenSomethingHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bin, notes := fake(t)
		n := build(t, func(c *Config) { c.BinDirs, c.Default, c.Groups = []string{bin}, nil, nil })
		pod := Pod{ID: "other", Name: "p", Namespace: "ns", UID: "u", NetNS: "/none", Ports: []PortMapping{{HostPort: 1, ContainerPort: 1, Protocol: "tcp"}}}
		n.Restore(pod, Result{Conf: conflist("net", "x")})
		var last looks
		for i, step := range []struct {
			mark   string
			after  time.Duration
			checks int // so far
		}{
			{"a", 0, 1},
			{"a", 2 * checkInterval, 1},
			{"b", 0, 2},
			{"c", time.Second, 2},
			{"c", checkInterval, 3},
			{"c", 2 * checkInterval, 3},
		} {
			time.Sleep(step.after)
			n.look(t.Context(), step.mark, &last, noNotes{})
			b, err := os.ReadFile(notes)
			if got := strings.Count(string(b), "CHECK "); got != step.checks {
				t.Errorf("step %d: %d checks, want %d: %v", i, got, step.checks, err)
			}
		}
	})
}

// A program that starts is asked once, and another one in its place is asked, too.
func TestIPTablesIsAskedOnceForItsVersion(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	var v iptablesVersion
	for i, want := range []string{legacy, nfTables, legacy} {
		script := fmt.Sprintf("#!/bin/sh\necho x >> %s/asked\necho 'iptables v1.8.9 (%s)'\n", dir, want)
		if err := errors.Join(os.WriteFile(dir+"/new", []byte(script), 0o700), os.Rename(dir+"/new", dir+"/iptables")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got, err := v.now(t.Context()); got != want || err != nil {
				t.Errorf("%q and not %q: %v", got, want, err)
			}
		}
		if b, _ := os.ReadFile(dir + "/asked"); strings.Count(string(b), "x") != i+1 {
			t.Errorf("asked %d times for %d programs", strings.Count(string(b), "x"), i+1)
		}
	}
}

func TestTheOldFirewallIsNotLoadedToBeAsked(t *testing.T) {
	onAnotherHost(t, nfTables, func(t *testing.T) {
		if _, err := firewallMark(); err != nil {
			t.Error(err)
		}
		if has, err := hasLegacyTable("nat"); err != nil || has {
			t.Errorf("a look made the legacy table: %v, %v", has, err)
		}
	})
}
