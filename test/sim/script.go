// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Play plays a script: one statement a line, # begins a comment, and the first lines describe its
// subject. Names are p1 for a pod, p1/c1 or c1 for a container.
//
//	run p1 [handler=vm] [attempt=1] RunPodSandbox
//	create p1/c1 [adds=SYS_BOOT]    CreateContainer, with a capability
//	start p1/c1 [attempt=1]         CreateContainer, if it is not there, and StartContainer
//	update p1/c1 memory=1048576     UpdateContainerResources
//	stop NAME [timeout=10s]         StopContainer or StopPodSandbox
//	remove NAME                     RemoveContainer or RemovePodSandbox
//	exit c1 code=42 [oom]           its process ends
//	exit c1 code=129 first=0        and its first thread with another code, which a pidfd has
//	oom c1                          the OOM killer ends a process in it, and not its init
//	fail OP [NAME] [times=2]        calls of an operation fail; operations are named in the journal
//	stall OP [NAME] [times=1] for=60s
//	stall OP abandoned for=60s      if its caller gives up, it is carried out a minute later
//	lose OP [NAME]                  it takes place, and its caller gets an error
//	swallow [events=1] [notices=1]  shims' exit events, or the kernel's notices, are lost
//	kill berth|containerd|shim [p1] as SIGKILL does
//	stop berth                      as SIGTERM does
//	boot berth|containerd
//	reboot                          of the machine, after which containerd runs, and no berth
//	clock -1h                       the clock of the machine is set
//	disk full|ok
//	kernel exact|blind              whether it reports exit codes; must come first
//	keeper                          a service manager keeps the pidfds; must come first
//	subscribe, unsubscribe          to container events; boot berth subscribes
//	advance 10s
//	heal                            ends fail, stall, swallow and a full disk
//	expect c1 STATE [CODE] [REASON] [released] [attempts=3]
//	expect c1 memory=1048576        both its status and its cgroup have this limit
//	expect c1 gone
//	expect c1 lasted=90s            from its start to its end, or until now
//	expect-why c1 TEXT              TEXT is in the answer of why
//	expect-timeline c1              its events are in the order of what happened, and their times are
//	expect-feed NAME STOPPED count=1
//
// A statement that begins with & is made in the background. One that begins with ! must fail.
// Everything else must succeed.
func (s *Story) Play(script io.Reader) error {
	in := bufio.NewScanner(script)
	for n := 1; in.Scan(); n++ {
		text, comment, _ := strings.Cut(in.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			s.transcript.text(strings.TrimSpace(comment))
			continue
		}
		if err := s.statement(text); err != nil {
			return fmt.Errorf("line %d: %s: %w", n, text, err)
		}
	}
	s.turn()
	return in.Err()
}

func (s *Story) statement(text string) error {
	if rest, ok := strings.CutPrefix(text, "&"); ok {
		st, err := parse(strings.TrimSpace(rest))
		if err != nil {
			return err
		}
		time.Sleep(time.Millisecond) // what is under way belongs to the step before
		s.transcript.step(text)
		s.Background(func() error {
			err := s.do(st)
			s.transcript.answer(rest, err)
			return err
		})
		time.Sleep(time.Millisecond) // it is under way
		return nil
	}
	s.turn()
	rest, fails := strings.CutPrefix(text, "!")
	st, err := parse(strings.TrimSpace(rest))
	if err != nil {
		return err
	}
	s.transcript.step(text)
	err = s.do(st)
	s.transcript.answer(strings.TrimPrefix(text, "!"), err)
	if fails {
		if err == nil {
			return fmt.Errorf("it succeeded")
		}
		return nil
	}
	return err
}

// statement is one line: a verb, words, and settings.
type statement struct {
	verb  string
	words []string
	set   map[string]string
}

func parse(text string) (statement, error) {
	f := strings.Fields(text)
	st := statement{verb: f[0], set: map[string]string{}}
	for _, w := range f[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			st.set[k] = v
		} else {
			st.words = append(st.words, w)
		}
	}
	return st, nil
}

func (st statement) word(i int) string {
	if i < len(st.words) {
		return st.words[i]
	}
	return ""
}

func (st statement) has(word string) bool {
	return slices.Contains(st.words, word)
}

func (st statement) number(key string, or int) (int, error) {
	v, ok := st.set[key]
	if !ok {
		return or, nil
	}
	return strconv.Atoi(v)
}

func (st statement) duration(key string) (time.Duration, error) {
	v, ok := st.set[key]
	if !ok {
		return 0, nil
	}
	return time.ParseDuration(v)
}

