// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// pollEvery is how often an open page asks for changes.
	pollEvery = 2 * time.Second
	// freshFor is how long an answer of the source is good for. However many pages are open, the
	// service is asked once in that time.
	freshFor = time.Second
	// askTimeout is how long the service may take.
	askTimeout = 20 * time.Second
	// whyTimeout is how long it may take to answer why.
	whyTimeout = 5 * time.Second
	// writeTimeout is how long a browser may take to read a part of a log.
	writeTimeout = time.Minute
)

// Source answers the handler. It asks for one model at a time, and meanwhile for the others.
type Source struct {
	// Model returns the current model, without the answers of `berth why`.
	Model func(ctx context.Context) (Model, error)
	// Why returns the answer of `berth why` about a row, in sentences.
	Why func(ctx context.Context, row string) ([]string, error)
	// Log writes the last lines of the log of a container, by its ID, and those that follow.
	Log func(ctx context.Context, id string, w io.Writer) error
}

// NewToken returns a token that cannot be guessed: 256 random bits.
func NewToken() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}

// Handler serves the page only to clients with the token.
type Handler struct {
	token  string
	source Source

	mu    sync.Mutex
	model Model
	asked time.Time
	fold  fold
}

// NewHandler returns a handler that serves the models of a source.
func NewHandler(token string, source Source) *Handler {
	return &Handler{token: token, source: source}
}

// ServeHTTP checks the token before it looks at anything else of a request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Cache-Control", "no-store")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("X-Frame-Options", "DENY")
	head.Set("Cross-Origin-Resource-Policy", "same-origin")
	head.Set("Content-Security-Policy", "frame-ancestors 'none'")
	given := r.URL.Query()["token"]
	if len(given) != 1 || subtle.ConstantTimeCompare([]byte(given[0]), []byte(h.token)) != 1 {
		http.Error(w, "the URL has no token, or another one: open the URL that berth ui has printed", http.StatusForbidden)
		return
	}
	if !ownHost(r.Host) {
		http.Error(w, "this page is for localhost alone", http.StatusForbidden)
		return
	}
	if r.Method != http.MethodGet {
		head.Set("Allow", http.MethodGet)
		http.Error(w, "this page can only be read", http.StatusMethodNotAllowed)
		return
	}
	switch r.URL.Path {
	case "/":
		h.page(w, r)
	case "/data.json":
		h.data(w, r)
	case "/log":
		head.Set("Content-Type", "text/plain; charset=utf-8")
		if err := h.source.Log(r.Context(), r.URL.Query().Get("id"), flushing{w, http.NewResponseController(w)}); err != nil {
			fmt.Fprintln(w, "The log cannot be read:", err)
		}
	default:
		http.Error(w, "there is nothing here", http.StatusNotFound)
	}
}

// ownHost reports whether a browser asked for this machine by a name that no server of names can
// give to another one. A page of somebody else's whose name leads here, too, does not.
func ownHost(host string) bool {
	name := host
	if n, _, err := net.SplitHostPort(host); err == nil {
		name = n
	}
	if strings.EqualFold(name, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil && ip.IsLoopback()
}

// askLocked asks the source, unless it was asked just now. h.mu must be held.
func (h *Handler) askLocked(ctx context.Context) error {
	if time.Since(h.asked) < freshFor && !h.asked.IsZero() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	m, err := h.source.Model(ctx)
	if err != nil {
		return err
	}
	h.model, h.asked = m, time.Now()
	return nil
}

func (h *Handler) page(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.askLocked(r.Context()); err != nil {
		http.Error(w, "berth cannot be asked: "+err.Error(), http.StatusBadGateway)
		return
	}
	data, f, err := compact(h.model, room, pollEvery)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h.fold = f
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(document(data, "'self'"))
}

// data answers an open page: the rows with newer lines than it has, and the current state.
func (h *Handler) data(w http.ResponseWriter, r *http.Request) {
	after, err := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
	if err != nil {
		http.Error(w, fmt.Sprintf("after=%q is not a number", r.URL.Query().Get("after")), http.StatusBadRequest)
		return
	}
	doc, err := h.newer(r.Context(), after)
	if err != nil {
		http.Error(w, "berth cannot be asked: "+err.Error(), http.StatusBadGateway)
		return
	}
	if row := r.URL.Query().Get("why"); row != "" {
		ctx, cancel := context.WithTimeout(r.Context(), whyTimeout)
		defer cancel()
		doc.Why.Row = row
		if doc.Why.Said, err = h.source.Why(ctx, row); err != nil {
			doc.Why.Said = []string{"It cannot be asked why: " + err.Error()}
		}
	}
	b, err := json.Marshal(doc)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b)
}

// newer returns the rows with newer lines than a number, and the current state.
func (h *Handler) newer(ctx context.Context, after uint64) (compactModel, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.askLocked(ctx); err != nil {
		return compactModel{}, err
	}
	m := h.model
	m.Rows = slices.DeleteFunc(slices.Clone(m.Rows), func(row Row) bool { return row.Last <= after && row.Last > 0 })
	doc := h.fold.model(m)
	doc.Partial = true
	doc.Poll = pollEvery.Milliseconds()
	return doc, nil
}

// flushing passes on each part of a log at once. The log may go on for longer than an answer may
// take otherwise.
type flushing struct {
	http.ResponseWriter
	control *http.ResponseController
}

// Write writes a part of a log.
func (f flushing) Write(p []byte) (int, error) {
	_ = f.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // not every writer has one
	n, err := f.ResponseWriter.Write(p)
	if err == nil {
		err = f.control.Flush()
	}
	return n, err
}
