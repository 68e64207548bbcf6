// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"slices"
	"testing"
)

// The text of an error is for people. A decision by it changes when somebody words it otherwise,
// and when a name in it has the words that are looked for. Where there is nothing but a text, it is
// looked at in one of these files, which has the list of all texts that count there.
func TestNothingDecidesByTheTextOfAnError(t *testing.T) {
	lists := map[string]string{
		"internal/base/errkind/errkind.go": "what the kernel calls its errors, behind gRPC and in bbolt",
		"internal/engine/ctrd/texts.go":    "what containerd, shims and OCI runtimes say",
		"tools/ctl/codes.go":               "which exit code a refusal of an OCI runtime is for a person",
	}
	looks := []string{"Contains", "ContainsAny", "HasPrefix", "HasSuffix", "Index", "EqualFold", "Cut", "CutPrefix", "CutSuffix", "ToLower", "Fields", "Split"}
	found := map[string]bool{}
	for _, f := range source(t) {
		if f.test || inside(f.room, "test", "test/testimage") {
			continue
		}
		for _, d := range f.ast.Decls {
			texts := []string{} // variables that have the text of an error
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					for i, v := range n.Rhs {
						if id, ok := n.Lhs[min(i, len(n.Lhs)-1)].(*ast.Ident); ok && hasText(v, texts) {
							texts = append(texts, id.Name)
						}
					}
				case *ast.CallExpr:
					pkg, name := calls(n)
					if pkg != "strings" || !slices.Contains(looks, name) || !slices.ContainsFunc(n.Args, func(a ast.Expr) bool { return hasText(a, texts) }) {
						break
					}
					found[f.path] = true
					if lists[f.path] == "" {
						t.Errorf("%s looks for words in the text of an error: decide on its kind with errors.Is, and see package errkind", at(n))
					}
				}
				return true
			})
		}
	}
	for path := range lists {
		if !found[path] {
			t.Errorf("%s decides by the text of no error any more: take it off the list", path)
		}
	}
}

// hasText reports whether an expression is the text of an error, or one of the variables that have
// it.
func hasText(e ast.Expr, texts []string) (has bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			has = has || slices.Contains(texts, n.Name)
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			has = has || ok && sel.Sel.Name == "Error" && len(n.Args) == 0
		}
		return !has
	})
	return has
}
