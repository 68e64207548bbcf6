// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth/internal/cri"
)

// The sequences of a terminal that top uses: the second screen without a cursor, and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	homeCursor  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
)

// ctrlC is what a terminal in raw mode reads for it.
const ctrlC = 3

// orders are the orders of top by the key that chooses them.
var orders = map[byte]struct {
	title string
	by    order
}{
	'c': {"CPU", byCPU},
	'm': {"memory", byMem},
	'd': {"disk", byDisk},
	'n': {"name", byName},
	'p': {"pod", byPod},
}

func (a *app) topCommand() *cobra.Command {
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show live what containers use",
		Long: "Show what running containers use, again and again. The keys c, m, d, n and p sort by CPU, memory, disk, name and\n" +
			"pod; q or Ctrl-C quits.",
		Args: cobra.NoArgs,
	}
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "time between two looks")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if interval < 100*time.Millisecond {
			return fmt.Errorf("--interval %s is less than 100ms", interval)
		}
		out, ok := raw(cmd.OutOrStdout()).(*os.File)
		if !ok || !term.IsTerminal(descriptor(out)) {
			return errors.New("the standard output is not a terminal; use `berth stats`")
		}
		return a.client(cmd, func(ctx context.Context, c *cri.Client) error {
			t, err := rawTerminal(cmd.InOrStdin())
			if err != nil {
				return err
			}
			defer t.restore()
			fmt.Fprint(out, enterScreen)
			defer fmt.Fprint(out, leaveScreen)
			return (&top{client: c, in: t, out: out, interval: interval}).run(ctx)
		})
	}
	return cmd
}

// top shows what containers use until a person quits.
type top struct {
	client   *cri.Client
	in       *terminal
	out      io.Writer
	interval time.Duration
}

func (t *top) run(ctx context.Context) error {
	keys := make(chan byte)
	quit, end := context.WithCancel(ctx)
	defer end()
	go func() { // it ends with the process: a read of a terminal cannot be ended
		var b [1]byte
		for {
			n, err := t.in.file.Read(b[:])
			if n == 0 || err != nil || b[0] == 'q' || b[0] == ctrlC {
				end() // also while the service is asked, which may not answer
				return
			}
			select {
			case keys <- b[0]:
			case <-quit.Done():
				return
			}
		}
	}()
	sizes := make(chan screenSize, 1)
	stop := t.in.follow(func(width, height int) {
		select {
		case <-sizes: // only the latest counts
		default:
		}
		sizes <- screenSize{width, height}
	})
	defer stop()
	look := time.NewTicker(t.interval)
	defer look.Stop()
	var list []containerUsage
	var problem error
	screen, by := screenSize{80, 24}, byte('c')
	list, problem = usages(quit, t.client, nil)
	for quit.Err() == nil {
		title := orders[by]
		sortUsages(list, title.by)
		if _, err := io.WriteString(t.out, draw(list, problem, title.title, screen)); err != nil {
			return err
		}
		select {
		case <-quit.Done():
			return nil
		case screen = <-sizes:
		case k := <-keys:
			if _, known := orders[k]; known {
				by = k
			}
		case <-look.C:
			if fresh, err := usages(quit, t.client, nil); err == nil {
				list, problem = fresh, nil
			} else {
				problem = err // the last numbers stay
			}
		}
	}
	return nil
}

type screenSize struct{ width, height int }

// draw returns what makes a terminal show the table: no line is longer than the terminal is wide,
// and there are not more lines than it has.
func draw(list []containerUsage, problem error, sorted string, screen screenSize) string {
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 8, 2, ' ', 0)
	writeUsages(w, list)
	_ = w.Flush() // it writes to memory
	head := fmt.Sprintf("berth top - %s - %d containers, by %s (c m d n p; q quits)", time.Now().Format(time.TimeOnly), len(list), sorted)
	if problem != nil {
		head = "berth top - " + oneLine(cri.Explain(problem).Error())
	}
	lines := append([]string{head}, strings.Split(strings.TrimRight(table.String(), "\n"), "\n")...)
	lines = lines[:min(len(lines), max(screen.height, 1))]
	for i, l := range lines {
		lines[i] = fit(Visible(l), screen.width) + clearLine
	}
	return homeCursor + strings.Join(lines, "\r\n") + clearRest
}

// fit cuts a line to a width.
func fit(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:max(width, 0)])
}
