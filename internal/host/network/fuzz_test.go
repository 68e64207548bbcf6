// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// A configuration of a network that can be used has a name and a plug-in.
func FuzzConf(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"bridge"}]}`), true)
	f.Add([]byte(`{"cniVersion":"0.4.0","name":"a","type":"bridge"}`), false)
	f.Fuzz(func(t *testing.T, b []byte, list bool) {
		path := filepath.Join(t.TempDir(), "10-a.conf")
		if list {
			path += "list"
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := loadFile(path)
		if err == nil && (l == nil || len(l.Plugins) == 0) {
			t.Errorf("%q is a network without a plug-in", b)
		}
	})
}

// The addresses that a plug-in's result gives a pod are addresses, whatever the result says.
func FuzzResult(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/a"}],"ips":[{"interface":0,"address":"10.0.0.2/24"}]}`))
	f.Add([]byte(`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`))
	f.Add([]byte(`{"cniVersion":"1.0.0","ips":[{"interface":-5,"address":"10.0.0.2/24"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v struct {
			Version string `json:"cniVersion"`
		}
		if json.Unmarshal(b, &v) != nil {
			return
		}
		res, err := create.Create(v.Version, b)
		if err != nil {
			return
		}
		r, err := current.NewResultFromResult(res)
		if err != nil {
			return
		}
		for _, ip := range podAddresses(r) {
			if ip == "" {
				t.Errorf("%q gives a pod an address that is none", b)
			}
		}
	})
}