func (s *Story) do(st statement) error {
	name := st.word(0)
	times, err := st.number("times", 1)
	if err != nil {
		return err
	}
	on := s.ID(st.word(1)) // of fail, stall, lose: "" for any
	rules := st.verb == "fail" || st.verb == "stall" || st.verb == "lose"
	if rules && st.word(1) != "" && st.word(1) != "abandoned" && on == "" {
		return fmt.Errorf("%s is not there yet", st.word(1))
	}
	if attempt, err := st.number("attempt", -1); err != nil {
		return err
	} else if attempt >= 0 {
		s.again(name, uint32(attempt))
	}
	switch st.verb {
	case "run":
		return s.RunPod(name, st.set["handler"])
	case "create":
		if add := st.set["adds"]; add != "" {
			return s.CreateWith(name, add)
		}
		return s.Create(name)
	case "start":
		if s.ID(name) == "" {
			if err := s.Create(name); err != nil {
				return err
			}
		}
		return s.Start(name)
	case "update":
		memory, err := st.number("memory", 0)
		if err != nil {
			return err
		}
		return s.Update(name, int64(memory))
	case "remove":
		return s.Remove(name)
	case "exit":
		code, err := st.number("code", 0)
		first, ferr := st.number("first", -1)
		if err == nil && first >= 0 && !s.World.ExitApart(s.ID(name), uint32(code), uint32(first)) {
			err = fmt.Errorf("%s does not run", name)
		}
		if err = errors.Join(err, ferr); err != nil || first >= 0 {
			return err
		}
		if !s.World.Exit(s.ID(name), uint32(code), st.has("oom")) {
			err = fmt.Errorf("%s does not run", name)
		}
		return err
	case "oom":
		s.World.OOM(s.ID(name))
	case "fail":
		s.World.Fail(name, on, times)
	case "stall":
		d, err := st.duration("for")
		if err != nil {
			return err
		}
		if st.has("abandoned") {
			s.World.Abandon(name, "", d)
		} else {
			s.World.Stall(name, on, times, d)
		}
	case "lose":
		s.World.Lose(name, on)
	case "swallow":
		events, err := st.number("events", 0)
		if err != nil {
			return err
		}
		notices, err := st.number("notices", 0)
		if err != nil {
			return err
		}
		s.World.Swallow(events, notices)
	case "stop", "kill", "boot":
		return s.upOrDown(st)
	case "disk":
		s.World.DiskFull(name == "full")
	case "kernel":
		s.World.Exact = name == "exact"
	case "keeper":
		s.World.Keeper = true
	case "subscribe":
		s.Subscribe()
	case "unsubscribe":
		s.Unsubscribe()
	case "reboot":
		return s.reboot()
	case "clock":
		by, err := time.ParseDuration(name)
		if err != nil {
			return err
		}
		s.World.SetClock(by)
	case "advance":
		d, err := time.ParseDuration(name)
		if err != nil {
			return err
		}
		time.Sleep(d)
	case "heal":
		s.World.Heal()
	case "expect":
		return s.expect(st)
	case "expect-why":
		return s.expectWhy(st)
	case "expect-timeline":
		return s.expectTimeline(name)
	case "expect-feed":
		return s.expectFeed(st)
	default:
		return fmt.Errorf("no such verb")
	}
	return nil
}

func (s *Story) upOrDown(st statement) error {
	switch what := st.verb + " " + st.word(0); what {
	case "kill berth":
		return s.Kill()
	case "stop berth":
		return s.Stop()
	case "boot berth":
		return s.Boot()
	case "kill containerd":
		s.World.StopContainerd()
	case "boot containerd":
		s.World.StartContainerd()
	case "kill shim":
		if !s.World.KillShim(s.ID(st.word(1))) {
			return fmt.Errorf("it has none")
		}
	default:
		if st.verb != "stop" {
			return fmt.Errorf("no such thing")
		}
		d, err := st.duration("timeout")
		if err != nil {
			return err
		}
		return s.StopUnit(st.word(0), d)
	}
	return nil
}

// expect waits a millisecond, in which pending work comes to its end, and looks.
func (s *Story) expect(st statement) error {
	time.Sleep(time.Millisecond)
	name := st.word(0)
	got, err := s.Status(name)
	if err != nil {
		return err
	}
	if st.word(1) == "gone" {
		if got != nil {
			return fmt.Errorf("it is %s", got.GetState())
		}
		return nil
	}
	if got == nil {
		return fmt.Errorf("it is gone")
	}
	if want, err := st.duration("lasted"); err != nil || want > 0 {
		return errors.Join(err, s.expectLasted(got, want))
	}
	if want, err := st.number("memory", -1); err != nil {
		return err
	} else if want >= 0 {
		return s.expectMemory(name, int64(want))
	}
	state := strings.TrimPrefix(got.GetState().String(), "CONTAINER_")
	if state != st.word(1) {
		return fmt.Errorf("it is %s", state)
	}
	for _, w := range st.words[2:] {
		code, numeric := strconv.Atoi(w)
		switch {
		case w == "released":
			if left := s.World.Held(s.ID(name)); left != "" {
				return fmt.Errorf("there is still its %s", left)
			}
		case numeric == nil && int(got.GetExitCode()) != code, numeric != nil && got.GetReason() != w:
			return fmt.Errorf("it ended with %d %s", got.GetExitCode(), got.GetReason())
		}
	}
	if want, err := st.number("attempts", -1); err != nil {
		return err
	} else if n := s.World.Calls("delete-task", s.ID(name)); want >= 0 && n != want {
		return fmt.Errorf("its task was deleted in %d attempts", n)
	}
	return nil
}

func (s *Story) expectFeed(st statement) error {
	time.Sleep(time.Millisecond)
	what := runtimeapi.ContainerEventType(runtimeapi.ContainerEventType_value["CONTAINER_"+st.word(1)+"_EVENT"])
	want, err := st.number("count", 1)
	if err != nil {
		return err
	}
	if n := s.Watch.Published(s.ID(st.word(0)), what); n != want {
		return fmt.Errorf("it was published %d times", n)
	}
	return nil
}
