// SPDX-License-Identifier: Apache-2.0

// Package observe shows people and machines what berth does: it turns events into log lines, the
// timeline, metrics and traces.
//
// [Metrics] counts, and serves what it has counted. [Tracing] sends spans to a collector, and
// [Tracing.Ports] makes spans of the controller's slow calls. [Observer] is notified by the
// controller and its lanes, and passes each event on to all of them. [BridgeLibraries] sends what
// libraries log to berth's log.
//
// # Promises
//
//   - Nothing here is waited for. Spans go through a bounded queue, and what does not fit into it is
//     dropped and counted. A scrape takes only locks that are held for microseconds. A collector or a
//     scraper that does not read occupies its own connection and nothing else.
//   - What happens to an ID is one line of the log and one entry of its timeline, in the same words:
//     those of package event.
//   - The trip of an exit is one trace, from the end of the process to the last thing given back.
//     What happens meanwhile are events of its span.
//
// # Never
//
// Nothing is decided by what is here, and no call fails because of it.
//
// # To look at it live
//
// `berth timeline ID`, the log, and /metrics at the address metrics.address (docs/metrics.md).
package observe
