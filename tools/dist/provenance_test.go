// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// keys writes a key and the public one of it, as openssl does.
func keys(t *testing.T, dir string, private crypto.Signer) (key, pub string) {
	t.Helper()
	a, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	b, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	key, pub = filepath.Join(dir, "key.pem"), filepath.Join(dir, "pub.pem")
	if err := errors.Join(
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: a}), 0o600),
		os.WriteFile(pub, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: b}), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	return key, pub
}

const commit = "3379cd1753f8eb3ef6673bc91a21649edc369ae4"

// What was signed is verified, and nothing else is.
func TestProvenance(t *testing.T) {
	_, edKey, _ := ed25519.GenerateKey(rand.Reader)
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, other, _ := ed25519.GenerateKey(rand.Reader)
	for name, private := range map[string]crypto.Signer{"Ed25519": edKey, "ECDSA": ecKey} {
		out := t.TempDir()
		for _, file := range []string{"a.tar.gz", "b.deb"} {
			if err := os.WriteFile(filepath.Join(out, file), []byte(file), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		key, pub := keys(t, t.TempDir(), private)
		_, strange := keys(t, t.TempDir(), other)
		if err := seal(options{out: out, commit: commit, key: key}); err != nil {
			t.Fatal(name, err)
		}
		list, _ := os.ReadFile(filepath.Join(out, sums))
		if strings.Count(string(list), "\n") != 2 || !strings.Contains(string(list), "  a.tar.gz\n") {
			t.Errorf("%s is %s", sums, list)
		}
		if err := verify(options{out: out, key: pub}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		refused := func(why string, o options) {
			t.Helper()
			if err := verify(o); err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s: %v, want %q", name, err, why)
			}
		}
		refused("was not signed with", options{out: out, key: strange})
		envelope := filepath.Join(out, signed)
		whole, _ := os.ReadFile(envelope)
		_ = os.WriteFile(envelope, bytes.Replace(whole, []byte(`"payload": "ey`), []byte(`"payload": "e2`), 1), 0o644)
		refused("was not signed with", options{out: out, key: pub})
		_ = os.WriteFile(envelope, whole, 0o644)
		_ = os.WriteFile(filepath.Join(out, "a.tar.gz"), []byte("another"), 0o644)
		refused("a.tar.gz is not what was signed", options{out: out, key: pub})
		_ = os.WriteFile(filepath.Join(out, "a.tar.gz"), []byte("a.tar.gz"), 0o644)
		_ = os.WriteFile(filepath.Join(out, "more"), nil, 0o644)
		refused("more is not what was signed", options{out: out, key: pub})
	}
}

// Without a key nothing claims to be signed, and what was signed before is gone.
func TestWithoutAKey(t *testing.T) {
	out := t.TempDir()
	for _, file := range []string{"a", signed} {
		if err := os.WriteFile(filepath.Join(out, file), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := seal(options{out: out, commit: commit}); err != nil {
		t.Fatal(err)
	}
	if err := verify(options{out: out}); err == nil || !strings.Contains(err.Error(), "no signed provenance") {
		t.Error(err)
	}
	b, err := os.ReadFile(filepath.Join(out, unsigned))
	if err != nil || !bytes.Contains(b, []byte("https://slsa.dev/provenance/v1")) || !bytes.Contains(b, []byte(commit)) {
		t.Errorf("%v %s", err, b)
	}
	again := t.TempDir()
	_ = os.WriteFile(filepath.Join(again, "a"), nil, 0o644)
	if err := seal(options{out: again, commit: commit}); err != nil {
		t.Fatal(err)
	}
	if c, _ := os.ReadFile(filepath.Join(again, unsigned)); !bytes.Equal(b, c) {
		t.Errorf("of the same files it is another one:\n%s\n%s", b, c)
	}
}

// An archive has neither the times, the owners nor the order of the host in it.
func TestAnArchiveIsReproducible(t *testing.T) {
	var all [][]byte
	for range 2 {
		dir := filepath.Join(t.TempDir(), "berth")
		o := options{out: dir, epoch: 1}
		if err := errors.Join(o.put("bin/berth", []byte("x"), 0o755), o.put("a", nil, 0o600), os.Symlink("bin/berth", dir+"/berth"), list(dir)); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "a.tar.gz")
		if err := archive(dir, path, o); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	if !bytes.Equal(all[0], all[1]) {
		t.Error("two archives of the same files differ")
	}
}
