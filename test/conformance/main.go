// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	build := flag.String("build", "build", "directory of what make build and make tools build")
	out := flag.String("out", "docs/conformance.md", "page to write")
	only := flag.String("only", "", "part of the name of the runtimes that are run; the others are said to be not run")
	save := flag.String("save", "", "write what came of critest with the one runtime that -only names into this file instead of the page")
	var others []other
	flag.Func("runtime", "NAME=SOCKET of a runtime that runs already, such as cri-o=/run/crio/crio.sock, or NAME=SOCKET,NRI with the socket of its NRI as well; may be repeated", func(s string) error {
		o, err := parseOther(s)
		others = append(others, o)
		return err
	})
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *build, *out, *only, *save, others)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// run runs critest with every runtime and writes the page, unless it is interrupted. With save it
// writes the result of the only runtime, and no page.
func run(ctx context.Context, build, out, only, save string, others []other) (err error) {
	if build, err = filepath.Abs(build); err != nil {
		return err
	}
	p := Page{Made: time.Now(), Cores: runtime.NumCPU()}
	if err := p.measure(filepath.Dir(build), build); err != nil {
		return err
	}
	if p.Suite, err = kept(out); err != nil {
		return err
	}
	suite, missing := findCritest(ctx)
	p.Critest = suite.version
	p.Images = "Its images came from the registries that its flags and the runtimes name by default."
	if registries() != "" {
		p.Images = "Its images came from the registries that CONFORMANCE_REGISTRIES names."
	}
	guest, err := saved(filepath.Join(build, guestFile), p.Made)
	if err != nil {
		return err
	}
	subjects := []subject{
		{name: "berth, containerd inside", start: startBerth(false)},
		{name: "berth, containerd beside", start: startBerth(true)},
		{name: guest.Runtime, result: &guest},
		{name: "containerd", start: startContainerd},
	}
	for _, o := range others {
		subjects = append(subjects, subject{name: o.name, start: already(o)})
	}
	if len(others) == 0 {
		subjects = append(subjects, subject{name: "CRI-O", notRun: "none was named with ARGS='-runtime cri-o=/run/crio/crio.sock,/run/nri/nri.sock'"})
	}
	var failed []error
	for _, s := range subjects {
		if s.result != nil {
			p.Results = append(p.Results, *s.result)
			continue
		}
		if s.notRun == "" {
			switch {
			case missing != "":
				s.notRun = missing
			case os.Geteuid() != 0:
				s.notRun = "it needs root"
			case !strings.Contains(s.name, only):
				s.notRun = "it was left out with -only"
			}
		}
		r := Result{Runtime: s.name, NotRun: s.notRun}
		if r.NotRun == "" {
			fmt.Fprintf(os.Stderr, "%s ...\n", s.name)
			var left error
			if r, left = s.run(ctx, build, suite); left != nil {
				failed = append(failed, left)
			}
		}
		if ctx.Err() != nil {
			return errors.Join(append(failed, errors.New("interrupted: the page is as it was"))...)
		}
		fmt.Fprintf(os.Stderr, "%s: %d passed, %d failed, %d skipped %s\n", s.name, r.Passed, r.Failed, r.Skipped, r.NotRun)
		p.Results = append(p.Results, r)
	}
	if save != "" {
		return errors.Join(append(failed, p.save(save))...)
	}
	var b bytes.Buffer
	if err := p.write(&b); err != nil {
		return err
	}
	return errors.Join(append(failed, os.WriteFile(out, b.Bytes(), 0o644))...)
}

// other is a runtime that somebody else runs.
type other struct {
	name   string
	socket string
	nri    string // the socket of its NRI; if "", critest skips its checks of NRI
}

// parseOther reads NAME=SOCKET or NAME=SOCKET,NRI.
func parseOther(s string) (other, error) {
	name, sockets, _ := strings.Cut(s, "=")
	socket, nri, two := strings.Cut(sockets, ",")
	if name == "" || !filepath.IsAbs(socket) || two && !filepath.IsAbs(nri) {
		return other{}, errors.New("it is not NAME=SOCKET or NAME=SOCKET,NRI with absolute paths")
	}
	return other{name, socket, nri}, nil
}

// measure fills in the figures that need no runtime.
func (p *Page) measure(module, build string) (err error) {
	if p.Fields, err = fields(module); err != nil {
		return err
	}
	if p.Promises, err = promises(module); err != nil {
		return err
	}
	if p.Soak, err = soak(filepath.Join(build, "soak.log")); err != nil {
		return err
	}
	var u unix.Utsname
	var i unix.Sysinfo_t
	if err := errors.Join(unix.Uname(&u), unix.Sysinfo(&i)); err != nil {
		return err
	}
	// the rest names the builder
	release, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	p.Kernel = release
	p.GiB = int((i.Totalram*uint64(i.Unit) + 1<<29) >> 30)
	v, err := exec.Command(filepath.Join(build, "bin/berth"), "--version").Output()
	if err != nil {
		return fmt.Errorf("ask berth for its version: %w", err)
	}
	p.Berth = strings.TrimPrefix(strings.TrimSpace(string(v)), "berth version ")
	return nil
}

// critest is the program and its flags.
type critest struct {
	program, version string
	flags            []string
	nri              bool // it takes -nri-socket
}

// findCritest finds critest in PATH. missing is the reason if there is none.
func findCritest(ctx context.Context) (c critest, missing string) {
	var err error
	if c.program, err = exec.LookPath("critest"); err != nil {
		return c, "critest is not in PATH"
	}
	c.flags = strings.Fields(os.Getenv("CRITEST_FLAGS"))
	v, err := exec.CommandContext(ctx, c.program, "-version").CombinedOutput() // what the user has in PATH
	if err != nil {
		return c, fmt.Sprintf("%s -version: %v", c.program, err)
	}
	c.version = "it does not say its version"
	for line := range strings.Lines(string(v)) {
		if of, ok := strings.CutPrefix(strings.TrimSpace(line), "critest version: "); ok && of != "unknown" {
			c.version = "version " + of
		}
	}
	help, _ := exec.CommandContext(ctx, c.program, "-help").CombinedOutput()
	c.nri = bytes.Contains(help, []byte("-nri-socket"))
	return c, ""
}
