// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"context"
	"io"
)

// Request is an operator's request.
type Request struct {
	// Back gives the adopted pods to the plug-in, and DryRun changes nothing.
	Back, DryRun bool
	// Leave has pods that the plug-in cannot have stay berth's.
	Leave bool
	// End are the pods that may end if they cannot be adopted: see [Settings]. Remove ends one, by
	// its ID, at the runtime that serves at an address.
	End    []string
	Remove func(ctx context.Context, address, id string) error
	// Switch is a shell command that turns the plug-in off, and Start one that starts berth: both are
	// run while the pipes of the containers are held open. "" for none.
	Switch, Start string
	// ContainerdState is containerd's volatile directory, which does not survive a reboot; "" for
	// the directory of its socket. CNICache is the directory in which libcni keeps results.
	ContainerdState, CNICache string
	// Planned is called with the plan before it is carried out. Said is called with a sentence for
	// each step. Output receives the output of the commands.
	Planned     func(Plan)
	PlannedBack func(Back)
	Said        func(format string, args ...any)
	Output      io.Writer
}
