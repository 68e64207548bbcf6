// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Files are a node's certificate and key, and the authority that it trusts. They are read again for
// each connection, so that a certificate can be renewed while berth runs.
type Files struct {
	CA   string // PEM file of the authority that has signed the certificates of all peers
	Cert string // PEM file of this node's certificate, for servers and clients
	Key  string // PEM file of its key
	Name string // DNS name that the certificate of each peer has to have
}

// Check returns an error if the files cannot be used now.
func (f Files) Check() error {
	_, _, err := f.load()
	return err
}

// load reads the files.
func (f Files) load() (tls.Certificate, *x509.CertPool, error) {
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("read the certificate for peers: %w", err)
	}
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("read the authority of peers: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return tls.Certificate{}, nil, fmt.Errorf("read the authority of peers: %s has no certificate in PEM", f.CA)
	}
	return cert, pool, nil
}

// server returns the configuration of a server that takes peers alone.
func (f Files) server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cert, pool, err := f.load()
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion:             tls.VersionTLS13,
				Certificates:           []tls.Certificate{cert},
				ClientCAs:              pool,
				ClientAuth:             tls.RequireAndVerifyClientCert,
				SessionTicketsDisabled: true, // a session that is resumed is not verified again
				VerifyConnection:       f.named,
			}, nil
		},
	}
}

// client returns the configuration of a client that takes peers alone.
func (f Files) client() (*tls.Config, error) {
	cert, pool, err := f.load()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		RootCAs:      pool,
		ServerName:   f.Name,
	}, nil
}

// named refuses a client whose certificate is not that of a peer: the authority may have signed
// others as well.
func (f Files) named(c tls.ConnectionState) error {
	if len(c.PeerCertificates) == 0 {
		return errors.New("the client has no certificate")
	}
	if err := c.PeerCertificates[0].VerifyHostname(f.Name); err != nil {
		return fmt.Errorf("the client is not a peer: %w", err)
	}
	return nil
}
