// SPDX-License-Identifier: Apache-2.0

package image

// Part is the result of a verification of one blob or unpacked layer of an image.
type Part struct {
	Kind    string `json:"kind"` // layer, blob or profile
	ID      string `json:"id"`   // the chain ID of a layer, the digest of a blob or profile
	Outcome string `json:"outcome"`
	Detail  string `json:"detail,omitempty"`
}

// The results of a verification.
const (
	PartWhole    = "whole"
	PartWrong    = "wrong"
	PartRepaired = "repaired"
	PartRemoved  = "removed"
	PartMissing  = "missing" // the blob of a layer that is unpacked need not be there
	PartUnknown  = "unknown" // it could not be looked at
)
