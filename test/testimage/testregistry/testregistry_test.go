// SPDX-License-Identifier: Apache-2.0

package testregistry_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"slices"
	"testing"

	"berth/test/testimage"
	"berth/test/testimage/testregistry"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func small(t *testing.T) v1.Image {
	t.Helper()
	layer, err := testimage.Layer(testimage.File{Name: "hello", Mode: 0o644, Body: []byte("hi\n")})
	if err != nil {
		t.Fatal(err)
	}
	img, err := testimage.Image(v1.Config{}, layer)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestPullsWithTheRightPasswordOnly(t *testing.T) {
	for kind, options := range map[string][]testregistry.Option{
		"open":  nil,
		"basic": {testregistry.BasicAuth("u", "secret")},
		"token": {testregistry.TokenAuth("u", "secret")},
		"tls":   {testregistry.TLS(), testregistry.TokenAuth("u", "secret")},
	} {
		t.Run(kind, func(t *testing.T) {
			r := testregistry.Start(t, options...)
			ref, err := name.ParseReference(r.Push("demo/small:1", small(t)))
			if err != nil {
				t.Fatal(err)
			}
			pull := func(password string) error {
				img, err := remote.Image(ref, remote.WithTransport(trusting(r)),
					remote.WithAuth(&authn.Basic{Username: "u", Password: password}))
				if err != nil {
					return err
				}
				return validate.Image(img)
			}
			if err := pull("secret"); err != nil {
				t.Error(err)
			}
			if err := pull("wrong"); (err == nil) != (kind == "open") {
				t.Errorf("pull with a wrong password: %v", err)
			}
			if len(r.Requests()) == 0 {
				t.Error("no request was recorded")
			}
		})
	}
}

func TestFrontSeesEveryRequestFirst(t *testing.T) {
	r := testregistry.Start(t, testregistry.Front(func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	}))
	resp, err := http.Get("http://" + r.Addr + "/v2/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusTeapot {
		t.Errorf("status = %d", resp.StatusCode)
	}
	if want := []testregistry.Request{{Method: "GET", Path: "/v2/"}}; !slices.Equal(r.Requests(), want) {
		t.Errorf("requests = %v, want %v", r.Requests(), want)
	}
}

func trusting(r *testregistry.Registry) http.RoundTripper {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(r.CA)
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}
}
