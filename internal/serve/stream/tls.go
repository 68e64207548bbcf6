// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// LoadTLS returns a configuration of the server with a certificate, or nil without one. The files
// are read again for each connection, so that a certificate can be renewed while berth runs. If
// clientCA is set, clients have to show a certificate that an authority in this file has signed.
func LoadTLS(certFile, keyFile, clientCA string) (*tls.Config, error) {
	if certFile == "" {
		return nil, nil // there is no TLS
	}
	load := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			return nil, fmt.Errorf("read the certificate of the streaming server: %w", err)
		}
		return &cert, nil
	}
	if _, err := load(nil); err != nil {
		return nil, err
	}
	cfg := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"}, // HTTP/2 cannot be upgraded
		GetCertificate: load,
	}
	if clientCA != "" {
		pem, err := os.ReadFile(clientCA)
		if err != nil {
			return nil, fmt.Errorf("read the authorities of clients of the streaming server: %w", err)
		}
		cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read the authorities of clients of the streaming server: %s has no certificate in PEM", clientCA)
		}
	}
	return cfg, nil
}
