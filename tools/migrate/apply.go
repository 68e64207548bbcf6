// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Host is a migration's access to a node, besides its files.
type Host interface {
	// Systemctl runs systemctl and returns its output.
	Systemctl(ctx context.Context, args ...string) (string, error)
	// Running returns the pods at a socket of CRI that have not ended. After an error they are
	// unknown.
	Running(ctx context.Context, endpoint string) ([]Pod, error)
	// Remove ends a pod and removes it.
	Remove(ctx context.Context, endpoint string, pod Pod) error
	// RuntimeReady returns nil if the runtime behind a socket of CRI reports that it is ready.
	RuntimeReady(ctx context.Context, endpoint string) error
	// NodeReady returns nil if the kubelet runs, is well by its port, if that is not 0, and has
	// told the cluster that the node is ready with the runtime behind a socket, as far as that can
	// be asked.
	NodeReady(ctx context.Context, endpoint string, healthz int) error
}

// Options of an apply and an undo.
type Options struct {
	Host       Host
	PodsMayEnd bool          // pods that run may be ended
	Within     time.Duration // how long a runtime, and the node, may take to be ready
	Out        io.Writer     // progress, as lines for a person

	at func(point string) // a test ends the process there
}

// mover carries one migration out, or takes it back.
type mover struct {
	Options
	root    string
	j       *journal
	undoing bool
	unready []error // the parts that were not ready in time after it was undone
}

// hook is called after each thing that was changed.
func (m *mover) hook(format string, args ...any) {
	if m.at != nil {
		m.at(fmt.Sprintf(format, args...))
	}
}

func (m *mover) say(format string, args ...any) { fmt.Fprintf(m.Out, format+"\n", args...) }

// begin keeps two migrations apart until it is given up, and makes sure that none has been at work
// since the journal was read, which nothing kept from it.
func begin(dir string, read *journal) (end func(), err error) {
	end, err = lock(dir)
	if err != nil {
		return nil, err
	}
	now, err := loadJournal(dir)
	if err == nil && !now.same(read) {
		err = errors.New("another berth migrate has been at work on this node meanwhile: run this again to see how the node is now")
	}
	if err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// lock keeps two migrations apart. It is given up with the process.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the journal: %w; run this as root", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the journal: %w; run this as root", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another berth migrate is at work on this node (%s): wait for it", f.Name()), f.Close())
	}
	return func() { f.Close() }, nil
}

// Apply carries a plan out. A step that fails undoes everything. A node that was migrated already
// is not an error; one on which a migration was cut off is.
func Apply(ctx context.Context, p *Plan, o Options) error {
	dir := journalDir(p.root, p.state)
	before, err := loadJournal(dir)
	if err != nil {
		return err
	}
	if before != nil && before.State == applied {
		fmt.Fprintf(o.Out, "This node was migrated from %s on %s: nothing is to be done. `berth migrate --undo` takes it back.\n", before.From, before.Began.Format(time.DateTime))
		return nil
	}
	if before != nil && before.State != undone {
		return fmt.Errorf("a migration that began on %s was cut off, and the node is between two runtimes: take it back with `berth migrate --undo`, and then apply again", before.Began.Format(time.DateTime))
	}
	if p.Nothing != "" {
		fmt.Fprintln(o.Out, p.Nothing)
		return nil
	}
	if err := p.Blocked(); err != nil {
		return err
	}
	if err := idle(ctx, o, p.Old, p.From, true); err != nil {
		return err
	}
	end, err := begin(dir, before)
	if err != nil {
		return err
	}
	defer end()
	if before != nil {
		if err := putAside(dir); err != nil {
			return err
		}
	}
	m := &mover{
		Options: o,
		root:    p.root,
		j: &journal{
			State:   applying,
			Began:   time.Now().UTC(),
			From:    p.From,
			Old:     p.Old,
			New:     p.New,
			Healthz: p.healthz,
			dir:     dir,
		},
	}
	if err := m.j.save(); err != nil {
		return err
	}
	m.hook("begun")
	for i, s := range p.Steps {
		m.say("%d of %d: %s %s", i+1, len(p.Steps), s.Do, s.What)
		if err := m.step(ctx, i+1, s); err != nil {
			return m.back(ctx, fmt.Errorf("%s %s: %w", s.Do, s.What, err))
		}
	}
	m.j.State = applied
	if err := m.j.save(); err != nil {
		return m.back(ctx, err)
	}
	m.hook("applied")
	return nil
}

