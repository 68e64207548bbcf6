// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"

	"berth/internal/base/config"
)

// upstream is one host from which the images of a registry may come.
type upstream struct {
	URL      string
	CA       []string
	Client   []string // certificate and key
	Insecure bool     // a certificate is not verified
	Digests  bool     // it is asked for digests alone
	Exact    bool     // the path of URL is all, with /v2
}

// hostsFile writes hosts.toml of a registry.
func hostsFile(from, server string, hosts []upstream) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# From %s.\n", printable(from))
	if server != "" {
		fmt.Fprintf(&b, "server = %s\n", quote(server))
	}
	for _, h := range hosts {
		fmt.Fprintf(&b, "\n[host.%s]\n", quote(h.URL))
		if h.Digests {
			b.WriteString("capabilities = ['pull']\n")
		} else {
			b.WriteString("capabilities = ['pull', 'resolve']\n")
		}
		if len(h.CA) > 0 {
			fmt.Fprintf(&b, "ca = %s\n", quotes(h.CA))
		}
		if len(h.Client) > 0 {
			fmt.Fprintf(&b, "client = [%s]\n", quotes(h.Client))
		}
		if h.Insecure {
			b.WriteString("skip_verify = true\n")
		}
		if h.Exact {
			b.WriteString("override_path = true\n")
		}
	}
	return []byte(b.String())
}

// quote writes a string of TOML.
func quote(s string) string {
	b, err := toml.Marshal(map[string]string{"v": s})
	if err != nil {
		panic(err) // a string can always be written
	}
	return strings.TrimSpace(strings.TrimPrefix(string(b), "v = "))
}

func quotes(list []string) string {
	var q []string
	for _, s := range list {
		q = append(q, quote(s))
	}
	return "[" + strings.Join(q, ", ") + "]"
}

// hosts adds a hosts.toml, and lets berth read the directory that it is in.
func (t *translation) hosts(host, from, server string, hosts []upstream) {
	dir := host
	if host == "*" {
		dir = "_default"
	}
	if strings.ContainsAny(dir, "/ \n") || dir == "" || strings.HasPrefix(dir, ".") {
		t.errs = append(t.errs, fmt.Errorf("%s: %q is not the host of a registry; correct it", from, host))
		return
	}
	t.files = append(t.files, madeFile{
		path: path.Join(hostsDir, dir, "hosts.toml"),
		body: hostsFile(from, server, hosts),
		mode: 0o644,
		why:  "the mirrors of " + host,
	})
	t.set("the files that are made of mirrors", hostsDir, "image", "registry_dir")
}

// credentials translates the credentials of a registry.
func (t *translation) credentials(host string, l *leaf, user, password string) {
	if host == "" || strings.ContainsAny(host, "/@ ") {
		t.say(Pods, l, "berth has credentials of hosts, and not of a part of one (%s): let the pods or the kubelet bring them", host)
		return
	}
	if user == "" || password == "" {
		t.say(Pods, l, "these credentials of %s are not a user with a password: give them to the pods as a pull secret, or to the kubelet by a credential provider", host)
		return
	}
	t.set(l.from(), user, "image", "auth", host, "username")
	t.set(l.from(), config.Secret(password), "image", "auth", host, "password")
}

// auth takes a table of credentials.
func (t *translation) auth(host string, in tree) {
	if len(in) == 0 {
		return
	}
	user, l := t.text(in, "username")
	password, _ := t.text(in, "password")
	if both, b := t.text(in, "auth"); both != "" {
		l = b
		var err error
		if user, password, err = basic(both); err != nil {
			t.wrong(b, "a user and a password in base64")
			return
		}
	}
	if token, k := t.text(in, "identitytoken"); token != "" {
		l = k
	}
	if l == nil {
		return
	}
	t.credentials(host, l, user, password)
}

// basic takes a user and a password apart.
func basic(encoded string) (user, password string, err error) {
	b, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "", "", err
	}
	user, password, ok := strings.Cut(strings.TrimRight(string(b), "\x00"), ":")
	if !ok || !utf8.Valid(b) {
		return "", "", errors.New("it is not a user, a colon and a password")
	}
	return user, password, nil
}

