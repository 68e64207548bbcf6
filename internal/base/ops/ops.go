// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/internal/base/event"
)

// Kind is the kind of an operation.
type Kind string

// The kinds of calls, and of the work that goes on after them.
const (
	Run         Kind = "run" // of a sandbox
	Create      Kind = "create"
	Start       Kind = "start"
	Stop        Kind = "stop"
	Remove      Kind = "remove"
	Update      Kind = "update"
	Exec        Kind = "exec"
	Attach      Kind = "attach"
	Forward     Kind = "port-forward"
	Checkpoint  Kind = "checkpoint"
	Pull        Kind = "pull"
	Import      Kind = "import"
	RemoveImage Kind = "remove-image"
	Call        Kind = "call" // any other that changes something
	Read        Kind = "read" // a call that changes nothing
)

// The kinds of work that berth begins by itself, and of parts.
const (
	Step       Kind = "step"       // of a lane
	Background Kind = "background" // of the node
	Plugin     Kind = "plugin"     // a call of a plug-in: CNI, NRI, a verifier, a snapshotter
	Containerd Kind = "containerd" // a call of containerd
	Shim       Kind = "shim"
	Registry   Kind = "registry"
	Disk       Kind = "disk"   // a file system that may not answer
	Signal     Kind = "signal" // a process was sent a signal, and its end is waited for
	Wait       Kind = "wait"
)

// Object is the object of an operation, as far as it is known.
type Object struct {
	ID    string      // of the sandbox or container, or the beginning of it
	Names event.Names // of the same
	Image string      // its name, or the path of an archive
}

// Work describes an operation that begins.
type Work struct {
	Kind Kind
	// What names the thing that is called or waited for, such as "CNI ADD of bridge"; the method of
	// a call; the step of a lane.
	What string
	// Of is the object; the empty fields of a part are those of its operation.
	Of Object
	// Until is when the operation is given up, or goes on regardless; zero: the deadline of the
	// context.
	Until time.Time
	// Then names the next action at that instant, such as "SIGKILL".
	Then string
}

// Operation is an operation under way.
type Operation struct {
	Number uint64
	PartOf uint64 // 0 for one that is not a part of another
	Work
	By    event.Client // the client that asked for it; zero: berth
	Since time.Time
	// Of a step that waits for its next attempt, or that has failed before:
	Tries int
	Err   string
}

// Program returns the name of the program of a command. Its arguments may be secrets.
func Program(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0][strings.LastIndexByte(args[0], '/')+1:]
}

// Age returns how long the operation has been under way.
func (o Operation) Age() time.Duration { return time.Since(o.Since) }

// Op is an operation that has begun. A nil Op is one that is not listed.
type Op struct {
	list *List
	now  Operation   // guarded by list.mu
	note *time.Timer // nil if its beginning is not noted
	span func(error) // ends its span; nil without one
	err  error       // with which it ends, for its span
}

// most is how many operations are listed.
const most = 8192

// long is how long an operation takes before the history has it, and a call that only reads before
// it is listed.
const long = time.Second

// noteAfter is how long a wait goes on before the history has its beginning, too. Of what is under
// way when the machine dies there is no end to note.
const noteAfter = 10 * time.Second

// Config has the connections of a list. Each may be nil.
type Config struct {
	// Names returns the names of a sandbox or container.
	Names func(id string) (event.Names, bool)
	// Steps returns the steps of lanes, also of those that wait for their next attempt.
	Steps func() []Operation
	// Note takes an event about an object, "" for the node. It must not block.
	Note func(id string, e event.Event)
	// Ended takes each operation that ends. It must not block.
	Ended func(o Operation, took time.Duration)
	// Span begins the span of a part, in a trace; nil if there is no tracing. It must not block.
	Span func(ctx context.Context, w Work) (_ context.Context, end func(error))
}

// List holds the operations that are under way. The zero value is an empty list.
type List struct {
	mu   sync.Mutex
	cfg  Config
	last uint64
	byNo map[uint64]*Op
	left int // operations that are under way and not listed
}

