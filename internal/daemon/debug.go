// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"runtime/pprof"
	"strconv"
	"time"

	"berth/internal/base/lane"
)

const (
	// cpuProfile is how long a CPU profile takes if the client does not say, and longestProfile how
	// long it takes at most.
	cpuProfile     = 10 * time.Second
	longestProfile = time.Minute
)

// debugHandler answers questions about a berth that runs: its goroutines, its heap, a profile of
// its processor time, and its lanes. It asks neither containerd nor a disk.
func debugHandler(lanes func() []lane.Lane) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /goroutines", func(w http.ResponseWriter, _ *http.Request) {
		_ = pprof.Lookup("goroutine").WriteTo(w, 2) // as text, with the stack of each
	})
	mux.HandleFunc("GET /heap", func(w http.ResponseWriter, _ *http.Request) {
		_ = pprof.Lookup("heap").WriteTo(w, 0)
	})
	mux.HandleFunc("GET /cpu", profileCPU)
	mux.HandleFunc("GET /lanes", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(lanes())
	})
	return mux
}

// profileCPU writes a CPU profile of the next seconds. There can be one at a time.
func profileCPU(w http.ResponseWriter, r *http.Request) {
	length := cpuProfile
	if asked := r.FormValue("seconds"); asked != "" {
		n, err := strconv.Atoi(asked)
		if length = time.Duration(n) * time.Second; err != nil || n < 1 || length > longestProfile {
			http.Error(w, "seconds is a whole number from 1 to 60", http.StatusBadRequest)
			return
		}
	}
	if err := pprof.StartCPUProfile(w); err != nil { // another client has one
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	defer pprof.StopCPUProfile()
	select {
	case <-time.After(length):
	case <-r.Context().Done():
	}
}

// serveDebug serves these answers on a socket at path, if there is one.
func serveDebug(ctx context.Context, s *sockets, path string, lanes func() []lane.Lane) error {
	srv := &http.Server{
		Handler:           debugHandler(lanes),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	return s.serve(ctx, "debug.socket", path, srv.Serve)
}