// putAside keeps the files of a migration that was undone, for an investigation.
func putAside(dir string) error {
	for i := 1; ; i++ {
		aside := fmt.Sprintf("%s-undone-%d", dir, i)
		if _, err := os.Lstat(aside); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.Mkdir(aside, 0o700); err != nil {
			return fmt.Errorf("put the journal of an earlier migration aside: %w", err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("put the journal of an earlier migration aside: %w", err)
		}
		for _, e := range entries {
			if e.Name() == "lock" {
				continue
			}
			if err := os.Rename(filepath.Join(dir, e.Name()), filepath.Join(aside, e.Name())); err != nil {
				return fmt.Errorf("put the journal of an earlier migration aside: %w", err)
			}
		}
		return nil
	}
}

// idle returns why pods are in the way. If they have to be known, to be ended before others are
// made, nothing else will do.
func idle(ctx context.Context, o Options, endpoint, name string, known bool) error {
	if o.PodsMayEnd && !known {
		return nil
	}
	pods, err := o.Host.Running(ctx, endpoint)
	if err != nil && known {
		return fmt.Errorf("whether pods of %s run is not known: %w; start it, so that it can be asked, and can end them", name, err)
	}
	if err != nil {
		return fmt.Errorf("whether pods of %s run is not known: %w; start it, or go on without knowing by --pods-may-end", name, err)
	}
	if len(pods) > 0 && !o.PodsMayEnd {
		return fmt.Errorf("%d pods of %s run, and would be ended: %s. Drain the node, and allow that what is left ends with --pods-may-end", len(pods), name, list(pods))
	}
	return nil
}

func list(pods []Pod) string {
	const most = 10
	var names []string
	for _, p := range pods {
		names = append(names, p.String())
	}
	slices.Sort(names)
	if len(names) > most {
		names = append(names[:most], fmt.Sprintf("and %d more", len(pods)-most))
	}
	return strings.Join(names, ", ")
}

// step records an action, carries it out, and checks it.
func (m *mover) step(ctx context.Context, number int, s Step) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("it was interrupted: %w", context.Cause(ctx))
	}
	e := entry{Do: s.Do, What: s.What}
	var err error
	switch s.Do {
	case Write:
		e, err = m.j.prepare(m.root, number, s)
	case End, Clear:
	default:
		e.Active, e.Enabled, err = m.unit(ctx, s.What)
		if err == nil && s.Do == Enable && e.Active {
			var had []Pod
			had, err = m.Host.Running(ctx, m.j.New)
			for _, p := range had {
				e.Pods = append(e.Pods, p.ID)
			}
		}
	}
	if err != nil {
		return err
	}
	m.hook("%d prepared", number)
	m.j.Entries = append(m.j.Entries, e)
	if err := m.j.save(); err != nil {
		return err
	}
	m.hook("%d noted", number)
	if err := m.do(ctx, s, e); err != nil {
		return err
	}
	m.hook("%d done", number)
	m.j.Entries[len(m.j.Entries)-1].Done = true
	if err := m.j.save(); err != nil {
		return err
	}
	m.hook("%d noted as done", number)
	return nil
}

// do does a step, and checks that it has the effect that it is to have.
func (m *mover) do(ctx context.Context, s Step, e entry) error {
	switch s.Do {
	case Write:
		return e.write(m.root, s.body)
	case End:
		return m.end(ctx, s.What, nil)
	case Clear:
		return clearSocket(ctx, filepath.Join(m.root, s.What))
	case Stop:
		return m.be(ctx, false, s.What, "stop", s.What)
	case Disable:
		if err := m.systemctl(ctx, "disable", s.What); err != nil {
			return err
		}
		m.hook("disabled")
		return m.be(ctx, false, s.What, "stop", s.What)
	case Restart:
		return m.be(ctx, true, s.What, "restart", s.What)
	case Enable:
		if err := m.systemctl(ctx, "daemon-reload"); err != nil { // a drop-in file of the unit may be new
			return err
		}
		if err := m.systemctl(ctx, "enable", s.What); err != nil {
			return err
		}
		m.hook("enabled")
		// one that ran reads its settings
		if err := m.be(ctx, true, s.What, "restart", s.What); err != nil {
			return err
		}
		return m.within(ctx, func(ctx context.Context) error { return m.Host.RuntimeReady(ctx, m.j.New) })
	case Start:
		return m.start(ctx, s.What, m.j.New)
	}
	return fmt.Errorf("%q is no step", s.Do)
}

