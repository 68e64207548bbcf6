// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/encoding/protowire"
)

// maxCore bounds CRIU's image of a process, in bytes.
const maxCore = 1 << 20

// Fields of CRIU's image of a process, and of the messages in it.
const (
	coreTask   = 3 // of the image: the process, left out for every thread but its first
	coreThread = 5 // and the thread, left out for a process that ended and was not reaped

	taskState                             = 1
	taskSeccomp, taskFilter, taskOOMScore = 11, 12, 14

	threadCreds   = 10
	threadSeccomp = 11

	credsUID, credsEUID, credsSUID, credsFSUID = 1, 3, 5, 7
	// between the first two: permitted and effective
	credsCapInh, credsCapBnd, credsCapAmb = 9, 12, 19
	credsLSM                              = 15
	credsNoNewPrivs                       = 18

	taskDead      = 2 // the state of a process that ended
	seccompFilter = 2 // the mode in which a filter decides
)

// may holds the privileges of a thread in a checkpoint.
type may struct {
	dead       bool // nothing: its process ended, and CRIU makes one that ends at once
	root       bool // one of its user IDs is 0
	caps       uint64
	noNewPrivs bool
	filtered   bool // by seccomp
	label      string
	oomScore   int // math.MaxInt if absent
}

// confine refuses the image of a process with more privileges than the container which is made for
// it, because an image from a registry does not have root's authority. Its seccomp filters are not
// checked.
func confine(r *io.SectionReader, s *specs.Spec) error {
	if s.Process == nil {
		return fmt.Errorf("the container has no process: %w", errdefs.ErrInvalidArgument)
	}
	m, err := mayOf(r)
	if err != nil || m.dead {
		return err
	}
	var bounding []string
	if s.Process.Capabilities != nil {
		bounding = s.Process.Capabilities.Bounding
	}
	known, unknown := cap.FromBitmap(m.caps)
	known = slices.DeleteFunc(known, func(c string) bool { return slices.Contains(bounding, c) })
	label := s.Process.SelinuxLabel
	if label == "" {
		label = s.Process.ApparmorProfile
	}
	var more []string
	if len(known)+len(unknown) > 0 {
		more = append(more, fmt.Sprintf("it has the capabilities %s", strings.Trim(fmt.Sprint(known, unknown), "[]")))
	}
	if m.root && s.Process.User.UID != 0 {
		more = append(more, fmt.Sprintf("it runs as root, and not as user %d", s.Process.User.UID))
	}
	if s.Process.NoNewPrivileges && !m.noNewPrivs {
		more = append(more, "it may gain privileges (allowPrivilegeEscalation)")
	}
	if s.Linux != nil && s.Linux.Seccomp != nil && !m.filtered {
		more = append(more, "it has no seccomp filter")
	}
	if label != "" && m.label != label {
		more = append(more, fmt.Sprintf("its AppArmor profile or SELinux label is %.100q, and not %q", m.label, label))
	}
	if score := s.Process.OOMScoreAdj; score != nil && m.oomScore < *score {
		more = append(more, fmt.Sprintf("its oom_score_adj is %d, and not %d", m.oomScore, *score))
	}
	if len(more) > 0 {
		return fmt.Errorf("it may do more than the pod asks for: %s: %w", strings.Join(more, "; "), errdefs.ErrPermissionDenied)
	}
	return nil
}

