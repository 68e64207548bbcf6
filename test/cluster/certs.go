// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"testing"
	"time"
)

// authority signs the certificates of a cluster. Each is a file NAME.crt with a key NAME.key beside
// it, and has all that servers and clients need.
type authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	last int64 // serial number
}

// newAuthority makes an authority, ca.crt, and a directory for its certificates. A key for the
// tokens of service accounts, sa.key and sa.pub, is there as well.
func newAuthority(t testing.TB, dir string) *authority {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, dir: dir, key: newKey(t)}
	a.cert = a.template("berth-test-cluster")
	a.cert.IsCA, a.cert.BasicConstraintsValid, a.cert.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	der := a.sign(a.cert, a.cert, a.key.Public())
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.write("ca.crt", "CERTIFICATE", der)
	accounts := newKey(t)
	a.writeKey("sa.key", accounts)
	public, err := x509.MarshalPKIXPublicKey(accounts.Public())
	if err != nil {
		t.Fatal(err)
	}
	a.write("sa.pub", "PUBLIC KEY", public)
	return a
}

// issue signs a certificate for a user, with the groups that he is in, or for the hosts of a
// server.
func (a *authority) issue(name, user string, groups []string, hosts ...string) {
	a.t.Helper()
	cert := a.template(user)
	cert.Subject.Organization = groups
	cert.KeyUsage = x509.KeyUsageDigitalSignature
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			cert.IPAddresses = append(cert.IPAddresses, ip)
		} else {
			cert.DNSNames = append(cert.DNSNames, h)
		}
	}
	key := newKey(a.t)
	a.write(name+".crt", "CERTIFICATE", a.sign(cert, a.cert, key.Public()))
	a.writeKey(name+".key", key)
}

// kubeconfig writes NAME.conf, with which the user of a certificate calls the API server at an
// address.
func (a *authority) kubeconfig(name, address string) {
	a.t.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://%s:6443", certificate-authority: %s/ca.crt}}]
users: [{name: u, user: {client-certificate: %s/%s.crt, client-key: %s/%s.key}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
`, address, a.dir, a.dir, name, a.dir, name)
	if err := os.WriteFile(a.dir+"/"+name+".conf", []byte(text), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// client is the TLS configuration of a user's client.
func (a *authority) client(name string) *tls.Config {
	a.t.Helper()
	pair, err := tls.LoadX509KeyPair(a.dir+"/"+name+".crt", a.dir+"/"+name+".key")
	if err != nil {
		a.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}

func (a *authority) template(name string) *x509.Certificate {
	a.last++
	return &x509.Certificate{
		SerialNumber: big.NewInt(a.last),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}

func (a *authority) sign(cert, parent *x509.Certificate, key crypto.PublicKey) []byte {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, key, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return der
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) writeKey(file string, key *ecdsa.PrivateKey) {
	a.t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(file, "EC PRIVATE KEY", der)
}

func (a *authority) write(file, kind string, der []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.dir+"/"+file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}