// clearSocket removes a socket that is not served. Anything else stays.
func clearSocket(ctx context.Context, name string) error {
	st, err := os.Lstat(name)
	if err != nil || st.Mode()&fs.ModeSocket == 0 {
		return nil // there is none
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", name)
	if err == nil {
		return conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return nil // unknown
	}
	return os.Remove(name)
}

// start starts the kubelet and waits until the node is ready.
func (m *mover) start(ctx context.Context, unit, endpoint string) error {
	if err := m.systemctl(ctx, "daemon-reload"); err != nil { // a flag may be in a unit
		return err
	}
	if err := m.be(ctx, true, unit, "start", unit); err != nil {
		return err
	}
	return m.within(ctx, func(ctx context.Context) error { return m.Host.NodeReady(ctx, endpoint, m.j.Healthz) })
}

// unit returns the state of a unit. An absent one is neither.
func (m *mover) unit(ctx context.Context, name string) (active, enabled bool, err error) {
	state, errActive := m.Host.Systemctl(ctx, "is-active", name) // it fails for a unit that is not
	boot, errBoot := m.Host.Systemctl(ctx, "is-enabled", name)
	if state == "" && errActive != nil {
		return false, false, fmt.Errorf("ask systemd about %s: %w", name, errors.Join(errActive, errBoot))
	}
	active = slices.Contains([]string{"active", "reloading", "activating"}, strings.TrimSpace(state))
	return active, strings.HasPrefix(strings.TrimSpace(boot), "enabled"), nil
}

func (m *mover) systemctl(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, m.Within)
	defer cancel()
	_, err := m.Host.Systemctl(ctx, args...)
	return err
}

// be runs systemctl, and checks that a unit is then as it is to be.
func (m *mover) be(ctx context.Context, running bool, unit string, args ...string) error {
	if err := m.systemctl(ctx, args...); err != nil {
		return err
	}
	active, _, err := m.unit(ctx, unit)
	if err != nil {
		return err
	}
	if active != running {
		return fmt.Errorf("after systemctl %s, %s is %s: look at journalctl -u %s", strings.Join(args, " "), unit,
			map[bool]string{true: "still active", false: "not active"}[active], unit)
	}
	return nil
}

// within tries until it succeeds, or until the time is over.
func (m *mover) within(ctx context.Context, ready func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, m.Within)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			err = fmt.Errorf("it is not ready within %s: %w", m.Within, err)
			if m.undoing { // the rest is taken back all the same
				m.say("    %v", err)
				m.unready = append(m.unready, err)
				return nil
			}
			return err
		case <-time.After(time.Second):
		}
	}
}

// end ends the pods at a socket, but those whose IDs are in keep.
func (m *mover) end(ctx context.Context, endpoint string, keep []string) error {
	pods, err := m.Host.Running(ctx, endpoint)
	if err != nil {
		// an unanswered question must not keep the node without a runtime
		if m.PodsMayEnd && m.undoing {
			m.say("    the pods at %s are not known and were not ended: %v", endpoint, err)
			return nil
		}
		return fmt.Errorf("whether pods run at %s is not known: %w", endpoint, err)
	}
	pods = slices.DeleteFunc(pods, func(p Pod) bool { return slices.Contains(keep, p.ID) })
	if len(pods) > 0 && !m.PodsMayEnd {
		return fmt.Errorf("%d pods run at %s that may not be ended: %s. Drain the node, or allow it with --pods-may-end", len(pods), endpoint, list(pods))
	}
	for _, p := range pods {
		m.say("    ends %s", p)
		if err := m.Host.Remove(ctx, endpoint, p); err != nil {
			return fmt.Errorf("end the pod %s: %w", p, err)
		}
		m.hook("ended")
	}
	return nil
}

// back takes everything back after a step that failed. It goes on when ctx has ended.
func (m *mover) back(ctx context.Context, why error) error {
	m.say("%v. Everything is taken back.", why)
	m.PodsMayEnd = true // those that berth has were made meanwhile
	if err := m.undo(context.WithoutCancel(ctx)); err != nil && m.j.State == undone {
		return fmt.Errorf("%w; %w", why, err)
	} else if err != nil {
		return fmt.Errorf("%w; and it could not be taken back as a whole: %w; run `berth migrate --undo`, which goes on with it", why, err)
	}
	return fmt.Errorf("%w; everything was taken back", why)
}