// Connect sets the connections of l. Operations that have begun before are in the list.
func (l *List) Connect(cfg Config) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cfg = cfg
}

type opKey struct{}

// Of returns the operation that ctx belongs to, nil for none.
func Of(ctx context.Context) *Op {
	op, _ := ctx.Value(opKey{}).(*Op)
	return op
}

// Begin begins an operation of its own. The caller calls End when it is over.
func (l *List) Begin(ctx context.Context, w Work) (context.Context, *Op) {
	return l.begin(ctx, nil, w)
}

// Begin begins a part of the operation that ctx belongs to. Without one, nothing is listed. The
// caller calls End when the part is over.
func Begin(ctx context.Context, w Work) (context.Context, *Op) {
	of := Of(ctx)
	if of == nil {
		return ctx, nil
	}
	return of.list.begin(ctx, of, w)
}

// Part begins a part of the operation that ctx belongs to, or an operation of its own. The caller
// calls End when it is over. It is for work that begins for a call or by itself.
func (l *List) Part(ctx context.Context, w Work) (context.Context, *Op) {
	if Of(ctx) != nil {
		return Begin(ctx, w)
	}
	return l.Begin(ctx, w)
}

func (l *List) begin(ctx context.Context, of *Op, w Work) (context.Context, *Op) {
	if w.Until.IsZero() {
		w.Until, _ = ctx.Deadline()
	}
	op := &Op{list: l, now: Operation{Work: w, By: event.ClientOf(ctx), Since: time.Now()}}
	if span, work := l.add(op, of); span != nil {
		ctx, op.span = span(ctx, work)
	}
	return context.WithValue(ctx, opKey{}, op), op
}

// add lists op as a part of another operation, or of none. It returns the function that begins its
// span, if it has one, which is called without the lock.
func (l *List) add(op, of *Op) (span func(context.Context, Work) (context.Context, func(error)), w Work) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if of != nil {
		op.now.PartOf = of.now.Number
		op.now.Of.inherit(of.now.Of)
		op.now.By = cmp.Or(op.now.By, of.now.By)
	}
	l.last++
	op.now.Number = l.last
	if l.byNo == nil {
		l.byNo = map[uint64]*Op{}
	}
	if len(l.byNo) < most {
		l.byNo[op.now.Number] = op
	} else {
		l.left++
	}
	if op.now.noted() {
		op.note = time.AfterFunc(noteAfter, op.takesLong)
		span = l.cfg.Span
	}
	return span, op.now.Work
}

// inherit fills the empty fields of o from the object of the operation that it is a part of.
func (o *Object) inherit(of Object) {
	if o.ID == "" && o.Names == (event.Names{}) {
		o.ID, o.Names = of.ID, of.Names
	}
	o.Image = cmp.Or(o.Image, of.Image)
}

// Until changes the instant at which the operation is given up, and the action at that instant.
func (o *Op) Until(at time.Time, then string) {
	if o == nil {
		return
	}
	o.list.mu.Lock()
	defer o.list.mu.Unlock()
	o.now.Work.Until, o.now.Then = at, then
}

// Waits names the thing that the operation waits for, and since when; "" if it has no part.
func (o *Op) Waits() string {
	if o == nil {
		return ""
	}
	var waits []string
	list, _ := o.list.Snapshot()
	of := map[uint64][]Operation{}
	for _, p := range list {
		of[p.PartOf] = append(of[p.PartOf], p)
	}
	now := time.Now()
	for _, p := range leaves(parts(of, Operation{Number: o.now.Number})) {
		waits = append(waits, p.waits(now))
	}
	return strings.Join(waits, ", and ")
}

// Failed notes the error with which the operation is about to end, nil for none, and returns it. The
// caller is the one that calls End next.
func (o *Op) Failed(err error) error {
	if o != nil {
		o.err = err
	}
	return err
}

