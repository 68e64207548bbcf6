// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

// hostsTable holds the fields that a hosts.toml of the certs.d layout may have for a registry, or
// for one of the hosts that are asked in its place.
type hostsTable struct {
	Server       string         `toml:"server"`
	Capabilities []string       `toml:"capabilities"`
	CA           any            `toml:"ca"`
	Client       any            `toml:"client"`
	SkipVerify   *bool          `toml:"skip_verify"`
	Header       map[string]any `toml:"header"`
	OverridePath bool           `toml:"override_path"`
	DialTimeout  string         `toml:"dial_timeout"`
}

// CheckRegistries returns the mistakes in the hosts.toml files of a directory, each with its file
// and line. containerd's code would log them and ask the registry itself, past the mirrors and
// certificates that the operator has configured. A directory that does not exist has none, and nor
// has one that is closed to this user: a pull that needs it names that.
func CheckRegistries(dir string) (errs []error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !absent(err) && !errors.Is(err, os.ErrPermission) {
		return []error{fmt.Errorf("read the configurations of registries: %w", err)}
	}
	for _, e := range entries {
		errs = append(errs, CheckHosts(filepath.Join(dir, e.Name(), "hosts.toml"))...)
	}
	return errs
}

// CheckHosts returns the mistakes in one hosts.toml. A file that does not exist has none.
func CheckHosts(file string) (errs []error) {
	b, err := os.ReadFile(file)
	if absent(err) {
		return nil
	}
	if err != nil {
		return []error{err}
	}
	bad := func(line int, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s, line %d: %w: %w", file, line, fmt.Errorf(format, args...), errdefs.ErrInvalidArgument))
	}
	var all struct {
		hostsTable
		Host map[string]hostsTable `toml:"host"`
	}
	err = toml.NewDecoder(bytes.NewReader(b)).DisallowUnknownFields().Decode(&all)
	var strict *toml.StrictMissingError
	var syntax *toml.DecodeError
	switch {
	case errors.As(err, &strict):
		for _, e := range strict.Errors {
			row, _ := e.Position()
			bad(row, "there is no setting %q", strings.Join(e.Key(), "."))
		}
		return errs
	case errors.As(err, &syntax):
		row, _ := syntax.Position()
		bad(row, "%w", err)
		return errs
	case err != nil:
		bad(1, "%w", err)
		return errs
	}
	lines := map[string]int{}
	eachKey(b, func(path []string, line int, _ bool) { lines[strings.Join(path, "\x00")] = line })
	check := func(path []string, server string, t hostsTable) {
		at := func(key string) int { return max(1, lines[strings.Join(append(slices.Clone(path), key), "\x00")]) }
		if !strings.HasPrefix(server, "http") {
			server = "https://" + server
		}
		if u, err := url.Parse(server); err != nil || u.Host == "" && len(path)+len(t.Server) > 0 || u.Scheme != "http" && u.Scheme != "https" {
			line := at("server")
			if len(path) > 0 {
				line = max(1, lines[strings.Join(path, "\x00")])
			}
			bad(line, "%q is not a URL of a registry", server)
		}
		for _, c := range t.Capabilities {
			if !slices.Contains([]string{"pull", "resolve", "push", "referrers"}, strings.ToLower(c)) {
				bad(at("capabilities"), "capability %q is not pull, resolve, push or referrers", c)
			}
		}
		if _, err := time.ParseDuration(t.DialTimeout); t.DialTimeout != "" && err != nil {
			bad(at("dial_timeout"), "%q is not a duration such as 5s", t.DialTimeout)
		}
		for key, value := range map[string]any{"ca": t.CA, "client": t.Client} {
			files, ok := filesIn(value)
			if !ok {
				bad(at(key), "%s is neither a file nor a list of files", key)
			}
			for _, name := range files {
				if !filepath.IsAbs(name) {
					name = filepath.Join(filepath.Dir(file), name)
				}
				if f, err := os.Open(name); err != nil {
					bad(at(key), "%s: %w", key, err)
				} else {
					f.Close()
				}
			}
		}
		for name, value := range t.Header {
			if _, ok := filesIn(value); !ok {
				bad(at("header\x00"+name), "header %s is neither a text nor a list of texts", name)
			}
		}
	}
	check(nil, all.Server, all.hostsTable)
	for server, t := range all.Host {
		check([]string{"host", server}, server, t)
	}
	return errs
}

// filesIn returns the texts in a value: none, one, a list, or a list of lists.
func filesIn(value any) (all []string, ok bool) {
	switch v := value.(type) {
	case nil:
		return nil, true
	case string:
		return []string{v}, true
	case []any:
		for _, e := range v {
			more, ok := filesIn(e)
			if !ok {
				return nil, false
			}
			all = append(all, more...)
		}
		return all, true
	}
	return nil, false
}
