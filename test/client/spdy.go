// SPDX-License-Identifier: Apache-2.0

package client

import (
	"crypto/tls"
	"io"
	"net/http"
	"testing"

	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// PortForward connects with a port-forward at the URL that CRI has returned, over SPDY. The
// certificate of the server is not checked.
func PortForward(t *testing.T, url string) httpstream.Connection {
	t.Helper()
	return SPDY(t, url, "portforward.k8s.io")
}

// SPDY connects with a URL that CRI has returned, in a protocol over SPDY. The certificate of the
// server is not checked.
func SPDY(t *testing.T, url, protocol string) httpstream.Connection {
	t.Helper()
	rt, err := spdy.NewRoundTripper(&tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Add(httpstream.HeaderProtocolVersion, protocol)
	resp, err := (&http.Client{Transport: rt}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	conn, err := rt.NewConnection(resp)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Talk sends a text to a port, and returns the answer or the reason why there is none. Each request
// of a connection has a name of its own.
func Talk(t *testing.T, conn httpstream.Connection, port, request, text string) (answer, refused string) {
	t.Helper()
	headers := func(kind string) http.Header {
		return http.Header{"Streamtype": {kind}, "Port": {port}, "Requestid": {request}}
	}
	errs, err := conn.CreateStream(headers("error"))
	if err != nil {
		t.Error(err)
		return "", ""
	}
	_ = errs.Close()
	data, err := conn.CreateStream(headers("data"))
	if err != nil {
		t.Error(err)
		return "", ""
	}
	_, _ = io.WriteString(data, text)
	_ = data.Close()
	b, _ := io.ReadAll(data)
	e, _ := io.ReadAll(errs)
	return string(b), string(e)
}
