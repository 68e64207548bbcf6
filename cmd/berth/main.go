// SPDX-License-Identifier: Apache-2.0

// Command berth is a container runtime service for Kubernetes nodes.
package main

import (
	"fmt"
	"os"

	"berth/internal/cli"
	"berth/internal/cri"
	"berth/internal/daemon"
)

func main() {
	if err := cli.New(daemon.Serve).Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "berth:", cri.Explain(err))
		os.Exit(cli.ExitCode(err))
	}
}