// Undo undoes a migration, even one that was cut off anywhere, or whose undoing was. root is the
// root of the node's files, and state the directory of berth's records there.
func Undo(ctx context.Context, root, state string, o Options) error {
	dir := journalDir(root, state)
	j, err := loadJournal(dir)
	if err != nil {
		return err
	}
	if j == nil {
		return fmt.Errorf("there is no migration to take back: %s has no journal", dir)
	}
	if j.State == undone {
		fmt.Fprintf(o.Out, "The migration of %s was taken back already: nothing is to be done.\n", j.Began.Format(time.DateTime))
		return nil
	}
	if j.State == applied {
		if err := idle(ctx, o, j.New, "berth", false); err != nil {
			return err
		}
	}
	end, err := begin(dir, j)
	if err != nil {
		return err
	}
	defer end()
	m := &mover{Options: o, root: root, j: j}
	if j.State != applied {
		m.PodsMayEnd = true // berth's pods were made by the interrupted migration
	}
	if err := m.undo(ctx); err != nil {
		return err
	}
	m.say("The node is as it was. Where kubeadm's annotation of it was changed, change it back:\n"+
		"    kubectl annotate node NODE --overwrite kubeadm.alpha.kubernetes.io/cri-socket=%s", j.Old)
	return nil
}

// undo takes the steps back, the last one first. Each is idempotent, and one that fails ends it.
func (m *mover) undo(ctx context.Context) error {
	m.undoing = true
	m.j.State = undoing
	if err := m.j.save(); err != nil {
		return err
	}
	m.hook("undoing")
	for i := len(m.j.Entries) - 1; i >= 0; i-- {
		e := m.j.Entries[i]
		m.say("takes back %d: %s %s", i+1, e.Do, e.What)
		if err := m.reverse(ctx, e); err != nil {
			return fmt.Errorf("take back %s %s: %w", e.Do, e.What, err)
		}
		m.hook("%d taken back", i+1)
	}
	m.j.State = undone
	if err := m.j.save(); err != nil {
		return err
	}
	m.hook("undone")
	if len(m.unready) > 0 {
		return fmt.Errorf("everything is as it was, and the node does not work yet: %w; look at journalctl -u kubelet", errors.Join(m.unready...))
	}
	return nil
}

// reverse takes one step back, whether it was done or not.
func (m *mover) reverse(ctx context.Context, e entry) error {
	switch e.Do {
	case Write:
		kept, err := m.j.restore(m.root, e)
		if kept != "" {
			m.say("    %s was changed after the migration: what it had is in %s", e.What, kept)
		}
		if err != nil || e.Restarts == "" {
			return err
		}
		m.hook("restored")
		if active, _, err := m.unit(ctx, e.Restarts); err != nil || !active {
			return err
		}
		return m.be(ctx, true, e.Restarts, "restart", e.Restarts)
	case End, Clear:
		return nil // the kubelet makes the pods again, and a runtime that starts its socket
	case Start:
		return m.be(ctx, false, e.What, "stop", e.What)
	case Stop:
		if !e.Active {
			return nil
		}
		return m.start(ctx, e.What, m.j.Old)
	case Restart:
		return nil // it is restarted again once its file is the one of before
	case Disable:
		if e.Enabled {
			if err := m.systemctl(ctx, "enable", e.What); err != nil {
				return err
			}
		}
		if !e.Active {
			return nil
		}
		if err := m.be(ctx, true, e.What, "start", e.What); err != nil {
			return err
		}
		return m.within(ctx, func(ctx context.Context) error { return m.Host.RuntimeReady(ctx, m.j.Old) })
	case Enable:
		if active, _, err := m.unit(ctx, e.What); err != nil {
			return err
		} else if active {
			if err := m.end(ctx, m.j.New, e.Pods); err != nil {
				return err
			}
		}
		if !e.Active {
			if err := m.be(ctx, false, e.What, "stop", e.What); err != nil {
				return err
			}
		}
		if !e.Enabled {
			return m.systemctl(ctx, "disable", e.What)
		}
		return nil
	}
	return fmt.Errorf("%q is no step; a newer berth may have written the journal", e.Do)
}