// mayOf reads the privileges of a thread. If a message comes twice, it is ambiguous, and refused.
func mayOf(r *io.SectionReader) (m may, err error) {
	if r.Size() > maxCore {
		return m, invalid("it has more than %d bytes", maxCore)
	}
	b, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
	if err != nil {
		return m, err
	}
	if len(b) < coreHeader || uint64(len(b)-coreHeader) < uint64(binary.LittleEndian.Uint32(b[8:])) {
		return m, invalid("it is cut off")
	}
	core := b[coreHeader : coreHeader+int(binary.LittleEndian.Uint32(b[8:]))]
	if m, err = ofTask(core); err != nil || m.dead {
		return m, err
	}
	thread, err := only(core, coreThread)
	if err != nil {
		return m, err
	}
	creds, err := only(thread, threadCreds)
	if err != nil {
		return m, err
	}
	err = fields(thread, func(f protowire.Number, v uint64, _ []byte) error {
		if f == threadSeccomp {
			m.filtered = v == seccompFilter
		}
		return nil
	})
	if err != nil {
		return m, err
	}
	words := map[protowire.Number]int{}
	// A user ID that is left out is 0.
	ids := map[protowire.Number]uint64{credsUID: 0, credsEUID: 0, credsSUID: 0, credsFSUID: 0}
	err = fields(creds, func(f protowire.Number, v uint64, b []byte) error {
		switch {
		case f >= credsCapInh && f <= credsCapBnd || f == credsCapAmb:
			if b != nil || words[f] > 1 || v > 1<<32-1 {
				return invalid("its capabilities are not two numbers")
			}
			m.caps |= v << (32 * words[f])
			words[f]++
		case f == credsLSM:
			m.label = string(b)
		case f == credsNoNewPrivs:
			m.noNewPrivs = v == 1
		default:
			if _, is := ids[f]; is {
				ids[f] = v
			}
		}
		return nil
	})
	for _, id := range ids {
		m.root = m.root || uint32(id) == 0
	}
	return m, err
}

// ofTask reads the properties of a process besides its threads.
func ofTask(core []byte) (m may, err error) {
	m.oomScore = math.MaxInt
	tasks, threads, states := 0, 0, 0
	err = fields(core, func(f protowire.Number, _ uint64, task []byte) error {
		switch f {
		case coreThread:
			threads++
		case coreTask:
			tasks++
			return fields(task, func(f protowire.Number, v uint64, _ []byte) error {
				switch f {
				case taskState:
					states++
					m.dead = v == taskDead
				case taskSeccomp, taskFilter: // of CRIU before 3.10; they would count instead of the thread's
					return invalid("its seccomp filter is that of the process and not of each thread")
				case taskOOMScore:
					m.oomScore = int(int32(v))
				}
				return nil
			})
		}
		return nil
	})
	m.dead = m.dead && tasks == 1 && states == 1 && threads == 0
	return m, err
}

// only returns the message in a field that a message has once.
func only(message []byte, field protowire.Number) (found []byte, err error) {
	n := 0
	err = fields(message, func(f protowire.Number, _ uint64, b []byte) error {
		if f == field {
			n++
			found = b
		}
		return nil
	})
	if err == nil && (n != 1 || found == nil) {
		err = invalid("it does not state the privileges of the process exactly once")
	}
	return found, err
}

// fields calls each with the fields of a message: with a number, or with bytes, which are not nil
// then.
func fields(message []byte, each func(f protowire.Number, v uint64, b []byte) error) error {
	for len(message) > 0 {
		f, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return invalid("it is not CRIU's image of a process: %v", protowire.ParseError(n))
		}
		message = message[n:]
		var v uint64
		var b []byte
		switch kind {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			if b, n = protowire.ConsumeBytes(message); b == nil {
				b = []byte{}
			}
		default:
			n = protowire.ConsumeFieldValue(f, kind, message)
		}
		if n < 0 {
			return invalid("it is not CRIU's image of a process: %v", protowire.ParseError(n))
		}
		if err := each(f, v, b); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}

// isCore reports whether a file of an archive is CRIU's image of a process.
func isCore(name string) bool { return strings.HasPrefix(name, imagesDir+"/core-") }

// confined checks the privileges of a process in an archive that came from an image, as confine
// does.
func confined(archive string, s *specs.Spec, name string, r *io.SectionReader) error {
	if !strings.HasPrefix(archive, receivedPrefix) || !isCore(name) {
		return nil
	}
	if err := confine(r, s); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
