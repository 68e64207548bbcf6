// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"testing"
)

// mostMethods is how many methods a type may have. A type with more of them has more than one
// responsibility, each with a state of its own.
const mostMethods = 40

func TestATypeHasFewMethods(t *testing.T) {
	have := map[string]int{}
	for room, files := range rooms(t) {
		for _, f := range files {
			for _, d := range f.ast.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
					have[room+"."+receiver(fn)]++
				}
			}
		}
	}
	for name, n := range have {
		if n > mostMethods {
			t.Errorf("%s has %d methods, and %d is the most: give a part of its state, and the methods that need it, a type of their own", name, n, mostMethods)
		}
	}
}
