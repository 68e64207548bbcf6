// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// documents are the Markdown files that people write, by their path in the repository.
func documents(t *testing.T) map[string]string {
	t.Helper()
	docs := files(t, "*.md")
	maps.Copy(docs, files(t, "docs/*.md"))
	return docs
}

// files are the texts of the files that match a pattern, by their paths in the repository.
func files(t *testing.T, pattern string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		rel, _ := filepath.Rel(root, path)
		texts[rel] = string(b)
	}
	if len(texts) == 0 {
		t.Fatalf("no file is %s", pattern)
	}
	return texts
}

func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#: ]*)(?:#([^)]*))?\)`)
	docs := documents(t)
	for doc, text := range docs {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := doc
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(doc), m[1])
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			}
			if page, ok := docs[target]; ok && m[2] != "" && !slices.Contains(anchors(page), m[2]) {
				t.Errorf("%s links to #%s, a heading that %s does not have", doc, m[2], target)
			}
		}
	}
}

// anchors returns the names by which links lead to the headings of a page.
func anchors(page string) []string {
	dropped := regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		names = append(names, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return names
}

func TestTargetsInDocumentsAreInTheMakefile(t *testing.T) {
	included, err := filepath.Glob(filepath.Join(root, "tools/*/*.mk"))
	if err != nil {
		t.Fatal(err)
	}
	var makefile []byte
	for _, name := range append(included, filepath.Join(root, "Makefile")) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		makefile = append(makefile, text...)
	}
	target := regexp.MustCompile("(?m)(?:`|^    )make ([a-z-]+)")
	for doc, text := range documents(t) {
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`(?m)^` + m[1] + `:.*## `).Match(makefile) {
				t.Errorf("%s says `make %s`: make help does not list it", doc, m[1])
			}
		}
	}
}

// Every metric is in docs/metrics.md, and nothing else is.
func TestEveryMetricIsDocumented(t *testing.T) {
	var code []string
	for _, f := range source(t) {
		if f.test || !inside(f.room, "internal", "tools") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if s, _ := strconv.Unquote(lit.Value); regexp.MustCompile(`^berth_[a-z_]+$`).MatchString(s) {
					code = append(code, s)
				}
			}
			return true
		})
	}
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(berth_[a-z_]+)` ").FindAllStringSubmatch(documents(t)["docs/metrics.md"], -1) {
		documented = append(documented, m[1])
	}
	for _, name := range code {
		if !slices.Contains(documented, name) {
			t.Errorf("the metric %s is not in the table of docs/metrics.md", name)
		}
	}
	for _, name := range documented {
		if !slices.Contains(code, name) {
			t.Errorf("docs/metrics.md lists %s, which berth does not have", name)
		}
	}
}

// A rule, or a panel of the board, that names a metric that berth does not have is silent for ever.
func TestRulesAndTheBoardNameMetricsThatBerthHas(t *testing.T) {
	table := documents(t)["docs/metrics.md"]
	name := regexp.MustCompile(`\bberth_[a-z_]+`)
	suffix := regexp.MustCompile(`_(bucket|sum|count)$`)
	for _, pattern := range []string{"contrib/prometheus/*.yaml", "contrib/grafana/*.json"} {
		for path, text := range files(t, pattern) {
			text = regexp.MustCompile(`\b[a-z_]+:berth_[a-z_]+:[a-z0-9_]+`).ReplaceAllString(text, "") // recorded by a rule
			for _, m := range name.FindAllString(text, -1) {
				if !strings.Contains(table, "| `"+m+"` ") && !strings.Contains(table, "| `"+suffix.ReplaceAllString(m, "")+"` | histogram ") {
					t.Errorf("%s names the metric %s, which docs/metrics.md does not list", path, m)
				}
			}
		}
	}
	rules := files(t, "contrib/prometheus/*.yaml")
	alert := regexp.MustCompile(`alert: (\w+)`)
	for _, m := range alert.FindAllStringSubmatch(rules["contrib/prometheus/berth-rules.yaml"], -1) {
		if !strings.Contains(documents(t)["docs/troubleshooting.md"], "`"+m[1]+"`") {
			t.Errorf("docs/troubleshooting.md does not say what to do about the alert %s", m[1])
		}
	}
}

// named finds the promises that a text names: "PROPERTIES 5", "PROPERTIES 1 and 3".
var named = regexp.MustCompile(`\bPROPERTIES (\d+)((?:(?:,| and) \d+)*)`)

// naming returns the directories of the tests and stories that name each promise.
func naming(t *testing.T) map[int][]string {
	t.Helper()
	by := map[int][]string{}
	for _, dir := range []string{"internal", "test", "tools"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".sim") || strings.Contains(path, "archtest") {
				return err
			}
			b, err := os.ReadFile(path)
			rel, _ := filepath.Rel(root, filepath.Dir(path))
			for _, m := range named.FindAllStringSubmatch(string(b), -1) {
				for _, s := range regexp.MustCompile(`\d+`).FindAllString(m[1]+m[2], -1) {
					n, _ := strconv.Atoi(s)
					by[n] = append(by[n], rel)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return by
}

// ARCHITECTURE.md says of each promise of docs/PROPERTIES.md where it is proven, and a test there
// names it.
func TestPromisesAreProvenWhereTheTableSays(t *testing.T) {
	row := regexp.MustCompile(`(?m)^\| (\d+) \| (.*) \|$`)
	promises := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(documents(t)["docs/PROPERTIES.md"], -1) {
		promises[m[1]] = m[2]
	}
	if len(promises) < 16 {
		t.Fatalf("docs/PROPERTIES.md has %d promises", len(promises))
	}
	by, seen := naming(t), map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(documents(t)["ARCHITECTURE.md"], -1) {
		cells := strings.Split(m[2], "|")
		title, where := strings.TrimSpace(cells[0]), strings.TrimSpace(cells[len(cells)-1])
		seen[m[1]] = true
		if !strings.HasPrefix(promises[m[1]], "**"+title+".**") {
			t.Errorf("promise %s is %q in ARCHITECTURE.md, and another in docs/PROPERTIES.md", m[1], title)
		}
		n, _ := strconv.Atoi(m[1])
		for _, room := range strings.FieldsFunc(where, func(r rune) bool { return r == ',' || r == ' ' }) {
			if !slices.ContainsFunc(by[n], func(dir string) bool { return strings.Contains(dir+"/", "/"+room+"/") }) {
				t.Errorf("promise %d is said to be proven in %s, where nothing names PROPERTIES %d", n, room, n)
			}
		}
	}
	for n := range promises {
		if !seen[n] {
			t.Errorf("promise %s of docs/PROPERTIES.md is not in the table of ARCHITECTURE.md", n)
		}
	}
	for n, dirs := range by {
		if promises[strconv.Itoa(n)] == "" {
			t.Errorf("%v name PROPERTIES %d, which docs/PROPERTIES.md does not have", dirs, n)
		}
	}
}
