// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth/api/client"
)

// The sequences of a terminal that top uses: the second screen without a cursor, and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	homeCursor  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
	inverse     = "\x1b[7m"
	plain       = "\x1b[0m"
)

// ctrlC is the code that a terminal in raw mode reads for it.
const ctrlC = 3

// Keys that are no letters.
const (
	keyUp = iota + 0x100
	keyDown
	keyLeft
	keyRight
	keyPageUp
	keyPageDown
	keyHome
	keyEnd
	keyEnter = '\r'
	keyTab   = '\t'
	keyEsc   = 0x1b
)

// sequences are the codes that terminals send for keys, after the escape character.
var sequences = map[string]int{
	"[A": keyUp, "OA": keyUp,
	"[B": keyDown, "OB": keyDown,
	"[C": keyRight, "OC": keyRight,
	"[D": keyLeft, "OD": keyLeft,
	"[5~": keyPageUp, "[6~": keyPageDown,
	"[H": keyHome, "OH": keyHome, "[1~": keyHome,
	"[F": keyEnd, "OF": keyEnd, "[4~": keyEnd,
}

// keysOf returns the keys in a terminal's input. An unknown sequence is ignored.
func keysOf(b []byte) (keys []int) {
	for len(b) > 0 {
		if b[0] != keyEsc || len(b) == 1 || b[1] != '[' && b[1] != 'O' {
			keys = append(keys, int(b[0]))
			b = b[1:]
			continue
		}
		end := 2
		for end < len(b) && (b[end] < 0x40 || b[end] > 0x7e) {
			end++
		}
		end = min(end+1, len(b))
		if k, known := sequences[string(b[1:end])]; known {
			keys = append(keys, k)
		}
		b = b[end:]
	}
	return keys
}

func topCommand(svc *service) *cobra.Command {
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show live what pods and containers use and do",
		Long: "Show what pods use, what hangs and why, again and again. The arrows choose, Enter goes from a pod to its containers,\n" +
			"from a container to what happened to it, and from there to its log; Esc goes back. Tab shows the containers of all\n" +
			"pods instead of the pods. The keys c, m, d, n, p and t sort by CPU, memory, disk, name, pod and trouble. / leaves only\n" +
			"the lines that have a text, until Esc; q or Ctrl-C quits.",
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
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
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

// top shows pages until a person quits.
type top struct {
	client   *client.Client
	in       *terminal
	out      io.Writer
	interval time.Duration

	pages  []*topPage // the last one is shown, Esc goes back to the one before
	screen screenSize
}

// found is the answer to the question of a page.
type found struct {
	page *topPage
	content
	err error
}

func (t *top) run(ctx context.Context) error {
	keys := make(chan int)
	quit, end := context.WithCancel(ctx)
	defer end()
	go t.readKeys(quit, end, keys)
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
	t.pages, t.screen = []*topPage{newPage(podsPage, row{})}, screenSize{80, 24}
	answers := make(chan found, 1)
	asked := false // one question at a time: keys are answered while the service is not
	ask := func() {
		if p := t.shown(); !asked {
			asked = true
			go func() {
				c, err := p.ask(quit, t.client)
				answers <- found{p, c, err}
			}()
		}
	}
	ask()
	for quit.Err() == nil {
		if _, err := io.WriteString(t.out, t.shown().draw(t.screen, time.Now())); err != nil {
			return err
		}
		select {
		case <-quit.Done():
			return nil
		case t.screen = <-sizes:
		case k := <-keys:
			if k == ctrlC || k == 'q' && !t.shown().typing {
				return nil
			}
			if t.press(k) {
				ask()
			}
		case a := <-answers:
			asked = false
			a.page.take(a.content, a.err)
			if a.page != t.shown() {
				ask() // the person has gone on meanwhile
			}
		case <-look.C:
			ask()
		}
	}
	return nil
}

// readKeys passes on the keys typed, until top quits. It ends with the process: a read of a
// terminal cannot be ended.
func (t *top) readKeys(quit context.Context, end func(), keys chan<- int) {
	var b [64]byte
	for {
		n, err := t.in.file.Read(b[:])
		if n == 0 || err != nil {
			end()
			return
		}
		for _, k := range keysOf(b[:n]) {
			select {
			case keys <- k:
			case <-quit.Done():
				return
			}
		}
	}
}

func (t *top) shown() *topPage { return t.pages[len(t.pages)-1] }

// press carries out a key, and reports whether another page is shown.
func (t *top) press(key int) bool {
	p := t.shown()
	if p.typing || key == keyEsc && p.filter != "" {
		p.search(key)
		return false
	}
	switch key {
	case keyEsc, keyLeft, 'h', 0x7f:
		if len(t.pages) > 1 {
			t.pages = t.pages[:len(t.pages)-1]
			return true
		}
	case keyEnter, '\n', keyRight, 'l':
		if next := p.enter(); next != nil {
			t.pages = append(t.pages, next)
			return true
		}
	case keyTab:
		if len(t.pages) == 1 {
			kind := podsPage
			if p.kind == podsPage {
				kind = containersPage
			}
			t.pages = []*topPage{newPage(kind, row{})}
			return true
		}
	default:
		p.press(key, t.screen)
	}
	return false
}

type screenSize struct{ width, height int }

// fit cuts a line to a width.
func fit(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:max(width, 0)])
}

// wrapped cuts a text into lines of a width, between words if that does not leave a short line.
func wrapped(text string, width int) (lines []string) {
	r := []rune(strings.ReplaceAll(text, "\t", "    "))
	width = max(width, 1)
	for len(r) > width {
		n := width
		for i := width; i > width/2; i-- {
			if r[i] == ' ' {
				n = i + 1
				break
			}
		}
		lines = append(lines, string(r[:min(n, width)]))
		r = r[n:]
	}
	return append(lines, string(r))
}
