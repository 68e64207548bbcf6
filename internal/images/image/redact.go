// SPDX-License-Identifier: Apache-2.0

package image

import (
	"net/url"
	"regexp"
)

// urlForm finds URLs in a text. Quotes end them: errors of package net/http quote theirs.
var urlForm = regexp.MustCompile("[a-zA-Z][a-zA-Z0-9+.-]*://[^\\s\"'`<>]+")

// redacted is an error whose text names no credentials.
type redacted struct {
	text string
	err  error
}

func (r redacted) Error() string { return r.text }
func (r redacted) Unwrap() error { return r.err }

// redact cuts possible credentials out of the URLs in an error: user information, and all that
// follows the path. A registry redirects to storage with URLs that are signed, and such a URL is
// enough to read the blob.
func redact(err error) error {
	text := err.Error()
	clean := urlForm.ReplaceAllStringFunc(text, func(s string) string {
		u, err := url.Parse(s)
		if err != nil {
			return "(a URL)"
		}
		if u.User == nil && u.RawQuery == "" && u.Fragment == "" {
			return s
		}
		u.User, u.RawQuery, u.Fragment, u.RawFragment = nil, "", "", ""
		return u.String()
	})
	if clean == text {
		return err
	}
	return redacted{clean, err}
}
