// SPDX-License-Identifier: Apache-2.0

// Command busybox writes the image of busybox as an archive in the OCI layout. It comes with berth,
// for berth demo.
//
//	busybox [-arch ARCH] [-program FILE] ARCHIVE
package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"berth/test/testimage"
	"berth/tools/demo"
)

func main() {
	arch := flag.String("arch", runtime.GOARCH, "the architecture that the program is for, as Go names it")
	program := flag.String("program", "", "a static busybox (default: that in PATH)")
	flag.Parse()
	if err := write(flag.Arg(0), *program, *arch); err != nil {
		fmt.Fprintln(os.Stderr, "busybox:", err)
		os.Exit(1)
	}
}

func write(archive, program, arch string) error {
	host, _ := exec.LookPath("busybox") // without either, the error names the package to install
	img, err := testimage.BusyboxOf(cmp.Or(program, host, "busybox"), arch)
	if err != nil {
		return err
	}
	return testimage.WriteOCIArchive(archive, demo.Name, img)
}
