// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"time"
)

// stamp is RFC 3339 with all nine digits, which the kubelet parses as RFC3339Nano.
const stamp = "2006-01-02T15:04:05.000000000Z07:00"

// format appends the log lines for text to out, and returns how many bytes of text they hold and
// the number of lines. An unterminated end is left, unless it is longer than limit or last is set:
// then it is a part (P), for it had no newline. containerd writes it the same way.
func format(out, text []byte, stream string, limit int, last bool, now time.Time) (lines []byte, used, count int) {
	head := now.UTC().AppendFormat(make([]byte, 0, 64), stamp)
	head = append(append(append(head, ' '), stream...), ' ')
	for used < len(text) {
		rest := text[used:]
		n := bytes.IndexByte(rest[:min(len(rest), limit+1)], '\n')
		tag, skip := byte('F'), 1
		if n < 0 {
			switch {
			case len(rest) > limit:
				n = limit
			case last:
				n = len(rest)
			default:
				return out, used, count
			}
			tag, skip = 'P', 0
		}
		out = append(append(append(append(out, head...), tag, ' '), rest[:n]...), '\n')
		used += n + skip
		count++
	}
	return out, used, count
}
