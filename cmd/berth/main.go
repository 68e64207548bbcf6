// SPDX-License-Identifier: Apache-2.0

// Command berth is a container runtime service for Kubernetes nodes.
package main

import (
	"fmt"
	"os"
	"time"

	"berth/api/client"
	"berth/internal/daemon"
	"berth/tools/ctl"
)

func main() {
	root := ctl.New(ctl.Daemon{Serve: daemon.Serve, Adopt: daemon.Adopt, Check: daemon.Check})
	err := root.Execute()
	if err == nil {
		return
	}
	if err.Error() == "" { // a command in a container has said all that there is to say
		os.Exit(ctl.ExitCode(err))
	}
	// A standard error that nobody reads must not keep the process from ending.
	written := make(chan struct{})
	go func() {
		fmt.Fprintln(os.Stderr, "berth:", ctl.Visible(client.Explain(err).Error()))
		close(written)
	}()
	select {
	case <-written:
	case <-time.After(time.Second):
	}
	os.Exit(ctl.ExitCode(err))
}
