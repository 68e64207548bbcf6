// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// maxPattern bounds the length of a pattern, in bytes.
const maxPattern = 512

// pattern matches a text as a whole. * stands for any text without a slash, ** for any text.
type pattern struct {
	text string
	re   *regexp.Regexp
}

func newPattern(text string) (pattern, error) {
	switch {
	case text == "":
		return pattern{}, errors.New("the pattern is empty; * stands for any text")
	case len(text) > maxPattern:
		return pattern{}, fmt.Errorf("the pattern has %d bytes, more than %d", len(text), maxPattern)
	case strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return pattern{}, fmt.Errorf("the pattern %q has a space or a control character in it", text)
	case strings.Contains(text, "***"):
		return pattern{}, fmt.Errorf("the pattern %q has three asterisks in a row; * stands for any text without a slash, ** for any text", text)
	}
	expr := regexp.QuoteMeta(text)
	expr = strings.ReplaceAll(expr, `\*\*`, `.*`)
	expr = strings.ReplaceAll(expr, `\*`, `[^/]*`)
	re, err := regexp.Compile(`(?s)\A` + expr + `\z`)
	return pattern{text, re}, err
}

func (p pattern) matches(s string) bool { return p.re.MatchString(s) }

// host returns the host of a registry as it is compared: host names know no case, and 443 is the
// port where none is named. Else another spelling of a name would be another registry.
func host(s string) string { return strings.TrimSuffix(strings.ToLower(s), ":443") }

// namespacePattern matches the namespaces of pods.
type namespacePattern struct{ pattern }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *namespacePattern) UnmarshalText(b []byte) (err error) {
	if strings.Contains(string(b), "/") {
		return fmt.Errorf("%q is not a namespace or a pattern of one: it has a slash", b)
	}
	p.pattern, err = newPattern(string(b))
	return err
}

// registryPattern matches the hosts of registries, with their ports.
type registryPattern struct{ pattern }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *registryPattern) UnmarshalText(b []byte) (err error) {
	if strings.Contains(string(b), "/") {
		return fmt.Errorf("%q is not the host of a registry: it has a slash; patterns of repositories are in repositories", b)
	}
	if err := checkHost(string(b)); err != nil {
		return err
	}
	p.pattern, err = newPattern(host(string(b)))
	return err
}

// repositoryPattern matches repositories with the hosts of their registries.
type repositoryPattern struct{ pattern }

// UnmarshalText implements encoding.TextUnmarshaler. A pattern that can match no name as they are
// compared is an error: a rule without an effect is worse than none.
func (p *repositoryPattern) UnmarshalText(b []byte) (err error) {
	text := string(b)
	registry, path, ok := strings.Cut(text, "/")
	switch {
	case !ok, !strings.ContainsAny(registry, ".:*") && registry != "localhost":
		return fmt.Errorf("%q does not begin with the host of a registry; an image such as busybox is docker.io/library/busybox here", text)
	case path == "", strings.HasSuffix(path, "/"):
		return fmt.Errorf("%q ends with a slash; a pattern of all repositories below it ends with /**", text)
	case strings.ContainsAny(path, ":@"):
		return fmt.Errorf("%q has a tag or a digest, and a rule is about repositories", text)
	case path != strings.ToLower(path):
		return fmt.Errorf("%q has upper-case letters, which no repository has", text)
	case registry == "docker.io" && !strings.ContainsAny(path, "/*"):
		return fmt.Errorf("%q is docker.io/library/%s in full", text, path)
	}
	if err := checkHost(registry); err != nil {
		return err
	}
	p.pattern, err = newPattern(host(registry) + "/" + path)
	return err
}

// checkHost refuses the hosts that references are not compared by.
func checkHost(s string) error {
	if h := host(s); h == "index.docker.io" || h == "registry-1.docker.io" {
		return fmt.Errorf("%q is not what images of it are called by; write docker.io", s)
	}
	return nil
}
