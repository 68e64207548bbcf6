// SPDX-License-Identifier: Apache-2.0

// Command dist makes releases of berth from the files that make has built.
//
//	dist tree    -build DIR -berth FILE -arch ARCH -out DIR    the files for make install
//	dist release -build DIR -berth FILE -arch ARCH -out DIR    an archive, packages and an SBOM
//	             -epoch SECONDS -debian DIR -nfpm FILE
//	dist seal    -out DIR -commit HASH [-key FILE]             sums and provenance of all of them
//	dist verify  -out DIR -key FILE                            checks them against the signature
//
// The source is the current directory. The same source, programs and -epoch give the same output:
// nothing of the host, and no time, gets in.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// options are the flags of all the commands.
type options struct {
	// the output of make for arch, and the root of Debian's packages for it
	build, debian     string
	berth, nfpm       string // programs of this host
	arch, out         string
	commit, key       string
	epoch             int64
	version, platform string // of the release; of the archive: linux-ARCH
}

func main() {
	var o options
	fs := flag.NewFlagSet("dist", flag.ExitOnError)
	fs.StringVar(&o.build, "build", "", "directory of what make has built for the architecture")
	fs.StringVar(&o.debian, "debian", "", "directory that tools/dist/debian has made")
	fs.StringVar(&o.berth, "berth", "", "a berth of the same version for this host, which writes its manual")
	fs.StringVar(&o.nfpm, "nfpm", "", "the program nfpm")
	fs.StringVar(&o.arch, "arch", "", "architecture, as Go names it")
	fs.StringVar(&o.out, "out", "", "directory for the result")
	fs.StringVar(&o.commit, "commit", "", "the commit that was built")
	fs.StringVar(&o.key, "key", "", "PEM file of the private key to sign with, or of the public one to verify with")
	fs.Int64Var(&o.epoch, "epoch", 0, "time of all files, in seconds since 1970")
	commands := map[string]func(options) error{"tree": makeTree, "release": release, "seal": seal, "verify": verify}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: dist tree|release|seal|verify [FLAG...]")
		os.Exit(2)
	}
	_ = fs.Parse(os.Args[2:])
	if err := commands[os.Args[1]](o); err != nil {
		fmt.Fprintf(os.Stderr, "dist %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// versioned fills in the version, which berth knows as a semantic one.
func (o *options) versioned() error {
	out, err := exec.Command(o.berth, "--version").Output()
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", o.berth, err)
	}
	words := strings.Fields(string(out))
	if len(words) < 3 {
		return fmt.Errorf("%s has the version %q", o.berth, out)
	}
	o.version, o.platform = words[2], "linux-"+o.arch
	return nil
}

func (o options) time() time.Time { return time.Unix(o.epoch, 0).UTC() }
