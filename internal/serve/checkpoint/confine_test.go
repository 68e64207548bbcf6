// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// creds are what CRIU's image of a process says that it may do.
type creds struct {
	uid, nnp, seccomp uint64
	caps              []uint64 // of each set, in two words
	label             string
	twice             bool   // says it twice
	task              []byte // what is said of the process, besides its threads
	dead              bool   // there is no thread
}

// number and text append a field to a message.
func number(b []byte, f protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, f, protowire.VarintType), v)
}

func text(b []byte, f protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, f, protowire.BytesType), v)
}

func (c creds) core() string {
	var said []byte
	for f := protowire.Number(1); f <= 8; f++ {
		said = number(said, f, c.uid)
	}
	for f := protowire.Number(credsCapInh); f <= credsCapBnd; f++ {
		for _, w := range c.caps {
			said = number(said, f, w)
		}
	}
	if c.label != "" {
		said = text(said, credsLSM, []byte(c.label))
	}
	said = number(said, credsNoNewPrivs, c.nnp)
	thread := text(number(nil, 2, 0), threadCreds, said)
	if c.twice {
		thread = text(thread, threadCreds, said)
	}
	thread = number(thread, threadSeccomp, c.seccomp)
	message := number(nil, machineField, machines[runtime.GOARCH])
	if c.task != nil {
		message = text(message, coreTask, c.task)
	}
	if !c.dead {
		message = text(message, coreThread, thread)
	}
	b := binary.LittleEndian.AppendUint32(nil, imageMagic)
	b = binary.LittleEndian.AppendUint32(b, coreMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(message)))
	return string(append(b, message...))
}

// PROPERTIES 32: the process of a checkpoint from an image has no more than the container that is made
// for it, whatever the checkpoint says, and that is found before anything is started. An archive of
// root's on this node may have it.
func TestACheckpointFromAnImageMayNoMoreThanItsContainer(t *testing.T) {
	const chown = 1 << unix.CAP_CHOWN
	spec := func() *specs.Spec {
		return &specs.Spec{
			Process: &specs.Process{
				NoNewPrivileges: true,
				User:            specs.User{UID: 1000},
				Capabilities:    &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN", "CAP_BPF"}},
				ApparmorProfile: "ours",
				OOMScoreAdj:     new(-100),
			},
			Linux: &specs.Linux{Seccomp: &specs.LinuxSeccomp{}},
		}
	}
	alive, dead := number(nil, taskState, 1), number(nil, taskState, taskDead)
	good := creds{task: alive, uid: 1000, nnp: 1, seccomp: seccompFilter, caps: []uint64{chown, 1 << (unix.CAP_BPF - 32)}, label: "ours"}
	change := func(f func(*creds)) string {
		c := good
		f(&c)
		return c.core()
	}
	long := good.core() + strings.Repeat("x", maxCore)
	for what, tt := range map[string]struct {
		core, says string
		is         func(error) bool
	}{
		"no more":                 {good.core(), "", nil},
		"less":                    {change(func(c *creds) { c.caps = nil }), "", nil},
		"root":                    {change(func(c *creds) { c.uid = 0 }), "root", errdefs.IsPermissionDenied},
		"root, in many bits":      {change(func(c *creds) { c.uid = 1 << 32 }), "root", errdefs.IsPermissionDenied},
		"a capability":            {change(func(c *creds) { c.caps = []uint64{chown | 1<<unix.CAP_SYS_ADMIN, 0} }), "CAP_SYS_ADMIN", errdefs.IsPermissionDenied},
		"a high capability":       {change(func(c *creds) { c.caps = []uint64{0, 1 << (unix.CAP_PERFMON - 32)} }), "CAP_PERFMON", errdefs.IsPermissionDenied},
		"an unknown capability":   {change(func(c *creds) { c.caps = []uint64{0, 1 << 31} }), "63", errdefs.IsPermissionDenied},
		"three words":             {change(func(c *creds) { c.caps = []uint64{0, 0, 1} }), "two numbers", errdefs.IsInvalidArgument},
		"privileges to gain":      {change(func(c *creds) { c.nnp = 0 }), "allowPrivilegeEscalation", errdefs.IsPermissionDenied},
		"no filter":               {change(func(c *creds) { c.seccomp = 0 }), "seccomp", errdefs.IsPermissionDenied},
		"another profile":         {change(func(c *creds) { c.label = "unconfined" }), "unconfined", errdefs.IsPermissionDenied},
		"no profile":              {change(func(c *creds) { c.label = "" }), "AppArmor", errdefs.IsPermissionDenied},
		"nobody reaped it":        {creds{task: dead, dead: true}.core(), "", nil},
		"neither dead nor alive":  {creds{task: alive, dead: true}.core(), "once", errdefs.IsInvalidArgument},
		"dead, then alive":        {creds{task: number(dead, taskState, 1), dead: true}.core(), "once", errdefs.IsInvalidArgument},
		"dead and runs as root":   {change(func(c *creds) { c.task, c.uid = dead, 0 }), "root", errdefs.IsPermissionDenied},
		"a thread":                {change(func(c *creds) { c.task = nil }), "", nil},
		"an old field, no filter": {change(func(c *creds) { c.task = number(alive, taskSeccomp, 0) }), "seccomp", errdefs.IsInvalidArgument},
		"as easy to kill":         {change(func(c *creds) { c.task = number(alive, taskOOMScore, ^uint64(99)) }), "", nil},
		"harder to kill":          {change(func(c *creds) { c.task = number(alive, taskOOMScore, ^uint64(998)) }), "oom_score_adj", errdefs.IsPermissionDenied},
		"says it twice":           {change(func(c *creds) { c.twice = true }), "once", errdefs.IsInvalidArgument},
		"does not say it at all":  {core(byte(machines[runtime.GOARCH])), "once", errdefs.IsInvalidArgument},
		"is cut off":              {good.core()[:len(good.core())-1], "cut off", errdefs.IsInvalidArgument},
		"is long":                 {long, "bytes", errdefs.IsInvalidArgument},
	} {
		files := sound()
		files[1] = file("checkpoint/core-1.img", good.core())
		b := tarOf(t, append(files, file("checkpoint/core-7.img", tt.core))...) // another thread
		a := Archives{Dir: t.TempDir()}
		archive, done, err := a.Receive(t.Context(), bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		err = a.Unpack(t.Context(), archive, t.TempDir(), spec())
		done()
		if (tt.is == nil) != (err == nil) || err != nil && (!tt.is(err) || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %v", what, err)
		}
		if what == "is cut off" {
			continue
		}
		if err := a.Unpack(t.Context(), written(t, b), t.TempDir(), spec()); err != nil {
			t.Errorf("%s, of root's: %v", what, err)
		}
	}
}
