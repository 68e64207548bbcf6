// SPDX-License-Identifier: Apache-2.0

package stream

import "berth/internal/base/budget"

// shares are the budgets that the streams and commands of all pods share. The figures leave a node
// with hundreds of pods enough room for people and the kubelet, and bound the memory of berth,
// which the OOM killer spares.
type shares struct {
	// commands are the processes of ExecSync, and sessions those of exec, and attached clients.
	// They are apart so that probes that hang leave a person room to find out why.
	commands *budget.Budget
	sessions *budget.Budget
	// streams are the URLs and connections of exec and attach, and forwards those of port-forward.
	// A connection over SPDY costs 2 MiB at most: 0.9 MiB for the library's compressor, and up to 1
	// MiB of unread input.
	streams  *budget.Budget
	forwards *budget.Budget
	// ports are the connections to ports of pods within those of forwards. One costs 50 KiB: a
	// buffer for each direction, and three goroutines.
	ports *budget.Budget
	// memory is for output, in bytes: see capture, and attached.
	memory *budget.Budget
}

func newShares() shares {
	return shares{
		commands: budget.New(budget.Limits{
			Name: "exec_sync_processes",
			What: "processes of ExecSync",
			Node: 1024,
			Pod:  128,
			Sure: 8,
		}),
		sessions: budget.New(budget.Limits{
			Name: "exec_processes",
			What: "processes of exec and attached clients",
			Node: 512,
			Pod:  64,
			Sure: 4,
		}),
		streams: budget.New(budget.Limits{
			Name: "exec_streams",
			What: "streams of exec and attach",
			Node: 384,
			Pod:  64,
			Sure: 4,
		}),
		forwards: budget.New(budget.Limits{
			Name: "port_forward_streams",
			What: "streams of port-forward",
			Node: 128,
			Pod:  32,
			Sure: 2,
		}),
		ports: budget.New(budget.Limits{
			Name: "forwarded_connections",
			What: "forwarded connections",
			Node: 2048,
			Pod:  512,
			Sure: 8,
		}),
		memory: budget.New(budget.Limits{
			Name: "output_bytes",
			What: "bytes of output that is kept for exec and attach",
			Node: 256 << 20,
			Pod:  64 << 20,
			Sure: 2 << 20,
		}),
	}
}

// Budgets returns the budgets of streams and commands, for metrics.
func (s *Service) Budgets() []*budget.Budget {
	return []*budget.Budget{s.commands, s.sessions, s.streams, s.forwards, s.ports, s.memory}
}
