// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"crypto/tls"
	"fmt"
)

// LoadTLS returns a configuration of the server with a certificate, or nil without one. The files
// are read again for each connection, so that a certificate can be renewed while berth runs.
func LoadTLS(certFile, keyFile string) (*tls.Config, error) {
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
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"}, // HTTP/2 cannot be upgraded
		GetCertificate: load,
	}, nil
}
