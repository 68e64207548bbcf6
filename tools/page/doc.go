// SPDX-License-Identifier: Apache-2.0

// Package page draws the history of a node: one HTML page with a row for each pod, from left to
// right in time.
//
// # Use
//
//	h := page.NewHistory()
//	err := h.Add(record)                     // each record of the recorder, in its order
//	m := h.Model(page.Window{From: from, To: now}, live)
//	err = page.Write(w, m)                   // the report: one file
//	handler, err := page.NewHandler(token, source) // the same page, live
//
// # Promises
//
//   - The file needs nothing else: no network, no other file, no font. Its Content-Security-Policy
//     forbids every load, and every script but the one that is in it.
//   - The texts of pods, images, logs and errors are data. It is never markup, on any path.
//   - The file has at most [MaxBytes]. If there is too much, the least important lines are left
//     out, the routine first and the newest exit last, and the page shows how much was left out.
//   - All content of the page is in the Model, which is JSON. A live page asks besides for the answer
//     of `berth why` about the row that is open, and has links to logs.
//   - Only a client with the token gets an answer from the handler, and cannot change anything with
//     it.
//
// # Never
//
// Nothing is asked of the service by the browser itself, and the page decides nothing.
//
// # Files
//
//	model.go    Model: rows, bars, marks, lines
//	history.go  History: records come in, and are kept by pod
//	row.go      the records of one pod become a row
//	kinds.go    which mark an event is, and how much it matters
//	fold.go     leaving lines out if there is too much
//	write.go    the compact form of a model, and the file
//	summary.go  what a person who opens the page each day looks for first
//	serve.go    the handler: token, host, method, headers
//	page.html, page.css, page.js are for the browser
package page
