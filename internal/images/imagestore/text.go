// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// escaped is the replacement character as JSON has it, where backslashes that stand for themselves
// have been taken out.
var escaped = regexp.MustCompile(`\x{FFFD}|\\u[fF]{3}[dD]`)

// checkText returns ErrInvalidArgument if something that decides how a container runs is not UTF-8
// in an image's configuration, or has half of a pair of surrogates. A container would get the
// replacement character in its place: here as well as in the configuration that the OCI runtime
// reads, both JSON.
func checkText(config json.RawMessage) error {
	var text struct {
		Env, Entrypoint, Cmd         []json.RawMessage
		User, WorkingDir, StopSignal json.RawMessage
		Volumes                      json.RawMessage
	}
	if err := json.Unmarshal(config, &text); err != nil {
		return err
	}
	for _, f := range []struct {
		name   string
		values []json.RawMessage
	}{
		{"Env", text.Env},
		{"Entrypoint", text.Entrypoint},
		{"Cmd", text.Cmd},
		{"User", []json.RawMessage{text.User}},
		{"WorkingDir", []json.RawMessage{text.WorkingDir}},
		{"StopSignal", []json.RawMessage{text.StopSignal}},
		{"Volumes", []json.RawMessage{text.Volumes}},
	} {
		for _, v := range f.values {
			if isText(v) {
				continue
			}
			name := f.name
			if name == "Env" { // its value may be a secret
				key, _, _ := strings.Cut(strings.TrimPrefix(string(v), `"`), "=")
				name = fmt.Sprintf("the variable %q of Env", key)
			}
			return fmt.Errorf("%s is not UTF-8, so a container would not get it as it is: %w", name, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// isText reports whether decoding leaves the strings of a JSON value unchanged.
func isText(raw json.RawMessage) bool {
	if !utf8.Valid(raw) {
		return false
	}
	var v any
	if len(raw) == 0 || json.Unmarshal(raw, &v) != nil {
		return true // there is none, or it is refused for that
	}
	asWritten := len(escaped.FindAllString(strings.ReplaceAll(string(raw), `\\`, ""), -1))
	return replacements(v) == asWritten
}

// replacements counts the replacement characters in the strings of a decoded value.
func replacements(v any) (n int) {
	switch v := v.(type) {
	case string:
		return strings.Count(v, string(utf8.RuneError))
	case map[string]any:
		for k, e := range v {
			n += replacements(k) + replacements(e)
		}
	case []any:
		for _, e := range v {
			n += replacements(e)
		}
	}
	return n
}
