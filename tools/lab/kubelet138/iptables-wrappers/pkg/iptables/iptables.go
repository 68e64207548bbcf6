// SPDX-License-Identifier: Apache-2.0

// Package iptables stands for that of sigs.k8s.io/iptables-wrappers, which the module proxy does
// not serve. It finds no iptables, as on a host that has nftables alone: the kubelet then makes
// none of the rules that it makes for other programs.
package iptables

import (
	"context"
	"time"
)

type (
	// Chain is the name of a chain.
	Chain string
	// Table is the name of a table.
	Table string
	// Position is the end of a chain at which a rule is put.
	Position string
	// Mode chooses one of the two variants of iptables.
	Mode int
	// Family is a family of addresses.
	Family string
)

// The names that the kubelet uses.
const (
	UseInstalledMode Mode     = 0
	TableMangle      Table    = "mangle"
	TableNAT         Table    = "nat"
	TableFilter      Table    = "filter"
	ChainOutput      Chain    = "OUTPUT"
	ChainInput       Chain    = "INPUT"
	Prepend          Position = "-I"
	Append           Position = "-A"
)

// Interface is the part of the client that the kubelet uses.
type Interface interface {
	EnsureChain(ctx context.Context, t Table, c Chain) (bool, error)
	EnsureRule(ctx context.Context, p Position, t Table, c Chain, args ...string) (bool, error)
	IsIPv6() bool
	Protocol() Family
	Monitor(ctx context.Context, canary Chain, tables []Table, reload func(), every time.Duration)
}

// NewBestEffort returns no client.
func NewBestEffort(context.Context, Mode) map[Family]Interface { return nil }
