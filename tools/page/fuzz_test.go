// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"testing"
	"time"

	berthv1 "berth/api/berth/v1"
	"berth/tools/page"
)

var scripts = regexp.MustCompile(`(?i)<script`)

// A record, whatever is in it, is drawn or refused, and nothing in it is markup.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"at":"2026-01-02T15:04:05Z","id":"c1","kind":"BerthStarted"}`), "web")
	f.Add([]byte(`{"at":"2026-01-02T15:04:05Z","id":"</script><script>","kind":"Of A Newer <script>"}`), "</script><script>")
	f.Fuzz(func(t *testing.T, entry []byte, pod string) {
		h := page.NewHistory()
		if json.Valid(entry) {
			_ = h.Add(&berthv1.Record{Number: 1, Of: &berthv1.Names{Namespace: "default", Pod: pod}, Entry: string(entry)})
		}
		var doc bytes.Buffer
		if err := page.Write(&doc, h.Model(page.Window{To: time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC)}, nil)); err != nil {
			t.Fatal(err)
		}
		if n := len(scripts.FindAll(doc.Bytes(), -1)); n != 2 {
			t.Errorf("the page has %d scripts, and not 2", n)
		}
	})
}
