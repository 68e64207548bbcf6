// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"testing"
)

// mostMethods is how many methods an exported type may have. A type that needs more is a hall: give
// what owns a state of its own a type of its own.
const mostMethods = 45

func TestNoTypeHasTooManyMethods(t *testing.T) {
	methods := map[string]int{}
	for _, f := range source(t) {
		if f.test || !inside(f.room, "internal") {
			continue
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			if name := receiver(fn.Recv.List[0].Type); ast.IsExported(name) {
				methods[f.room+"."+name]++
			}
		}
	}
	if len(methods) < 30 {
		t.Fatalf("only %d exported types with methods found", len(methods))
	}
	for name, n := range methods {
		if n > mostMethods {
			t.Errorf("%s has %d methods, the limit is %d", name, n, mostMethods)
		}
	}
}

// receiver is the name of a receiver's type, without pointer and type parameters.
func receiver(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr:
		return receiver(x.X)
	case *ast.IndexListExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}
