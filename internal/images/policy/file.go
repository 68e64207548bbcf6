// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"cmp"
	"crypto"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"

	"berth/internal/base/inroot"
)

const (
	maxFile  = 1 << 20 // of a policy or a file of keys, in bytes
	maxRules = 1000
	maxName  = 64 // of a rule, in bytes: it is the label of a metric
)

// The time that each verifier has.
const (
	defaultVerifierTimeout = 10 * time.Second
	maxVerifierTimeout     = time.Minute
)

// document is a policy file as it is written.
type document struct {
	VerifierTimeout duration `toml:"verifier_timeout"`
	Rules           []entry  `toml:"rules"`
}

type entry struct {
	Name         string              `toml:"name"`
	Namespaces   *[]namespacePattern `toml:"namespaces"`
	Registries   []registryPattern   `toml:"registries"`
	Repositories []repositoryPattern `toml:"repositories"`
	Action       action              `toml:"action"`
	DigestOnly   bool                `toml:"digest_only"`
	Signatures   signatures          `toml:"signatures"`
	Keys         []absolute          `toml:"keys"`
	VerifierDir  absolute            `toml:"verifier_dir"`
	Restore      bool                `toml:"restore"`
}

// Text is checked as it is read, so that the error has the line. These are no strings, which the
// decoder would set without asking.
type (
	action     struct{ text string }
	signatures struct{ text string }
	absolute   struct{ path string }
	duration   struct{ time.Duration }
)

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *action) UnmarshalText(b []byte) error {
	a.text = string(b)
	if a.text != "allow" && a.text != "deny" {
		return fmt.Errorf("action: %q is not allow or deny", b)
	}
	return nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *signatures) UnmarshalText(b []byte) error {
	s.text = string(b)
	if s.text != "required" && s.text != "none" {
		return fmt.Errorf("signatures: %q is not required or none", b)
	}
	return nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *absolute) UnmarshalText(b []byte) error {
	a.path = string(b)
	if !filepath.IsAbs(string(b)) {
		return fmt.Errorf("%q is not an absolute path", b)
	}
	return nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err == nil && (v <= 0 || v > maxVerifierTimeout) {
		err = fmt.Errorf("%s is not more than 0 and at most %s", v, maxVerifierTimeout)
	}
	d.Duration = v
	return err
}

