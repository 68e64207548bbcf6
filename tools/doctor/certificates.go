// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"time"
)

// soon is how long before its end a certificate is worth a warning.
const soon = 14 * 24 * time.Hour

func askCertificates(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	peer := m.cfg.Image.Peer
	if m.cfg.Streams.CertFile == "" && !peer.On() {
		return nil, errNothing("no certificate is configured")
	}
	m.askPair(&f, "streams", m.cfg.Streams.CertFile, m.cfg.Streams.KeyFile, "exec, attach and port-forward do not work")
	if peer.On() {
		m.askPair(&f, "image.peer", peer.CertFile, peer.KeyFile, "other nodes refuse this one")
		if b, ok := m.certificate(&f, "image.peer.ca_file", peer.CAFile, "other nodes are refused"); ok {
			m.askEnd(&f, "image.peer.ca_file", peer.CAFile, b, "other nodes are refused")
		}
	}
	return f.result()
}

// certificate reads a PEM file, and reports a finding if it is absent.
func (m *machine) certificate(f *findings, key, path, what string) ([]byte, bool) {
	b, err := os.ReadFile(m.path(path))
	if absent(err) {
		f.add(Error, "put it there, or correct the setting", "%s is %s, which does not exist: %s", key, path, what)
		return nil, false
	}
	f.unasked(err)
	return b, err == nil
}

func (m *machine) askPair(f *findings, table, cert, key, what string) {
	if cert == "" || key == "" {
		return
	}
	c, okCert := m.certificate(f, table+".cert_file", cert, what)
	k, okKey := m.certificate(f, table+".key_file", key, what)
	if okKey {
		st, err := os.Stat(m.path(key))
		f.unasked(err)
		if err == nil && st.Mode().Perm()&0o077 != 0 {
			f.add(Warning, "run chmod 600 "+key+", and have the certificate made anew if others were on this node", "the key %s has the mode %o: others may read it", key, st.Mode().Perm())
		}
	}
	if !okCert || !okKey {
		return
	}
	if _, err := tls.X509KeyPair(c, k); err != nil {
		f.add(Error, "put a certificate and its own key there, both in PEM", "%s and %s cannot be used together: %v: %s", cert, key, err, what)
		return
	}
	m.askEnd(f, table+".cert_file", cert, c, what)
}

// askEnd reports if one of the certificates of a file has ended, ends soon, or has not begun.
func (m *machine) askEnd(f *findings, key, path string, b []byte, what string) {
	const renew = "renew it; berth reads it again by itself"
	n := 0
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		n++
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			f.add(Error, renew, "%s, %s, has a certificate that cannot be read: %v", path, key, err)
			continue
		}
		now, end := m.Now(), c.NotAfter.UTC().Format(time.DateTime+" MST")
		switch {
		case now.After(c.NotAfter):
			f.add(Error, renew, "the certificate %s has ended on %s: %s", path, end, what)
		case now.Before(c.NotBefore):
			f.add(Error, "set the clock, or renew the certificate", "the certificate %s is valid from %s on only: %s", path, c.NotBefore.UTC().Format(time.DateTime+" MST"), what)
		case c.NotAfter.Sub(now) < soon:
			f.add(Warning, renew, "the certificate %s ends in %s, on %s", path, days(c.NotAfter.Sub(now)), end)
		}
	}
	if n == 0 {
		f.add(Error, renew, "%s is %s, which has no certificate in PEM: %s", key, path, what)
	}
}

func days(d time.Duration) string {
	if n := int(d.Hours() / 24); n != 1 {
		return fmt.Sprintf("%d days", n)
	}
	return "1 day"
}