// hostOf is the host of a URL, or s itself if it is not a URL.
func hostOf(s string) string {
	if u, err := url.Parse(s); err == nil && u.Host != "" {
		return u.Host
	}
	return s
}

// containerdRegistries takes the directory of hosts.toml, or the mirrors of before.
func (t *translation) containerdRegistries(in tree) {
	dirs, l := t.text(in, "config_path")
	mirrors := in.sub("mirrors").names()
	if l != nil && dirs != "" {
		list := strings.FieldsFunc(dirs, func(r rune) bool { return r == ':' })
		t.set(l.from(), path.Clean(list[0]), "image", "registry_dir")
		if used := slices.DeleteFunc(slices.Clone(list[1:]), func(d string) bool { return !t.full(d) }); len(used) > 0 {
			t.say(Pods, l, "berth reads one directory of registries: move what is in %s into %s, or images of those registries are pulled from their own hosts, without these certificates", strings.Join(used, " and "), list[0])
		}
		if len(mirrors) > 0 {
			t.say(Note, l, "containerd takes no mirrors beside this, and so they are left out")
			in.sub("mirrors").useAll()
			mirrors = nil
		}
	}
	configs := in.sub("configs")
	for _, host := range mirrors {
		ends, l := t.list(in, "mirrors", host, "endpoint")
		var ups []upstream
		for _, e := range ends {
			u, err := url.Parse(e)
			if err != nil || u.Host == "" {
				t.errs = append(t.errs, fmt.Errorf("read %s: %s has %q, which is not a URL such as https://mirror.example; correct it", l.file, l.key, e))
				continue
			}
			up := t.tls(upstream{URL: strings.TrimSuffix(e, "/")}, configs.sub(u.Host, "tls"))
			up.Exact = strings.Trim(u.Path, "/") != "" && strings.Trim(u.Path, "/") != "v2"
			ups = append(ups, up)
		}
		if l != nil {
			t.hosts(host, l.from(), "", ups)
		}
	}
	for _, host := range configs.names() {
		c := configs.sub(host)
		if tls := c.sub("tls"); len(tls) > 0 && !slices.Contains(mirrors, host) && dirs == "" {
			var from string
			tls.each(func(_ []string, l *leaf) { from = l.from() })
			t.hosts(host, from, "https://"+host, []upstream{t.tls(upstream{URL: "https://" + host}, tls)})
		}
		t.auth(host, c.sub("auth"))
	}
	for _, where := range in.sub("auths").names() {
		t.auth(hostOf(where), in.sub("auths", where))
	}
}

// tls adds the certificates of a host.
func (t *translation) tls(up upstream, in tree) upstream {
	if v, _ := t.text(in, "ca_file"); v != "" {
		up.CA = []string{v}
	}
	cert, _ := t.text(in, "cert_file")
	key, _ := t.text(in, "key_file")
	if cert != "" && key != "" {
		up.Client = []string{cert, key}
	}
	up.Insecure, _ = t.flag(in, "insecure_skip_verify")
	return up
}

// dockerAuth takes a file of credentials, such as Docker writes.
func (t *translation) dockerAuth(file string, l *leaf) {
	text, err := t.read(file)
	if err != nil {
		t.say(Pods, l, "it cannot be read (%v): images that need these credentials are not pulled", err)
		return
	}
	var c struct {
		Auths map[string]struct{ Auth, Username, Password string }
	}
	if err := json.Unmarshal(text, &c); err != nil {
		t.errs = append(t.errs, fmt.Errorf("read %s: it is not a file of credentials: %w; correct it, or take it from %s", file, err, l.from()))
		return
	}
	for _, host := range slices.Sorted(maps.Keys(c.Auths)) {
		a := c.Auths[host]
		if a.Auth != "" {
			a.Username, a.Password, _ = basic(a.Auth)
		}
		if host == "https://index.docker.io/v1/" {
			host = "docker.io"
		}
		t.credentials(hostOf(host), &leaf{value: host, file: file, key: dotted([]string{"auths", host})}, a.Username, a.Password)
	}
}

