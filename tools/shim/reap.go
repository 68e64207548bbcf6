// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/signal"

	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// reap reaps the children of the shim from now on, and hands their ends on to the rest of the shim. It
// takes the place of containerd's loop, which hands on one end after another and waits for up to a
// second with each that is not taken. The ends are taken by the same goroutine that runs the OCI
// runtime to kill what the first process of a container has left, or waits for a deletion; that
// is over with the end of the OCI runtime's own process, which comes behind all the others. With 150
// processes left, the shim stood still for two minutes. Here each child that ends begins a round of its
// own, so that no end waits for another to be taken.
//
// The order in which ends are handed on says nothing in either way: they are told apart by their PIDs.
func reap() {
	ended := make(chan os.Signal, 1) // one signal stands for all children that have ended by now
	signal.Notify(ended, unix.SIGCHLD)
	go func() {
		for range ended {
			go func() {
				if err := reaper.Reap(); err != nil {
					log.L.WithError(err).Error("reap the children of the shim")
				}
			}()
		}
	}()
}
