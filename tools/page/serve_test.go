// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/test/browser"
	"berth/tools/page"
)

// Only who has the token is answered, for a host of the loopback, and only a GET.
func TestOnlyWhoHasTheTokenIsAnswered(t *testing.T) {
	token := page.NewToken()
	if len(token) < 64 || token == page.NewToken() {
		t.Fatalf("the token %q can be guessed", token)
	}
	asked := 0
	h := page.NewHandler(token, page.Source{
		Model: func(context.Context) (page.Model, error) {
			asked++
			return page.Model{From: began, To: at(1)}, nil
		},
		Why: func(_ context.Context, row string) ([]string, error) { return nil, errors.New(row + " is gone") },
		Log: func(_ context.Context, id string, w io.Writer) error {
			asked++
			_, err := io.WriteString(w, "<b>"+id+"\n")
			return errors.Join(err, errors.New("and then it was gone"))
		},
	})
	for name, tt := range map[string]struct {
		method, host, path string
		code               int
	}{
		"no token":                   {"GET", "127.0.0.1:1", "/", 403},
		"another token":              {"GET", "127.0.0.1:1", "/?token=" + strings.Repeat("0", 64), 403},
		"the beginning of the token": {"GET", "127.0.0.1:1", "/?token=" + token[:63], 403},
		"an empty token":             {"GET", "127.0.0.1:1", "/?token=", 403},
		"two tokens":                 {"GET", "127.0.0.1:1", "/?token=" + token + "&token=x", 403},
		"the token of data alone":    {"GET", "127.0.0.1:1", "/data.json?after=0", 403},
		"no token, another method":   {"POST", "127.0.0.1:1", "/", 403},
		"no token, nothing there":    {"GET", "127.0.0.1:1", "/nothing", 403},
		"another host":               {"GET", "evil.example:1", "/?token=" + token, 403},
		"a host like ours":           {"GET", "127.0.0.1.evil.example", "/?token=" + token, 403},
		"a name that leads here":     {"GET", "localhost.evil.example", "/?token=" + token, 403},
		"no host":                    {"GET", "", "/?token=" + token, 403},
		"a post":                     {"POST", "127.0.0.1:1", "/?token=" + token, 405},
		"a head":                     {"HEAD", "127.0.0.1:1", "/?token=" + token, 405},
		"options of another origin":  {"OPTIONS", "127.0.0.1:1", "/data.json?token=" + token, 405},
		"nothing there":              {"GET", "127.0.0.1:1", "/../etc/passwd?token=" + token, 404},
		"no number":                  {"GET", "127.0.0.1:1", "/data.json?after=x&token=" + token, 400},
		"the page":                   {"GET", "127.0.0.1:1", "/?token=" + token, 200},
		"through ssh":                {"GET", "localhost:8080", "/?token=" + token, 200},
		"IPv6":                       {"GET", "[::1]:8080", "/?token=" + token, 200},
		"data":                       {"GET", "127.0.0.1:1", "/data.json?after=0&token=" + token, 200},
		"the token of a log alone":   {"GET", "127.0.0.1:1", "/log?id=c1", 403},
		"a log for another host":     {"GET", "evil.example", "/log?id=c1&token=" + token, 403},
		"a log":                      {"GET", "127.0.0.1:1", "/log?id=c1&token=" + token, 200},
	} {
		t.Run(name, func(t *testing.T) {
			before := asked
			r := httptest.NewRequestWithContext(t.Context(), tt.method, "/", nil)
			u, err := r.URL.Parse(tt.path)
			if err != nil {
				t.Fatal(err)
			}
			r.URL, r.Host = u, tt.host
			r.Header.Set("Origin", "https://evil.example")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != tt.code {
				t.Errorf("%d %s, want %d", w.Code, w.Body, tt.code)
			}
			if w.Code != http.StatusOK && asked != before {
				t.Error("the service was asked")
			}
			head := w.Header()
			if head.Get("Access-Control-Allow-Origin") != "" || head.Get("Cache-Control") != "no-store" || head.Get("Referrer-Policy") != "no-referrer" {
				t.Errorf("headers: %v", head)
			}
			if strings.Contains(w.Body.String(), token) {
				t.Error("the answer has the token")
			}
			if name == "a log" && (w.Body.String() != "<b>c1\nThe log cannot be read: and then it was gone\n" ||
				head.Get("Content-Type") != "text/plain; charset=utf-8" || head.Get("X-Content-Type-Options") != "nosniff") {
				t.Errorf("the log is %q, with %v", w.Body, head)
			}
		})
	}
	if asked == 0 {
		t.Error("nobody was answered")
	}
}

// An open page gets what has changed, and the service is asked once a second, by however many.
func TestAnOpenPageGetsWhatIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &browser.Story{}
		s.Pod(at(1), "a", "old", "")
		s.Pod(at(2), "a", "new", "")
		asked := 0
		h := page.NewHandler("t", page.Source{
			Model: func(context.Context) (page.Model, error) {
				asked++
				if asked == 3 {
					return page.Model{}, errors.New("berth does not answer")
				}
				return modelOf(t, s, at(9), nil), nil
			},
			Why: func(_ context.Context, row string) ([]string, error) {
				if row == "a/new" {
					return []string{"It runs."}, nil
				}
				return nil, errors.New("it was never there")
			},
		})
		get := func(path string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
			r.Host = "localhost"
			h.ServeHTTP(w, r)
			return w
		}
		rows := func(path string) int {
			var v struct {
				Rows    []any
				Partial bool
				Poll    int
			}
			if err := json.Unmarshal(get(path).Body.Bytes(), &v); err != nil || !v.Partial || v.Poll == 0 {
				t.Errorf("%v: %+v", err, v)
			}
			return len(v.Rows)
		}
		if w := get("/?token=t"); !strings.Contains(w.Body.String(), "connect-src 'self'") {
			t.Error("the page may not ask for data")
		}
		for path, want := range map[string]int{"/data.json?token=t&after=0": 2, "/data.json?token=t&after=1": 1, "/data.json?token=t&after=2": 0} {
			if got := rows(path); got != want {
				t.Errorf("%s: %d rows, want %d", path, got, want)
			}
		}
		for row, want := range map[string]string{"a/new": `"said":["It runs."]`, "a/x": "never there"} {
			if got := get("/data.json?token=t&after=9&why=" + row).Body.String(); !strings.Contains(got, want) {
				t.Errorf("why %s: %s", row, got)
			}
		}
		if asked != 1 {
			t.Errorf("the service was asked %d times", asked)
		}
		time.Sleep(2 * time.Second)
		rows("/data.json?token=t&after=0")
		time.Sleep(2 * time.Second)
		if w := get("/data.json?token=t&after=0"); w.Code != http.StatusBadGateway {
			t.Errorf("%d while the service does not answer", w.Code)
		}
	})
}
