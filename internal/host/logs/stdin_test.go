// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"testing"

	"github.com/containerd/errdefs"
)

// After a restart of berth a client could open a stdin that had ended with its first client
// (stdin_once), and wrote into nothing. PROPERTIES 22.
func TestStdinEndsWithItsFirstClientAlsoAcrossARestart(t *testing.T) {
	for name, tt := range map[string]struct {
		once, take, end bool
		over            bool // after a restart
	}{
		"nobody has opened it":              {once: true},
		"its client is gone with the berth": {once: true, take: true, over: true},
		"its client has ended it":           {once: true, take: true, end: true, over: true},
		"it may have many clients":          {take: true, end: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Dir: t.TempDir() + "/io", Stdin: true, StdinOnce: tt.once}
			l, err := Create(o)
			if err != nil {
				t.Fatal(err)
			}
			if tt.take {
				w, err := l.Attachment().OpenStdin()
				if err != nil {
					t.Fatal(err)
				}
				defer w.Close()
			}
			if tt.end && l.Attachment().CloseStdin() != tt.once {
				t.Errorf("its end was reported as %v", !tt.once)
			}
			if l.StdinOver() {
				t.Error("it is over before a restart")
			}
			if tt.take {
				opens(t, l, !tt.once || !tt.end)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			for range 2 { // also across a second restart
				again, err := Open(o)
				if err != nil {
					t.Fatal(err)
				}
				if again.StdinOver() != tt.over {
					t.Errorf("over: %v, want %v", again.StdinOver(), tt.over)
				}
				if tt.take {
					opens(t, again, !tt.over)
				}
				if err := again.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// opens expects that a client can open the stdin of l, or that it is refused.
func opens(t *testing.T, l *Log, want bool) {
	t.Helper()
	w, err := l.Attachment().OpenStdin()
	if err == nil {
		err = w.Close()
	}
	if (err == nil) != want || !want && !errdefs.IsFailedPrecondition(err) {
		t.Errorf("open stdin: %v, want %v", err, want)
	}
}
