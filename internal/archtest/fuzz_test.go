// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fuzzed has the functions that read bytes which somebody else has made (a pod, a client, a
// registry, a peer, a plug-in, a disk that damaged them), and for each the fuzz test of its room
// that calls it. `make fuzz` runs them all.
var fuzzed = map[string]string{
	"access.Verifier.Add":         "FuzzChain",
	"adopt.addresses":             "FuzzStatus",
	"adopt.readMetadata":          "FuzzStatus",
	"adopt.readStatus":            "FuzzStatus",
	"artifact.Files":              "FuzzNamesStayBelow",
	"bundle.Read":                 "FuzzRead",
	"cdi.Registry.Inject":         "FuzzInject",
	"cgroup.OOMKills":             "FuzzCounters",
	"cgroup.Procs":                "FuzzCounters",
	"cgroup.limitHits":            "FuzzCounters",
	"checkpoint.Archives.Unpack":  "FuzzUnpack",
	"checkpoint.ReadPod":          "FuzzPod",
	"checkpoint.checkCore":        "FuzzCore",
	"checkpoint.readPod":          "FuzzPod",
	"ctl.logReader.read":          "FuzzLog",
	"config.Parse":                "FuzzSettings",
	"ctl.unpack":                  "FuzzUnpack",
	"durable.CheckIndex":          "FuzzIndex",
	"image.Profiles.layerOf":      "FuzzManifest",
	"image.decode":                "FuzzListed",
	"image.normalized":            "FuzzListed",
	"image.peek":                  "FuzzManifest",
	"imagestore.registries.hosts": "FuzzHosts",
	"imagestore.part.answered":    "FuzzRange",
	"imagestore.parseConfig":      "FuzzConfig",
	"join.filter.letsReport":      "FuzzFilter",
	"join.membership":             "FuzzGroups",
	"join.parseHierarchies":       "FuzzGroups",
	"manifest.Parse":              "FuzzPod",
	"manifest.Translate":          "FuzzPod",
	"migrate.containerdTree":      "FuzzSettings",
	"migrate.kubelet.edits":       "FuzzKubelet",
	"migrate.withoutCRI":          "FuzzWithoutCRI",
	"network.loadFile":            "FuzzConf",
	"network.podAddresses":        "FuzzResult",
	"nri.Service.adjust":          "FuzzAdjust",
	"page.History.Add":            "FuzzRecord",
	"peer.parse":                  "FuzzRequest",
	"pidfd.parseStat":             "FuzzStat",
	"policy.Parse":                "FuzzPolicy",
	"policy.checkPayload":         "FuzzSignatures",
	"policy.parseKeys":            "FuzzKeys",
	"policy.verifyCosign":         "FuzzSignatures",
	"probe.parseRunc":             "FuzzVersion",
	"recorder.segment.scan":       "FuzzSegment",
	"spec.ForContainer":           "FuzzUsers",
	"spec.ParseSeccomp":           "FuzzSeccomp",
	"spec.parseHook":              "FuzzHook",
	"state.decodeEntries":         "FuzzJournal",
	"stream.frames.Read":          "FuzzFrames",
	"stream.readSizes":            "FuzzSizes",
	"stream.upgradeSocket":        "FuzzSocket",
	"unpack.decompress":           "FuzzDecompress",
	"wholefile.ReadSealed":        "FuzzSealed",
}

// unfuzzed are functions with the name of a parser that need no fuzz test, and why.
var unfuzzed = map[string]string{
	"config.ParseBind":               "it reads a setting",
	"config.ParseDevice":             "it reads a setting, or one device of an annotation",
	"config.ParseMount":              "it reads a setting",
	"config.ParseUlimit":             "it reads a setting",
	"ctl.parsePorts":                 "it reads an argument of a command",
	"ctl.parseSince":                 "it reads an argument of a command",
	"imagestore.Names.parse":         "it finds the documents that parseConfig reads",
	"imagestore.Names.parseTrusting": "it finds the documents that parseConfig reads",
	"install.parse":                  "it reads a list of a release, whose sums are checked before",
	"migrate.parseDuration":          "FuzzSettings gives it any text",
	"migrate.parseTOML":              "FuzzSettings gives it any text",
	"pod.parseSignal":                "it looks a word up in a table",
	"policy.parseName":               "FuzzPolicy gives it any text",
	"spec.parseID":                   "FuzzUsers gives it any text",
}

// parserName matches the names of functions that are parsers.
var parserName = regexp.MustCompile(`^([pP]arse|decode)([A-Z].*)?$`)

// Each function that reads others' bytes is called by a fuzz test, and each with the name of a
// parser is on one of the lists.
func TestWhatReadsOthersBytesIsFuzzed(t *testing.T) {
	functions := map[string]bool{}
	called := map[string][]string{} // the names of what each fuzz test calls, by ROOM.NAME
	for _, f := range source(t) {
		if !inside(f.room, "internal", "tools") {
			continue
		}
		room := filepath.Base(f.room)
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			name := room + "." + fn.Name.Name
			if r := receiver(fn); r != "" {
				name = room + "." + r + "." + fn.Name.Name
			}
			switch {
			case f.test && strings.HasPrefix(fn.Name.Name, "Fuzz"):
				called[room+"."+fn.Name.Name] = callees(fn)
			case !f.test:
				functions[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fuzzed)) {
		room, _, _ := strings.Cut(name, ".")
		names, ok := called[room+"."+fuzzed[name]]
		switch {
		case !functions[name]:
			t.Errorf("%s is on the list of what is fuzzed, and does not exist", name)
		case !ok:
			t.Errorf("%s has no fuzz test %s", name, fuzzed[name])
		case !slices.Contains(names, last(name)):
			t.Errorf("%s of room %s does not call %s", fuzzed[name], room, last(name))
		}
	}
	for name := range unfuzzed {
		if !functions[name] {
			t.Errorf("%s needs no fuzz test, and does not exist", name)
		}
	}
	for name := range functions {
		if !parserName.MatchString(last(name)) {
			continue
		}
		if fuzzed[name] == "" && unfuzzed[name] == "" {
			t.Errorf("%s has the name of a parser: give it a fuzz test, or say on the list why it needs none", name)
		}
	}
}

// last returns the last part of a name with dots.
func last(name string) string { return name[strings.LastIndex(name, ".")+1:] }

// receiver returns the name of the type of a method, or "".
func receiver(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return ""
	}
	typ := fn.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if index, ok := typ.(*ast.IndexExpr); ok {
		typ = index.X
	}
	if id, ok := typ.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// callees returns the names of the functions that a function calls.
func callees(fn *ast.FuncDecl) (names []string) {
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			fun := call.Fun
			if index, ok := fun.(*ast.IndexExpr); ok { // with a type argument
				fun = index.X
			}
			switch f := fun.(type) {
			case *ast.Ident:
				names = append(names, f.Name)
			case *ast.SelectorExpr:
				names = append(names, f.Sel.Name)
			}
		}
		return true
	})
	return names
}
