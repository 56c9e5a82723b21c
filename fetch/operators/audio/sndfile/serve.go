package sndfile

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// request precedes a file in the pipe. Numbers are little-endian. All fields are int64, so
// the struct has no padding.
type request struct {
	Bytes, Offset, Frames, Channels, Rate int64
}

// answer precedes the samples: Frames times the channels, interleaved, in the memory
// layout of the machine.
type answer struct {
	Frames int64 // or one of the codes below
	Nanos  int64 // CPU time
}

// Codes for a file, in place of a number of frames.
const (
	notOpened int64 = -1
	other     int64 = -2
	noSeek    int64 = -3
)

// library reads files. Its methods are called by one goroutine.
type library interface {
	version() string
	// read fills out with q.Frames frames from q.Offset on, and returns their number, or
	// a code.
	read(file []byte, q request, out []float32) int64
}

// kept is the most memory that a process keeps between two files, in bytes of each
// buffer.
const kept = 16 << 20

// Serve is the main function of a process with [Command]: it reports its library, and
// answers requests until in ends. The end of in ends the process, whatever the library is
// doing at that time.
func Serve(in io.Reader, out io.Writer) error {
	confine()
	lib, missing := load(os.Getenv(theirs))
	hello := "-" + missing
	if lib != nil {
		hello = "+" + lib.version()
	}
	if _, err := fmt.Fprintln(out, hello); err != nil || lib == nil {
		return err
	}
	type work struct {
		request
		file []byte
	}
	todo, failed := make(chan work), make(chan error, 1)
	go func() { // until the process ends: the library cannot be interrupted
		var room []float32
		for w := range todo {
			n := int(w.Frames * w.Channels)
			if cap(room) < n {
				room = make([]float32, n)
			}
			if err := reply(lib, w.request, w.file, room[:n], out); err != nil {
				failed <- err
				return
			}
			if 4*cap(room) > kept {
				room = nil
			}
		}
	}()
	var file []byte
	// The main goroutine reads while the other one decodes, so it notices the end of in.
	for r := bufio.NewReader(in); ; {
		var q request
		if err := binary.Read(r, binary.LittleEndian, &q); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("reading a request: %w", err)
		}
		if int64(cap(file)) < q.Bytes {
			file = make([]byte, q.Bytes)
		}
		file = file[:q.Bytes]
		if _, err := io.ReadFull(r, file); err != nil {
			return fmt.Errorf("reading a file: %w", err)
		}
		select {
		case todo <- work{q, file}:
			if cap(file) > kept {
				file = nil
			}
		case err := <-failed:
			return err
		}
	}
}

// reply decodes one file and writes the answer. The CPU time goes back with the samples,
// because another process has spent it.
func reply(lib library, q request, file []byte, room []float32, out io.Writer) error {
	before := cpuTime()
	n := lib.read(file, q, room)
	if err := binary.Write(out, binary.LittleEndian,
		answer{Frames: n, Nanos: int64(cpuTime() - before)}); err != nil {
		return fmt.Errorf("answering: %w", err)
	}
	if n <= 0 {
		return nil
	}
	if _, err := out.Write(asBytes(room[:min(n, q.Frames)*q.Channels])); err != nil {
		return fmt.Errorf("sending samples: %w", err)
	}
	return nil
}

// asBytes is the memory of x. Both ends of the pipe are on one machine.
func asBytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// cpuTime is the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
