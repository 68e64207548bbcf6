// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) (err error) {
	b := &bench{sizes: full}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	dir := f.String("out", "bench", "directory of the results")
	f.StringVar(&b.build, "build", "build", "directory with the output of `make tools build`")
	f.IntVar(&b.rounds, "rounds", 3, "rounds of each daemon")
	fast := f.Bool("quick", false, "do a little of everything, to try the bench; its figures mean nothing")
	f.StringVar(&b.only, "only", "", "carry out only the steps whose title contains this, to work on them; with -scale, -busy, -probes and -kubelets the daemon, with -tricks the settings")
	set := f.String("set", "", "KEY=VALUE: run berth with this setting, which is no longer as it ships; use another -out; not with -probes, -tricks and -runtime, which set their own")
	other := f.String("with", "", "another daemon to compare, whose programs are in PATH: crio, for which these are crio, conmon and pinns; not with -probes, -tricks and -runtime")
	scale := f.Bool("scale", false, "measure how the daemons bear many pods instead, into scale.txt")
	kubelets := f.Int("kubelets", 0, "measure how the daemons bear the calls of that many kubelets instead, into kubelets.txt")
	pods := f.Int("pods", 500, "with -scale and -kubelets, pods with two containers each; with -scale, a node with a tenth and with three tenths of them is measured as well")
	tricks := f.Bool("tricks", false, "measure berth with each of its tricks on and off instead, into tricks.txt")
	busy := f.Bool("busy", false, "measure ends on a busy node of the daemons instead, into busy.txt")
	output := f.Bool("output", false, "measure the output of a container alone, into output.txt")
	probes := f.Bool("probes", false, "measure what probes of 100 pods cost both daemons instead, into probes.txt")
	pulls := f.Bool("pulls", false, "measure pulls from a registry that bounds each connection instead, into pulls.txt, of which pulls.svg is a picture")
	mib := f.Int("mib", 2048, "with -pulls, size of the large layer in MiB")
	oci := f.String("runtime", "", "an OCI runtime, such as crun: measure berth with runc and with that one instead, into runtimes.txt")
	plot := f.Bool("plot", false, "measure nothing; draw exits.svg and scale.svg again, from results.txt and scale.txt")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 || b.rounds < 1 || *pods < 2 {
		return fmt.Errorf("arguments %q, %d rounds, %d pods: the bench takes flags only, at least one round and two pods", f.Args(), b.rounds, *pods)
	}
	if *set+*other != "" && (*probes || *tricks || *oci != "") {
		return errors.New("-probes, -tricks and -runtime compare settings of their own: leave out -set and -with")
	}
	if *fast {
		b.sizes, b.rounds = quick, 1
	}
	name, run := "results.txt", b.run
	switch {
	case *plot:
		return draw(*dir)
	case *scale:
		name, run = "scale.txt", func(ctx context.Context) error { return b.runNodes(ctx, counts(*pods)) }
	case *busy:
		name, run = "busy.txt", b.runBusy
	case *output:
		name, run = "output.txt", b.runOutput
	case *probes:
		name, run = "probes.txt", b.runProbes
	case *pulls:
		name, run = "pulls.txt", func(ctx context.Context) error { return b.runPulls(ctx, *mib) }
	case *kubelets > 0:
		name, run = "kubelets.txt", func(ctx context.Context) error { return b.runKubelets(ctx, *kubelets, *pods) }
	case *tricks:
		name, run = "tricks.txt", b.runTricks
	case *oci != "":
		name, run = "runtimes.txt", func(ctx context.Context) error { return b.runRuntimes(ctx, *oci) }
	}
	if os.Geteuid() != 0 {
		return errors.New("the bench runs real containers and needs root")
	}
	if b.kinds, err = compared(*other, *set); err != nil {
		return err
	}
	if b.build, err = inside(b.build); err != nil {
		return err
	}
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		return err
	}
	out, err := os.Create(filepath.Join(*dir, name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	b.out = &lines{to: io.MultiWriter(out, os.Stdout)}
	began := time.Now()
	b.out.printf("%s# %s, load %s before, %d rounds%s\n", machine(b.build), began.UTC().Format("2 January 2006, 15:04 MST"), load(), b.rounds, map[bool]string{true: ", quick"}[*fast])
	err = run(ctx)
	b.out.printf("# took %s, load %s after\n", time.Since(began).Round(time.Second), load())
	if err != nil {
		return err
	}
	return draw(*dir)
}

// inside makes the path of the build directory absolute, because the daemons are given paths below
// it.
func inside(build string) (string, error) {
	abs, err := filepath.Abs(build)
	if err != nil {
		return "", err
	}
	for _, f := range []string{"bin/berth", "libexec/containerd", "libexec/containerd-shim-runc-v2", "libexec/runc", "libexec/pause", "cni/bridge"} {
		if _, err := os.Stat(filepath.Join(abs, f)); err != nil {
			return "", fmt.Errorf("%w: run `make tools build`, or name the directory with -build", err)
		}
	}
	return abs, nil
}

// machine describes the measured machine. benchstat compares results of the same one; properties
// that differ from run to run are comments.
func machine(build string) string {
	first := func(command ...string) string {
		out, _ := exec.Command(command[0], command[1:]...).Output()
		line, _, _ := strings.Cut(string(out), "\n")
		return strings.Join(strings.Fields(line), " ")
	}
	info, _ := os.ReadFile("/proc/cpuinfo")
	_, cpu, _ := strings.Cut(string(info), "model name\t: ")
	cpu, _, _ = strings.Cut(cpu, "\n")
	groups := "v1"
	if unified() {
		groups = "v2"
	}
	return fmt.Sprintf("goos: %s\ngoarch: %s\ncpu: %s, %d visible\nmemory: %s\nkernel: %s\ncgroups: %s\nfilesystem: %s\n# %s\n",
		runtime.GOOS, runtime.GOARCH, cpu, runtime.NumCPU(), first("grep", "MemTotal", "/proc/meminfo"), first("uname", "-sr"), groups,
		first("findmnt", "-no", "FSTYPE", "-T", os.TempDir()), first(build+"/libexec/runc", "--version"))
}

// load is the one-minute load average.
func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(b), " ")
	return one
}