// End ends the operation. If it took longer than a second, and its end is not an event of its own,
// it is noted.
func (o *Op) End() {
	if o == nil {
		return
	}
	if o.note != nil {
		o.note.Stop()
	}
	l := o.list
	l.mu.Lock()
	if _, listed := l.byNo[o.now.Number]; listed {
		delete(l.byNo, o.now.Number)
	} else if l.left > 0 {
		l.left--
	}
	ended, cfg := o.now, l.cfg
	l.mu.Unlock()
	if o.span != nil {
		o.span(o.err)
	}
	took := ended.Age()
	if cfg.Ended != nil {
		cfg.Ended(ended, took)
	}
	if took < long || cfg.Note == nil || !ended.noted() {
		return
	}
	cfg.Note(ended.Of.ID, event.TookLong{
		What:  ended.phrase(),
		Image: ended.Of.Image,
		By:    ended.By,
		Took:  took,
	})
}

// takesLong notes that the operation is still under way.
func (o *Op) takesLong() {
	o.list.mu.Lock()
	now, cfg := o.now, o.list.cfg
	o.list.mu.Unlock()
	if cfg.Note != nil {
		cfg.Note(now.Of.ID, event.TakesLong{What: now.phrase(), Image: now.Of.Image, By: now.By, For: noteAfter})
	}
}

// noted reports whether an operation that takes long is noted, and its end. Of calls and steps the
// history has events of their own, and of an exec the access log.
func (o Operation) noted() bool {
	return slices.Contains([]Kind{Plugin, Containerd, Shim, Registry, Disk, Wait}, o.Kind)
}

// Snapshot returns the operations that are under way, the oldest first, and the number of those
// that are not listed.
func (l *List) Snapshot() (list []Operation, left int) {
	l.mu.Lock()
	cfg, left := l.cfg, l.left
	for _, op := range l.byNo {
		list = append(list, op.now)
	}
	l.mu.Unlock()
	// After the list was read: a step that begins its attempt meanwhile is in one of both.
	if cfg.Steps != nil {
		list = append(list, stepsBeside(list, cfg.Steps())...)
	}
	list = slices.DeleteFunc(list, func(o Operation) bool { return o.Kind == Read && o.Age() < long })
	for i, o := range list {
		if o.Of.Names == (event.Names{}) && o.Of.ID != "" && cfg.Names != nil {
			list[i].Of.Names, _ = cfg.Names(o.Of.ID)
		}
	}
	slices.SortStableFunc(list, func(x, y Operation) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Number, y.Number))
	})
	return list, left
}

// Attrs returns an object for a line of a log, as keys and values, with its names as far as they
// are known.
func (l *List) Attrs(of Object) (attrs []any) {
	l.mu.Lock()
	cfg := l.cfg
	l.mu.Unlock()
	if of.Names == (event.Names{}) && of.ID != "" && cfg.Names != nil {
		of.Names, _ = cfg.Names(of.ID)
	}
	if of.Names.Pod != "" {
		attrs = append(attrs, "pod", of.Names.Namespace+"/"+of.Names.Pod)
	}
	if of.Names.Container != "" {
		attrs = append(attrs, "container", of.Names.Container)
	}
	if of.ID != "" {
		attrs = append(attrs, "id", of.ID)
	}
	if of.Image != "" {
		attrs = append(attrs, "image", of.Image)
	}
	return attrs
}

// stepsBeside returns the steps that are not in the list, which has the attempts in flight.
func stepsBeside(list, steps []Operation) []Operation {
	return slices.DeleteFunc(steps, func(s Operation) bool {
		return slices.ContainsFunc(list, func(o Operation) bool {
			return o.Kind == Step && o.What == s.What && o.Of.ID == s.Of.ID
		})
	})
}

// About returns the operations of list that concern an object: a container, or a pod with its
// containers.
func About(list []Operation, of Object) []Operation {
	return slices.DeleteFunc(slices.Clone(list), func(o Operation) bool { return !o.Of.concerns(of) })
}