// registriesConf takes registries.conf and its drop-in files, of version 2.
func (t *translation) registriesConf(cfg tree) {
	if l := t.find(cfg, "unqualified-search-registries"); l != nil && !nothing(l.value) {
		if list, ok := l.value.([]any); !ok || len(list) != 1 || list[0] != "docker.io" {
			t.say(Pods, l, "berth takes a name without a host for one of docker.io, as containerd does: images that another registry has need their full names")
		}
	}
	l := t.find(cfg, "registry")
	cfg.each(func(_ []string, l *leaf) { l.used = true })
	if l == nil {
		return
	}
	all, ok := l.value.([]any)
	if !ok {
		t.wrong(l, "a list of tables")
		return
	}
	seen := map[string]bool{}
	for _, v := range all {
		m, ok := v.(map[string]any)
		if !ok {
			t.wrong(l, "a list of tables")
			return
		}
		t.registry(grow(m, l.file, []string{"registry"}), m, l, seen)
	}
}

// fileKey is where a table of a list has the file that it is of.
const fileKey = " file"

// registry takes one registry, whose mirrors are in m.
func (t *translation) registry(in tree, m map[string]any, l *leaf, seen map[string]bool) {
	location, _ := t.text(in, "location")
	prefix, _ := t.text(in, "prefix")
	if prefix == "" {
		prefix = location
	}
	if location == "" {
		location = prefix
	}
	insecure, _ := t.flag(in, "insecure")
	about := &leaf{value: prefix, file: l.file, key: l.key}
	if f, ok := m[fileKey].(string); ok {
		about.file = f
	}
	if blocked, _ := t.flag(in, "blocked"); blocked {
		t.say(Pods, about, "images of %s are blocked here, and are not with berth until a rule of `image.policy_file` denies them: docs/policy.md", prefix)
		return
	}
	mirrors, _ := m["mirror"].([]any)
	if prefix == location && !insecure && len(mirrors) == 0 {
		return
	}
	if strings.ContainsAny(prefix, "/*") {
		t.say(Pods, about, "mirrors are for whole hosts, and %s is a part of one, or many: its images come from where their names say", prefix)
		return
	}
	if seen[prefix] {
		return // the first setting takes precedence
	}
	seen[prefix] = true
	byDigest, _ := t.flag(in, "mirror-by-digest-only")
	var ups []upstream
	for _, v := range mirrors {
		table, ok := v.(map[string]any)
		if !ok {
			t.wrong(l, "a list of tables")
			return
		}
		mt := grow(table, l.file, []string{"registry", "mirror"})
		where, _ := t.text(mt, "location")
		only, _ := t.text(mt, "pull-from-mirror")
		bad, _ := t.flag(mt, "insecure")
		if where == "" {
			t.errs = append(t.errs, fmt.Errorf("read %s: a mirror of %s has no location; correct it", l.file, prefix))
			continue
		}
		if only == "tag-only" {
			t.say(Pods, about, "the mirror %s of %s is for tags alone, which hosts.toml cannot say: it is left out", where, prefix)
			continue
		}
		ups = append(ups, located(where, bad, byDigest || only == "digest-only"))
	}
	server := ""
	if prefix != location || insecure {
		up := located(location, insecure, false)
		server = up.URL
		if insecure || up.Exact {
			ups = append(ups, up)
		}
	}
	if slices.ContainsFunc(ups, func(u upstream) bool { return u.Insecure }) {
		t.say(Note, about, "certificates of hosts that are called insecure are not verified; one that speaks no TLS at all needs http:// in %s", path.Join(hostsDir, prefix, "hosts.toml"))
	}
	t.hosts(prefix, l.key+" "+prefix+" in "+about.file, server, ups)
}

// located is a host as registries.conf writes it, with a part of the path after it.
func located(location string, insecure, digests bool) upstream {
	host, rest, within := strings.Cut(strings.TrimSuffix(location, "/"), "/")
	up := upstream{URL: "https://" + host, Insecure: insecure, Digests: digests}
	if within {
		up.URL += "/v2/" + rest
		up.Exact = true
	}
	return up
}

// parseDuration reads a duration that is not negative.
func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err == nil && d < 0 {
		return 0, errors.New("it is negative")
	}
	return d, err
}
