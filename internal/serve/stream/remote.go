// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	utilexec "k8s.io/utils/exec"
)

// maxSizeLength is how long the JSON of one size of a terminal may be.
const maxSizeLength = 4096

// remoteCall is an exec or attach that a client may ask for with its URL.
type remoteCall struct {
	streams  streams // that the client wants
	terminal bool
	patience time.Duration // see defaultPatience
	run      func(ctx context.Context, c client) error
}

// remote is a client that has its streams.
type remote struct {
	client
	sizes  io.Reader // nil: no terminal
	errors io.Writer
	plain  bool // the client expects the message of an error, and not a status as JSON
	// startParting is called when the call has ended, and close when its end is written.
	startParting func()
	close        func()
}

// serve connects a client with its process, and reports its end to the client.
func (c remoteCall) serve(w http.ResponseWriter, req *http.Request) {
	open := c.overSPDY
	if websocket.IsWebSocketUpgrade(req) {
		open = c.overWebSocket
	}
	r := open(w, req)
	if r == nil {
		return
	}
	defer r.close()
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	if r.sizes != nil {
		r.client.resize = readSizes(ctx, r.sizes)
	}
	err := c.run(ctx, r.client)
	r.startParting()
	r.report(err)
	r.close()
}

// overSPDY waits until the client has opened its streams. It returns nil if that cannot be, or
// takes too long.
func (c remoteCall) overSPDY(w http.ResponseWriter, req *http.Request) *remote {
	missing := map[string]bool{
		remotecommand.StreamTypeError:  true,
		remotecommand.StreamTypeStdin:  c.streams.stdin,
		remotecommand.StreamTypeStdout: c.streams.stdout,
		remotecommand.StreamTypeStderr: c.streams.stderr,
		remotecommand.StreamTypeResize: c.terminal,
	}
	opened := make(chan httpstream.Stream, len(missing)) // accept lets no more of them through
	accept := func(_ *spdyConn, stream httpstream.Stream) error {
		kind := stream.Headers().Get(remotecommand.StreamType)
		if !missing[kind] {
			return fmt.Errorf("a stream %q is not expected", kind)
		}
		missing[kind] = false
		return nil
	}
	wanted := 0
	for _, is := range missing {
		if is {
			wanted++
		}
	}
	conn := upgrade(w, req, remotecommand.StreamProtocolV4Name, accept,
		func(_ *spdyConn, s httpstream.Stream) { opened <- s })
	if conn == nil {
		return nil
	}
	r := &remote{startParting: conn.startParting, close: conn.close}
	timeout := time.NewTimer(c.patience)
	defer timeout.Stop()
	for range wanted {
		select {
		case s := <-opened:
			r.put(s)
		case <-timeout.C:
			conn.close()
			return nil
		case <-req.Context().Done():
			conn.close()
			return nil
		}
	}
	return r
}

func (r *remote) put(s httpstream.Stream) {
	switch s.Headers().Get(remotecommand.StreamType) {
	case remotecommand.StreamTypeError:
		r.errors = s
	case remotecommand.StreamTypeStdin:
		r.stdin = s
	case remotecommand.StreamTypeStdout:
		r.stdout = s
	case remotecommand.StreamTypeStderr:
		r.stderr = s
	case remotecommand.StreamTypeResize:
		r.sizes = s
	}
}

// The protocols of a WebSocket. Clients of versions 4 and 5 get the end of a call as JSON, and
// those of version 5, the only one that kubectl and crictl use, can end the input.
const (
	binaryProtocol   = "channel.k8s.io"
	base64Protocol   = "base64.channel.k8s.io"
	v4BinaryProtocol = "v4." + binaryProtocol
	v4Base64Protocol = "v4." + base64Protocol
	v5Protocol       = remotecommand.StreamProtocolV5Name
)

var remoteProtocols = []string{v5Protocol, v4BinaryProtocol, v4Base64Protocol, binaryProtocol, base64Protocol}

// overWebSocket upgrades to a WebSocket, on which the streams are channels that need not be opened.
// It returns nil if that cannot be.
func (c remoteCall) overWebSocket(w http.ResponseWriter, req *http.Request) *remote {
	s := upgradeSocket(w, req, remoteProtocols, []use{
		remotecommand.StreamStdIn:  {read: c.streams.stdin},
		remotecommand.StreamStdOut: {write: c.streams.stdout},
		remotecommand.StreamStdErr: {write: c.streams.stderr},
		remotecommand.StreamErr:    {write: true},
		remotecommand.StreamResize: {read: true},
	})
	if s == nil {
		return nil
	}
	r := &remote{
		sizes:        s.channels[remotecommand.StreamResize],
		errors:       s.channels[remotecommand.StreamErr],
		plain:        !strings.HasPrefix(s.protocol, "v"),
		startParting: s.startParting,
		close:        s.close,
	}
	first := r.errors
	if c.streams.stdin {
		r.stdin = s.channels[remotecommand.StreamStdIn]
	}
	if c.streams.stderr {
		r.stderr = s.channels[remotecommand.StreamStdErr]
		first = r.stderr
	}
	if c.streams.stdout {
		r.stdout = s.channels[remotecommand.StreamStdOut]
		first = r.stdout
	}
	_, _ = first.Write(nil) // clients wait for a message as a sign that they are connected
	return r
}

// readSizes reads the sizes of a terminal until ctx ends or the stream does, and then closes the
// channel. An invalid size ends it, too, and the rest is dropped.
func readSizes(ctx context.Context, from io.Reader) <-chan remotecommand.TerminalSize {
	sizes := make(chan remotecommand.TerminalSize)
	go func() {
		// otherwise the rest keeps other streams waiting
		defer func() { _, _ = io.Copy(io.Discard, from) }()
		defer close(sizes)
		bounded := &io.LimitedReader{R: from}
		decoder := json.NewDecoder(bounded)
		for {
			bounded.N = maxSizeLength // the decoder keeps all of a value that does not end
			var size remotecommand.TerminalSize
			if decoder.Decode(&size) != nil {
				return
			}
			select {
			case sizes <- size:
			case <-ctx.Done():
				return
			}
		}
	}()
	return sizes
}

// report tells the client how a call has ended.
func (r *remote) report(err error) {
	st := metav1.Status{Status: metav1.StatusSuccess}
	var exit utilexec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit) && exit.Exited():
		st = metav1.Status{
			Status:  metav1.StatusFailure,
			Reason:  remotecommand.NonZeroExitCodeReason,
			Message: fmt.Sprintf("command terminated with non-zero exit code: %v", exit),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{
				Type:    remotecommand.ExitCodeCauseType,
				Message: strconv.Itoa(exit.ExitStatus()),
			}}},
		}
	default:
		st = metav1.Status{
			Status:  metav1.StatusFailure,
			Reason:  metav1.StatusReasonInternalError,
			Message: fmt.Sprintf("Internal error occurred: %v", err),
			Code:    http.StatusInternalServerError,
		}
	}
	if r.plain {
		_, _ = io.WriteString(r.errors, st.Message)
		return
	}
	b, err := json.Marshal(st)
	if err == nil {
		_, _ = r.errors.Write(b)
	}
}
