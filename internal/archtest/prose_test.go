// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// dropped are words that the first version used for what the field has words for, and what to
// write instead. They are looked for as whole words in comments and texts, and as parts of
// identifiers.
var dropped = map[string]string{
	"sight":   "observed state",
	"course":  "action",
	"mute":    "disconnected, silent",
	"deaf":    "a no-op observer",
	"meet":    "watch",
	"meets":   "watches",
	"hear":    "observe",
	"hears":   "observes",
	"heard":   "observed",
	"hearing": "observing",
	"told":    "reported, published",
	"giving":  "releasing",
	"stray":   "orphan",
	"strays":  "orphans",
}

// fine are phrases of plain English with a dropped word in them.
var fine = regexp.MustCompile(`(?i)\b(of course|in the course of|giving up|giving way)\b`)

// isNo finds "X is no Y", for "X is not a Y". "There is no Y" and the like are plain English.
var (
	isNo     = regexp.MustCompile(`(?i)\b(is|was|are) no [a-z%]\w*`)
	isNoFine = regexp.MustCompile(`(?i)(\b(there|here) (is|was|are) no\b|\b(is|was|are) no (longer|more|less|later|earlier|older|younger|newer|sooner|slower|faster|better|worse|larger|smaller|lower|higher|different|one|way|point|matter|need|use)\b)`)
)

func TestProseUsesTheWordsOfTheField(t *testing.T) {
	for _, f := range source(t) {
		if !inside(f.room, "internal", "test", "cmd") || inside(f.room, "internal/archtest") {
			continue
		}
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				checkText(t, at(c), c.Text)
			}
		}
		seen := map[string]bool{} // identifiers: one line each in a file is enough
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				if !seen[n.Name] {
					checkIdentifier(t, n)
				}
				seen[n.Name] = true
			case *ast.BasicLit:
				if n.Kind == token.STRING {
					checkText(t, at(n), n.Value)
				}
			}
			return true
		})
	}
}

func TestDocumentsUseTheWordsOfTheField(t *testing.T) {
	texts := documents(t)
	for _, pattern := range []string{"Makefile", ".ci/run", "contrib/*", "logger/*.c", "pause/*.c", "test/*/testdata/*", "test/guest/*", "tools/*.sh"} {
		maps.Copy(texts, files(t, pattern))
	}
	for name, text := range texts {
		for i, line := range strings.Split(text, "\n") {
			checkText(t, fmt.Sprintf("%s:%d", name, i+1), line)
		}
	}
}

func checkText(t *testing.T, where, text string) {
	t.Helper()
	for _, word := range strings.FieldsFunc(fine.ReplaceAllString(text, ""), func(r rune) bool { return !unicode.IsLetter(r) }) {
		if instead := dropped[strings.ToLower(word)]; instead != "" {
			t.Errorf("%s: %q: write %s, or another word of the field", where, word, instead)
		}
	}
	for _, phrase := range isNo.FindAllString(isNoFine.ReplaceAllString(text, ""), -1) {
		t.Errorf("%s: %q: write \"is not a\"", where, phrase)
	}
}

// checkIdentifier looks at the words of an identifier: exitHeard, pod_told.
func checkIdentifier(t *testing.T, id *ast.Ident) {
	t.Helper()
	var words []string
	from := 0
	for i, r := range id.Name {
		if i > from && (unicode.IsUpper(r) || r == '_') {
			words = append(words, id.Name[from:i])
			from = i
		}
	}
	for _, word := range append(words, id.Name[from:]) {
		if instead := dropped[strings.ToLower(strings.Trim(word, "_"))]; instead != "" {
			t.Errorf("%s: the identifier %s: write %s, or another word of the field", at(id), id.Name, instead)
		}
	}
}
