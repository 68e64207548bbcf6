// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"berth/internal/images/image"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// An identity token is exchanged for one that the registry takes, and is not itself sent to the
// registry. PROPERTIES 22.
func TestAnIdentityTokenIsExchanged(t *testing.T) {
	img, err := testimage.Image(v1Config())
	if err != nil {
		t.Fatal(err)
	}
	realm := listen(t, func(w http.ResponseWriter, r *http.Request) {
		if r.PostFormValue("grant_type") != "refresh_token" || r.PostFormValue("refresh_token") != "identity" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "good", "expires_in": 300})
	})
	open := true
	var sent []string
	reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if open {
				next.ServeHTTP(w, r)
				return
			}
			sent = append(sent, r.Header.Get("Authorization"))
			if r.Header.Get("Authorization") != "Bearer good" {
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm.URL+`/token",service="x",scope="repository:team/app:pull"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}))
	ref := reg.Push("team/app:1", img)
	open = false
	if _, _, err := resolver(t, reg.Addr, image.Credentials{IdentityToken: "identity"}).Resolve(t.Context(), ref); err != nil {
		t.Errorf("the token is not exchanged: %v", err)
	}
	if len(sent) != 2 || !slices.Contains(sent, "Bearer good") || slices.Contains(sent, "Bearer identity") {
		t.Errorf("the registry was sent %q", sent)
	}
	if _, _, err := resolver(t, reg.Addr, image.Credentials{IdentityToken: "another"}).Resolve(t.Context(), ref); err == nil {
		t.Error("resolved with an identity that the token server does not know")
	}
}
