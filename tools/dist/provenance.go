// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/secure-systems-lab/go-securesystemslib/signerverifier"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	sums     = "SHA256SUMS"
	signed   = "provenance.dsse.json"
	unsigned = "provenance.unsigned.json"

	payloadType = "application/vnd.in-toto+json"
	buildType   = "urn:berth:make-dist:1"
)

// seal writes the sums of all files of a release, and where they come from: an in-toto statement
// with a predicate of SLSA's, signed with the builder's key if there is one.
func seal(o options) error {
	for _, name := range []string{sums, signed, unsigned} {
		if err := os.Remove(filepath.Join(o.out, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	entries, err := os.ReadDir(o.out) // sorted
	if err != nil {
		return err
	}
	var list bytes.Buffer
	var subjects []*intoto.ResourceDescriptor
	for _, e := range entries {
		sum, err := sumOf(filepath.Join(o.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s  %s\n", sum, e.Name())
		subjects = append(subjects, &intoto.ResourceDescriptor{Name: e.Name(), Digest: map[string]string{"sha256": sum}})
	}
	if len(subjects) == 0 {
		return fmt.Errorf("there is nothing in %s", o.out)
	}
	statement, err := o.statement(subjects)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.out, sums), list.Bytes(), 0o644); err != nil {
		return err
	}
	if o.key == "" {
		fmt.Fprintf(os.Stderr, "dist: there is no key to sign with (make dist KEY=FILE): %s is not signed\n", unsigned)
		return os.WriteFile(filepath.Join(o.out, unsigned), statement, 0o644)
	}
	key, err := readKey(o.key)
	if err != nil {
		return err
	}
	signer, err := dsse.NewEnvelopeSigner(key)
	if err != nil {
		return err
	}
	envelope, err := signer.SignPayload(context.Background(), payloadType, statement)
	if err != nil {
		return fmt.Errorf("sign with %s: %w", o.key, err)
	}
	body, err := json.MarshalIndent(envelope, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, signed), append(body, '\n'), 0o644)
}

// statement describes how the subjects were built.
func (o options) statement(subjects []*intoto.ResourceDescriptor) ([]byte, error) {
	parameters, err := structpb.NewStruct(map[string]any{"command": "make dist", "commit": o.commit})
	if err != nil {
		return nil, err
	}
	p := &provenance.Provenance{
		BuildDefinition: &provenance.BuildDefinition{
			BuildType:          buildType,
			ExternalParameters: parameters,
			ResolvedDependencies: []*intoto.ResourceDescriptor{
				{Name: "source", Digest: map[string]string{"gitCommit": o.commit}},
			},
		},
		RunDetails: &provenance.RunDetails{Builder: &provenance.Builder{Id: "urn:berth:whoever-has-the-key"}},
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	b, err := protojson.Marshal(p)
	if err != nil {
		return nil, err
	}
	predicate := &structpb.Struct{}
	if err := protojson.Unmarshal(b, predicate); err != nil {
		return nil, err
	}
	s := &intoto.Statement{
		Type:          intoto.StatementTypeUri,
		Subject:       subjects,
		PredicateType: "https://slsa.dev/provenance/v1",
		Predicate:     predicate,
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if b, err = protojson.Marshal(s); err != nil {
		return nil, err
	}
	// protojson varies its white space on purpose.
	var plain bytes.Buffer
	err = json.Compact(&plain, b)
	return plain.Bytes(), err
}

// verify fails unless the provenance in a directory was signed with a key, and the files there are
// those that it names.
func verify(o options) error {
	body, err := os.ReadFile(filepath.Join(o.out, signed))
	if err != nil {
		return fmt.Errorf("there is no signed provenance: %w", err)
	}
	var envelope dsse.Envelope
	if err := json.Unmarshal(body, &envelope); err != nil {
		return fmt.Errorf("read %s: %w", signed, err)
	}
	key, err := readKey(o.key)
	if err != nil {
		return err
	}
	verifier, err := dsse.NewEnvelopeVerifier(key)
	if err != nil {
		return err
	}
	if _, err := verifier.Verify(context.Background(), &envelope); err != nil {
		return fmt.Errorf("%s was not signed with %s: %w", signed, o.key, err)
	}
	payload, err := envelope.DecodeB64Payload()
	if err != nil {
		return err
	}
	var s intoto.Statement
	if err := protojson.Unmarshal(payload, &s); err != nil || envelope.PayloadType != payloadType {
		return fmt.Errorf("%s has no in-toto statement, but %s: %v", signed, envelope.PayloadType, err)
	}
	entries, err := os.ReadDir(o.out)
	if err != nil {
		return err
	}
	seen := 0
	for _, e := range entries {
		if slices.Contains([]string{sums, signed}, e.Name()) {
			continue
		}
		sum, err := sumOf(filepath.Join(o.out, e.Name()))
		if err != nil {
			return err
		}
		ok := slices.ContainsFunc(s.GetSubject(), func(d *intoto.ResourceDescriptor) bool {
			return d.GetName() == e.Name() && d.GetDigest()["sha256"] == sum
		})
		if !ok {
			return fmt.Errorf("%s is not what was signed", e.Name())
		}
		seen++
	}
	commit := s.GetPredicate().GetFields()["buildDefinition"].GetStructValue().GetFields()["externalParameters"].GetStructValue().GetFields()["commit"].GetStringValue()
	fmt.Printf("%d files are what was signed, of the %d that were, built of commit %s\n", seen, len(s.GetSubject()), commit)
	return nil
}

// readKey reads a key, private or public, of Ed25519 or ECDSA.
func readKey(path string) (dsse.SignerVerifier, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	key, err := signerverifier.LoadKey(pem)
	if err != nil {
		return nil, fmt.Errorf("read the key %s: %w", path, err)
	}
	switch {
	case key.KeyType == signerverifier.ED25519KeyType:
		return signerverifier.NewED25519SignerVerifierFromSSLibKey(key)
	case strings.HasPrefix(key.KeyType, signerverifier.ECDSAKeyType):
		return signerverifier.NewECDSASignerVerifierFromSSLibKey(key)
	}
	return nil, fmt.Errorf("the key %s is of type %s: it has to be of Ed25519 or ECDSA", path, key.KeyType)
}
