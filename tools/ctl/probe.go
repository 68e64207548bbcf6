// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
)

type prober struct {
	client *client.Client
	id     string // of the container
	ip     string // of the pod
	probe  *corev1.Probe
}

// watch runs the probe again and again until ctx ends. It calls changed whenever enough attempts in
// a row have had the other result, with the error of the last one, and ends if that returns false.
// The probe begins as not successful, and changed is called for its first result in either
// direction. An attempt that a restart of berth cuts off has no result.
func (p *prober) watch(ctx context.Context, changed func(healthy bool, why error) bool) {
	if !pause(ctx, seconds(p.probe.InitialDelaySeconds)) {
		return
	}
	var healthy, known bool
	var good, failed int32
	for {
		err := p.once(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			good, failed = good+1, 0
		case !client.IsUnavailable(err):
			good, failed = 0, failed+1
		}
		enough := good >= p.probe.SuccessThreshold || failed >= p.probe.FailureThreshold
		if now := err == nil; enough && !client.IsUnavailable(err) && (now != healthy || !known) {
			healthy, known = now, true
			if !changed(healthy, err) {
				return
			}
		}
		if !pause(ctx, seconds(p.probe.PeriodSeconds)) {
			return
		}
	}
}

// once runs the probe once. The error is the reason of the failure.
func (p *prober) once(ctx context.Context) error {
	limit := seconds(p.probe.TimeoutSeconds)
	switch h := p.probe.ProbeHandler; {
	case h.Exec != nil:
		return p.exec(ctx, h.Exec.Command)
	case h.HTTPGet != nil:
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return p.get(ctx, h.HTTPGet)
	case h.TCPSocket != nil:
		conn, err := (&net.Dialer{Timeout: limit}).DialContext(ctx, "tcp", p.address(h.TCPSocket.Host, h.TCPSocket.Port.IntValue()))
		if err != nil {
			return err
		}
		return conn.Close()
	}
	return fmt.Errorf("the probe has no handler that berth knows")
}

func (p *prober) exec(ctx context.Context, command []string) error {
	resp, err := p.client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: p.id,
		Cmd:         command,
		Timeout:     int64(p.probe.TimeoutSeconds),
	})
	if err != nil {
		return client.Explain(err)
	}
	if resp.GetExitCode() != 0 {
		const enough = 200 // of the command's output
		text := strings.TrimSpace(string(resp.GetStdout()) + string(resp.GetStderr()))
		return fmt.Errorf("the command ended with %d: %.*s", resp.GetExitCode(), enough, text)
	}
	return nil
}

// get makes a request as the kubelet does: a certificate is not verified, and a redirect to another
// host is a success that is not followed.
func (p *prober) get(ctx context.Context, h *corev1.HTTPGetAction) error {
	at := url.URL{Scheme: strings.ToLower(string(h.Scheme)), Host: p.address(h.Host, h.Port.IntValue())}
	if at.Scheme == "" {
		at.Scheme = "http"
	}
	ref, err := url.Parse(h.Path)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.ResolveReference(&url.URL{Path: "/"}).ResolveReference(ref).String(), http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "berth-play")
	for _, f := range h.HTTPHeaders {
		req.Header.Add(f.Name, f.Value)
		if strings.EqualFold(f.Name, "Host") {
			req.Host = f.Value
		}
	}
	client := http.Client{
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as the kubelet does
			DisableKeepAlives: true,
		},
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			if next.URL.Hostname() != via[0].URL.Hostname() || len(via) >= 10 {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 10<<10)
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("GET %s: %s", req.URL, resp.Status)
	}
	return nil
}

func (p *prober) address(host string, port int) string {
	if host == "" {
		host = p.ip
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// pause waits, and is false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
