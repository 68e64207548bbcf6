// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
)

// A client has to show a certificate of the authorities, if there are some.
func TestAClientShowsItsCertificate(t *testing.T) {
	own := certificate(t).Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, b := range map[string]*pem.Block{
		"cert": {Type: "CERTIFICATE", Bytes: own.Certificate[0]},
		"key":  {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for ca, refuses := range map[string]bool{"": false, dir + "/cert": true} {
		server, err := LoadTLS(dir+"/cert", dir+"/key", ca)
		if err != nil {
			t.Fatal(err)
		}
		for shows, refused := range map[bool]bool{false: refuses, true: false} {
			client := &tls.Config{InsecureSkipVerify: true}
			if shows {
				client.Certificates = []tls.Certificate{own}
			}
			lis, err := tls.Listen("tcp", "127.0.0.1:0", server)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				c, err := lis.Accept()
				if err == nil {
					err = c.(*tls.Conn).Handshake()
					_ = c.Close()
				}
				done <- err
			}()
			if c, err := tls.Dial("tcp", lis.Addr().String(), client); err == nil {
				_ = c.Close()
			}
			if err := <-done; (err != nil) != refused {
				t.Errorf("authorities %q, certificate shown %t: %v", ca, shows, err)
			}
			_ = lis.Close()
		}
	}
	for _, ca := range []string{dir + "/absent", dir + "/key"} {
		if _, err := LoadTLS(dir+"/cert", dir+"/key", ca); err == nil {
			t.Errorf("%s is not a file of authorities", ca)
		}
	}
}
