// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// visible is the output of a command: characters that would control a terminal, rather than be
// shown, are written as JSON writes them, so that a document stays the same document. Names of
// images, pods and containers, and messages of registries and programs, are not under berth's
// control. The output of a container itself passes raw.
type visible struct {
	w       io.Writer
	partial []byte // the beginning of a character whose rest is still to be written
}

// Write writes p, and keeps an incomplete last character for the next call.
func (v *visible) Write(p []byte) (int, error) {
	text := slices.Concat(v.partial, p)
	end := len(text)
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if utf8.RuneStart(text[len(text)-n]) {
			if !utf8.FullRune(text[len(text)-n:]) {
				end = len(text) - n
			}
			break
		}
	}
	v.partial = append([]byte(nil), text[end:]...)
	if _, err := io.WriteString(v.w, Visible(string(text[:end]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Visible returns a text with every control character but tabs and ends of lines, and every one
// that changes the direction of a text, in the form that it has in JSON.
func Visible(s string) string {
	if !strings.ContainsFunc(s, acts) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if acts(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// acts reports whether a terminal acts on a character. A byte that is not UTF-8 may be a control
// character of another encoding; it counts as the character that stands for it.
func acts(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == utf8.RuneError)
}

// raw returns the underlying writer, for a container's own output.
func raw(w io.Writer) io.Writer {
	if v, ok := w.(*visible); ok {
		return v.w
	}
	return w
}

// showVisibly makes the outputs of a command, and of those below it, visible ones.
func showVisibly(cmd *cobra.Command, out, err io.Writer) {
	cmd.SetOut(&visible{w: out})
	cmd.SetErr(&visible{w: err})
}
