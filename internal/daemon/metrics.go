// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Scrapes read atomics, and what the feed and the lanes hold, under their locks, for microseconds.
// A scraper that does not read its answer occupies its own connection and nothing else.
const (
	maxScrapes    = 4
	scrapeTimeout = 10 * time.Second
)

// serveMetrics serves /metrics until ctx ends. It returns an error if the address cannot be used.
func (d *daemon) serveMetrics(ctx context.Context) error {
	lis, err := net.Listen("tcp", d.cfg.Metrics.Address)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(d.core.obs.reg, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	s := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: scrapeTimeout,
		WriteTimeout:      scrapeTimeout,
		IdleTimeout:       time.Minute,
		ErrorLog:          slog.NewLogLogger(d.log.Handler(), slog.LevelWarn),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(stopped); _ = s.Close() })
	defer func() {
		if !stop() {
			<-stopped
		}
	}()
	d.log.Info("metrics are served", "address", lis.Addr().String())
	if err := s.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
