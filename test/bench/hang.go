// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// hangingRunc returns an OCI runtime: runc behind a shell script, which costs both daemons the
// same. Its delete of a container hangs for 30 s while the directory hang has a FIFO with the
// container's ID. It stands for an unmount on a disk that does not answer.
func hangingRunc(n *node) string {
	return fmt.Sprintf(`#!/bin/sh
for id; do :; done
case " $* " in
*" delete "*)
	if [ -p %[1]s/"$id" ]; then
		# Opening it waits until somebody opens the other end, without using the processor.
		timeout -s KILL 30 cat %[1]s/"$id"
	fi ;;
esac
exec %[2]s "$@"
`, n.dir+"/hang", n.build+"/libexec/runc")
}
