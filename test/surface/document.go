// SPDX-License-Identifier: Apache-2.0

package surface

import (
	"bytes"
	"fmt"
	"strings"
)

const introduction = `# Every field of every CRI request

berth treats each field in one of three ways: it is **honoured**, or **refused** with an error that
names it, or has **no effect**, for the reason beside it. No field is ignored in silence.

This file is made from the table in ` + "`test/surface`" + `, which its tests compare with the protocol and,
for refused fields, with berth: ` + "`go test ./test/surface -run Document -update`" + `.

`

// Document is docs/cri-fields.md.
func Document() []byte {
	var b bytes.Buffer
	b.WriteString(introduction)
	rows := Rows()
	var empty []string
	for _, m := range Methods() {
		name, all := string(m.Name()), Fields(m)
		if len(all) == 0 {
			empty = append(empty, name)
			continue
		}
		fmt.Fprintf(&b, "## %s\n\n| field | | |\n| --- | --- | --- |\n", name)
		for _, f := range all {
			row, inherited, ok := Of(rows, all, f)
			if !ok || inherited || row.Fate == Honoured && !f.Leaf && row.Text == "" {
				continue
			}
			fate := "**" + string(row.Fate) + "**"
			switch row.Fate {
			case Honoured:
				fate = string(row.Fate)
			case Refused:
				fate += " (" + row.Code.String() + ")"
			}
			text := row.Text
			if row.Below && !f.Leaf {
				text = strings.TrimPrefix(text+"; with all that is below it", "; ")
			}
			_, path, _ := strings.Cut(f.Path, ".")
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", path, fate, text)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "## Without fields\n\n%s.\n", wrapped(empty))
	return b.Bytes()
}

// wrapped lists names in lines of at most 100 characters.
func wrapped(names []string) string {
	var b strings.Builder
	width := 0
	for i, n := range names {
		if i > 0 {
			b.WriteString(",")
			if width += len(n) + 2; width > 96 {
				b.WriteString("\n")
				width = len(n)
			} else {
				b.WriteString(" ")
			}
		} else {
			width = len(n)
		}
		b.WriteString(n)
	}
	return b.String()
}
