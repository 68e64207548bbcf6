// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/event"
	"berth/internal/base/wholefile"
)

// The files of a holder, in a directory of its own below KeeperConfig.Dir, and those of each of its
// streams, in a directory below that. So the directories are the list of what may be held.
const (
	holderSocket = "holder"
	holderOutput = "output" // what the holder has logged
	streamFile   = "stream" // a held, which berth writes before the holder has the connection
	execDir      = "exec"   // for exec processes, as Config.Dir is
	// A visit is an access that is on record as begun. berth writes the first file before the access
	// begins, and the holder the second when it has ended.
	visitBegun = ".begun"
	visitEnded = ".ended"
)

// kinds of streams that can be held.
const (
	heldExec    = "exec"
	heldForward = "port-forward"
)

// held is what is known of a stream that a holder has.
type held struct {
	Kind     string
	ID       string // of the container; of the sandbox for a port-forward
	PodID    string
	Args     []string `json:",omitempty"` // the holder does not get them
	Stdin    bool     `json:",omitempty"`
	Stdout   bool     `json:",omitempty"`
	Stderr   bool     `json:",omitempty"`
	Terminal bool     `json:",omitempty"`
	Ports    []int32  `json:",omitempty"`
	NetNS    string   `json:",omitempty"`
	Shim     Shim
	By       event.Client
}

// visitEnd is how an access has ended.
type visitEnd struct {
	Code    int32
	Err     string
	In, Out int64
}

// word is what berth and a holder say to each other, in one message of a socket that keeps messages
// apart. A word of another version may lack fields or have more of them.
type word struct {
	Say    saying
	Stream string `json:",omitempty"`
	// Of a stream that is handed over, with the socket.
	Held *held  `json:",omitempty"`
	Path string `json:",omitempty"` // of the URL
	Head []byte `json:",omitempty"` // the client's request, and what was read behind it
	// Of a question and its answer.
	Call     uint64   `json:",omitempty"`
	Port     int32    `json:",omitempty"`
	Exec     string   `json:",omitempty"`
	Request  *Request `json:",omitempty"` // without a process
	Visit    string   `json:",omitempty"`
	Err      string   `json:",omitempty"`
	Version  string   `json:",omitempty"`
	Streams  []string `json:",omitempty"`
	More     bool     `json:",omitempty"`
	Terminal bool     `json:",omitempty"`
}

// saying is what a word is for.
type saying string

// What berth says.
const (
	sayTake   saying = "take"   // here is a stream
	sayEnd    saying = "end"    // the container or the pod of a stream has ended
	sayDrop   saying = "drop"   // hang up
	sayRetire saying = "retire" // no stream comes any more: end when none is left
	sayAnswer saying = "answer"
)

// What a holder says.
const (
	sayHello  saying = "hello"  // the first: these are the streams that there are; More: there are others
	sayTook   saying = "took"   // it has a stream
	sayBegin  saying = "begin"  // a question: may an access begin?
	sayCreate saying = "create" // a question: make an exec process
	sayStart  saying = "start"  // a question: start it
	sayEnded  saying = "ended"  // an access has ended; its file says how
	sayOver   saying = "over"   // nothing is left of a stream
	sayBusy   saying = "busy"   // something came or went on these port-forwards
)

const (
	// maxWord bounds a word. The longest is a request with all its headers, in base64.
	maxWord = 64 << 10
	// maxNamed is how many streams a word names.
	maxNamed = 1000
	// wordTimeout is how long the other side may take for a word before the connection is given up.
	wordTimeout = 2 * time.Second
)

// link is a connection between berth and a holder.
type link struct{ *net.UnixConn }

// send sends a word, and the descriptor of a socket where there is one. After an error the
// connection is closed: whoever reads from it sees the end.
func (l link) send(w word, socket syscall.RawConn) error {
	b, err := json.Marshal(w)
	if err != nil {
		return fmt.Errorf("encode a word: %w", err)
	}
	if len(b) > maxWord {
		return fmt.Errorf("a word has %d bytes, and %d are possible", len(b), maxWord)
	}
	_ = l.SetWriteDeadline(time.Now().Add(wordTimeout))
	if socket == nil {
		_, _, err = l.WriteMsgUnix(b, nil, nil)
	} else {
		cerr := socket.Control(func(fd uintptr) { _, _, err = l.WriteMsgUnix(b, unix.UnixRights(int(fd)), nil) }) //nolint:gosec // a descriptor
		err = errors.Join(cerr, err)
	}
	if err != nil {
		_ = l.Close()
	}
	return err
}

// receive waits for a word, and the socket that may come with it, which the caller closes.
func (l link) receive(buf []byte) (w word, socket *os.File, err error) {
	control := make([]byte, unix.CmsgSpace(4))
	n, got, flags, _, err := l.ReadMsgUnix(buf, control)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if got > 0 {
		socket = takeSocket(control[:got])
	}
	if err == nil && flags&unix.MSG_TRUNC != 0 {
		err = fmt.Errorf("a word has more than %d bytes", len(buf))
	}
	if err == nil {
		err = json.Unmarshal(buf[:n], &w)
	}
	if err != nil && socket != nil {
		_ = socket.Close()
		socket = nil
	}
	return w, socket, err
}

// takeSocket returns the descriptor in a control message, or nil without one.
func takeSocket(control []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	var socket *os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			if socket != nil {
				_ = unix.Close(fd)
				continue
			}
			socket = os.NewFile(uintptr(fd), "client") //nolint:gosec // a descriptor
		}
	}
	return socket
}

// inDir calls f with a short name for the socket of a holder: a socket's name must be short, and that
// of the directory may be long.
func inDir(dir string, f func(at *net.UnixAddr) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	name := filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), holderSocket)
	return f(&net.UnixAddr{Net: "unixpacket", Name: name})
}

// listenIn makes the socket of a holder, which stays when the listener is closed.
func listenIn(dir string) (lis *net.UnixListener, err error) {
	err = inDir(dir, func(at *net.UnixAddr) error {
		lis, err = net.ListenUnix(at.Net, at)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make the socket of a holder of streams: %w", err)
	}
	lis.SetUnlinkOnClose(false)
	return lis, nil
}

// dialHolder connects to the holder of a directory. The error is errNoHolder when its process has
// ended.
func dialHolder(dir string) (l link, err error) {
	err = inDir(dir, func(at *net.UnixAddr) error {
		conn, err := net.DialUnix(at.Net, nil, at)
		l = link{conn}
		return err
	})
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		err = errNoHolder
	}
	return l, err
}

var errNoHolder = errors.New("the process that held the stream was killed")

// visitsIn returns the names of the accesses of a stream that are on record as begun, and not as
// ended.
func visitsIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), visitBegun); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// write writes a value to a file, which is there whole or not at all. It need not survive a reboot, which
// ends what it is about, and so it does not wait for the disk.
func write(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := os.WriteFile(path+wholefile.Fresh, b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+wholefile.Fresh, path)
}

// read reads what write has written.
func read(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decode %s: %w: %w", path, errNotWhole, err)
	}
	return nil
}

// errNotWhole says that a file was read, and is not what was written.
var errNotWhole = errors.New("it is not what was written")
