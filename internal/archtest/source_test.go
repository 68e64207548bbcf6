// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const root = "../.."

// file is one Go file of the module.
type file struct {
	path string // from the root of the repository
	room string // its directory
	test bool
	ast  *ast.File
}

var fset = token.NewFileSet()

// parse reads every Go file of the module once, and of no other module below it.
var parse = sync.OnceValues(func() ([]file, error) {
	var all []file
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || d.Name() == "build" || d.Name() == ".git" {
				return filepath.SkipDir
			}
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		tree, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		all = append(all, file{rel, filepath.Dir(rel), strings.HasSuffix(path, "_test.go"), tree})
		return err
	})
	return all, err
})

// source returns every Go file of the module.
func source(t *testing.T) []file {
	t.Helper()
	all, err := parse()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 150 {
		t.Fatalf("only %d Go files found below %s: the test looks in the wrong place", len(all), root)
	}
	return all
}

// rooms returns the packages of the runtime and of its tools, without those that only hold tests of
// another room.
func rooms(t *testing.T) map[string][]file {
	t.Helper()
	m := map[string][]file{}
	for _, f := range source(t) {
		if inside(f.room, "internal", "tools") && !f.test {
			m[f.room] = append(m[f.room], f)
		}
	}
	return m
}

// imports returns the import paths of f.
func (f file) imports() []string {
	var paths []string
	for _, i := range f.ast.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		paths = append(paths, p)
	}
	return paths
}

// at is the position of a node, for messages.
func at(n ast.Node) string {
	p := fset.Position(n.Pos())
	rel, _ := filepath.Rel(root, p.Filename)
	return rel + ":" + strconv.Itoa(p.Line)
}

// inside reports whether a path is one of list, or below one of them.
func inside(path string, list ...string) bool {
	return slices.ContainsFunc(list, func(l string) bool { return path == l || strings.HasPrefix(path, l+"/") })
}

// calls reports the package and the function of a call such as unix.Mount; "" for any other call.
func calls(n ast.Node) (pkg, name string) {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return "", ""
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	if x, ok := sel.X.(*ast.Ident); ok {
		return x.Name, sel.Sel.Name
	}
	return "", ""
}