// Parse reads a policy, which is TOML. read returns the content of a file of keys. The error names
// the wrong line, or the wrong rule; it is ErrInvalidArgument.
func Parse(b []byte, read func(path string) ([]byte, error)) (*Policy, error) {
	var doc document
	err := toml.NewDecoder(bytes.NewReader(b)).DisallowUnknownFields().Decode(&doc)
	var strict *toml.StrictMissingError
	var bad *toml.DecodeError
	switch {
	case errors.As(err, &strict):
		var errs []error
		for _, e := range strict.Errors {
			row, _ := e.Position()
			errs = append(errs, fmt.Errorf("line %d: %s is not a key of a policy: %w", row, strings.Join(e.Key(), "."), errdefs.ErrInvalidArgument))
		}
		return nil, errors.Join(errs...)
	case errors.As(err, &bad):
		row, col := bad.Position()
		return nil, fmt.Errorf("line %d, column %d: %w: %w", row, col, err, errdefs.ErrInvalidArgument)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	p := &Policy{VerifierTimeout: cmp.Or(doc.VerifierTimeout.Duration, defaultVerifierTimeout)}
	if len(doc.Rules) == 0 {
		return nil, fmt.Errorf("it has no rules: %w", errdefs.ErrInvalidArgument)
	}
	if len(doc.Rules) > maxRules {
		return nil, fmt.Errorf("it has %d rules, more than %d: %w", len(doc.Rules), maxRules, errdefs.ErrInvalidArgument)
	}
	names := map[string]bool{}
	for i, e := range doc.Rules {
		r, err := e.rule(read)
		if err == nil && names[r.Name] {
			err = errors.New("an earlier rule has that name")
		}
		if err == nil && r.everything() && i != len(doc.Rules)-1 {
			err = errors.New("it is for every image, so that no rule after it decides anything")
		}
		if err != nil {
			return nil, fmt.Errorf("rule %d %q: %w: %w", i+1, e.Name, err, errdefs.ErrInvalidArgument)
		}
		names[r.Name] = true
		p.Rules = append(p.Rules, r)
	}
	if last := p.Rules[len(p.Rules)-1]; !last.everything() {
		return nil, fmt.Errorf("rule %d %q is the last and not for every image; say what holds for all others by a last rule with registries = ['*'] and without namespaces: %w",
			len(p.Rules), last.Name, errdefs.ErrInvalidArgument)
	}
	return p, nil
}

// rule checks a rule as it is written.
func (e entry) rule(read func(path string) ([]byte, error)) (*Rule, error) {
	r := &Rule{
		Name:         e.Name,
		Allow:        e.Action.text == "allow",
		DigestOnly:   e.DigestOnly,
		Restore:      e.Restore,
		registries:   e.Registries,
		repositories: e.Repositories,
	}
	if e.Namespaces != nil {
		r.namespaces = *e.Namespaces
	}
	required := e.Signatures.text == "required"
	switch {
	case e.Name == "":
		return nil, errors.New("it has no name, by which refusals call it")
	case len(e.Name) > maxName, strings.ContainsFunc(e.Name, func(c rune) bool { return !unicode.IsPrint(c) }):
		return nil, fmt.Errorf("its name has more than %d bytes, or characters that cannot be printed", maxName)
	case e.Action.text == "":
		return nil, errors.New("action is missing; it is allow or deny")
	case len(e.Registries)+len(e.Repositories) == 0:
		return nil, errors.New("it names neither registries nor repositories; registries = ['*'] is all of them")
	case e.Namespaces != nil && len(*e.Namespaces) == 0:
		return nil, errors.New("namespaces is empty; leave it out if the rule is for all")
	case !r.Allow && (e.DigestOnly || e.Signatures.text != "" || e.Restore):
		return nil, errors.New("it denies images, and says which of them it allows")
	case required && len(e.Keys) == 0 && e.VerifierDir.path == "":
		return nil, errors.New("signatures are required, and neither keys nor verifier_dir says whose")
	case !required && (len(e.Keys) > 0 || e.VerifierDir.path != ""):
		return nil, errors.New("it has keys or verifier_dir, and signatures is not required")
	}
	r.VerifierDir = e.VerifierDir.path
	for _, key := range e.Keys {
		b, err := read(key.path)
		var keys []crypto.PublicKey
		if err == nil {
			keys, err = parseKeys(b)
		}
		if err != nil {
			return nil, fmt.Errorf("keys: %s: %w", key.path, err)
		}
		r.Keys = append(r.Keys, keys...)
	}
	var err error
	r.identity, err = identify(r.Keys)
	return r, err
}

// Load reads a policy from a file, with the keys that it names.
func Load(path string) (*Policy, error) {
	p, _, err := load(path)
	return p, err
}

// load is Load. It also returns the stamps of the files that it read, in any case: when one of them
// changes, the answer may, too.
func load(path string) (*Policy, []stamp, error) {
	stamps := []stamp{stampOf(path)}
	b, err := readFile(path)
	if err != nil {
		return nil, stamps, err
	}
	p, err := Parse(b, func(key string) ([]byte, error) {
		stamps = append(stamps, stampOf(key))
		return readFile(key)
	})
	if err != nil {
		return nil, stamps, fmt.Errorf("%s: %w", path, err)
	}
	p.File = path
	return p, stamps, nil
}

// stamp identifies a version of a file without reading it.
type stamp struct {
	path              string
	inode             uint64
	size              int64
	modified, changed time.Time // zero if there is no file
}

// stampOf looks at a file, and through links: an administrator's tools may replace a link.
func stampOf(path string) stamp {
	s := stamp{path: path}
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil {
		s.inode, s.size = st.Ino, st.Size
		s.modified, s.changed = time.Unix(st.Mtim.Unix()), time.Unix(st.Ctim.Unix())
	}
	return s
}

// readFile reads a file that decides which images run on this node: others than root, or this user,
// must not be able to write to it.
func readFile(path string) ([]byte, error) {
	f, err := inroot.OpenGiven(path, maxFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := checkWriters(path, st); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile { // it grew meanwhile
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return b, err
}

// checkWriters returns an error if others than root, or this user, may write to a file.
func checkWriters(path string, st os.FileInfo) error {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if ok && sys.Uid != 0 && int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to the user %d, who could allow any image; run chown root on it", path, sys.Uid)
	}
	if mode := st.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("%s has the mode %o: whoever may write to it could allow any image; run chmod go-w on it", path, mode)
	}
	return nil
}

// badReference is the error of a text that is not a reference.
func badReference(ref string, err error) error {
	return fmt.Errorf("image reference %q: %w: %w", ref, err, errdefs.ErrInvalidArgument)
}
