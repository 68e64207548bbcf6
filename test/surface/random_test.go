// SPDX-License-Identifier: Apache-2.0

package surface

import (
	"flag"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

var (
	atRandom = flag.Int("requests", 2000, "how many random requests TestRequestsAtRandom sends")
	fromSeed = flag.Uint64("seed", 1, "the seed of the first of them")
)

// texts are strings that have been trouble somewhere, and some that are right.
var texts = []string{
	"", "x", "pod", "created", "runs", "..", "../../etc", "/", "/proc/self/fd/3", "/dev/null", "/nonexistent", "a/b", "a\x00b", "a\nb", "a=b;c=d",
	"-1", "0", "0-3,7", "18446744073709551616", "1e99", "10M", "2MB", "ALL", "CAP_CHOWN", "localhost/x", "runtime/default", "unconfined", "runc",
	"registry.example/app:1", "sha256:0123", "UPPER/x", "::1", "rw", "nosuid", "net.ipv4.ip_forward", "kernel.msgmax", "memory.high", "s0:c1,c2",
	"kubernetes.io/ingress-bandwidth", "système", "\u202e", strings.Repeat("a", 254), strings.Repeat("long/", 1000),
}

var numbers = []int64{0, 1, -1, 2, 80, 1000, 65535, 65536, 100000, 1 << 31, math.MaxInt32, math.MaxInt64, math.MinInt64, math.MinInt32, 1 << 40, -1000, 1001}

// change sets something in a request at random: a field, or something below it.
func change(r *rand.Rand, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	if fields.Len() == 0 {
		return
	}
	f := fields.Get(r.IntN(fields.Len()))
	switch {
	case r.IntN(10) == 0:
		m.Clear(f)
	case f.IsMap():
		v := m.NewField(f).Map().NewValue()
		if f.MapValue().Kind() == protoreflect.StringKind {
			v = protoreflect.ValueOfString(pick(r, texts))
		}
		m.Mutable(f).Map().Set(protoreflect.ValueOfString(pick(r, texts)).MapKey(), v)
	case f.IsList() && f.Message() != nil:
		list := m.Mutable(f).List()
		if list.Len() == 0 || r.IntN(3) == 0 {
			list.Append(list.NewElement())
		}
		change(r, list.Get(r.IntN(list.Len())).Message())
	case f.IsList():
		for range 1 + r.IntN(2) {
			m.Mutable(f).List().Append(scalar(r, f))
		}
	case f.Message() != nil:
		change(r, m.Mutable(f).Message())
	default:
		m.Set(f, scalar(r, f))
	}
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func scalar(r *rand.Rand, f protoreflect.FieldDescriptor) protoreflect.Value {
	n := pick(r, numbers)
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(pick(r, texts))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(pick(r, texts)))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(r.IntN(2) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(r.IntN(f.Enum().Values().Len()+1) - r.IntN(2)*77))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(n)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	}
	panic("CRI has a field of kind " + f.Kind().String() + ": say how to choose a value of it")
}

// randomCall is a request that somebody sends, with a few changes.
func randomCall(seed uint64, from []calls) (method string, wire []byte) {
	r := rand.New(rand.NewPCG(seed, 0)) // a seed that can be played again
	base := pick(r, from)
	method, wire, rest := base.next()
	for len(rest) > 0 && r.IntN(2) == 0 { // one of several
		method, wire, rest = rest.next()
	}
	for _, d := range Methods() {
		if string(d.Name()) != method {
			continue
		}
		m := dynamicpb.NewMessage(d.Input())
		if err := proto.Unmarshal(wire, m); err != nil {
			panic(err)
		}
		for range r.IntN(4) {
			change(r, m)
		}
		wire, err := proto.Marshal(m)
		if err != nil {
			panic(err)
		}
		return method, wire
	}
	panic("there is no method " + method)
}

// What real clients send, with changes at random: what berth does not know how to do it refuses
// with a reason. PROPERTIES 22.
func TestRequestsAtRandom(t *testing.T) {
	from := requests()
	const each = 20 // calls that a node gets: what one changes, the next ones find
	for seed := *fromSeed; seed < *fromSeed+uint64(*atRandom) && !t.Failed(); seed += each {
		inNode(t, func(t *testing.T, n *node) {
			for s := seed; s < seed+each; s++ {
				method, wire := randomCall(s, from)
				n.expectReason(method, wire)
			}
			if t.Failed() {
				t.Logf("to play it again: go test ./test/surface -run Random -args -seed %d -requests %d", seed, each)
			}
		})
	}
}
