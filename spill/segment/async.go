package segment

import (
	"os"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A write past the page cache waits for the disk. A goroutine that waits in a
// system call keeps one of the processors that Go runs on until the runtime
// takes it away, which with few of them costs a server more than all else about
// the write. So the kernel is given the write (io_submit), and says when it is
// done by an eventfd, for which the runtime's poller waits.

// asyncWriter has one write under way at a time.
type asyncWriter struct {
	context uintptr  // aio_context_t
	done    *os.File // an eventfd
	doneFD  uint32   // that of done
	request iocb
	iovs    []unix.Iovec
	pins    runtime.Pinner
}

// iocb is what io_submit takes, and ioEvent what io_getevents gives, as in linux/aio_abi.h.
type iocb struct {
	_       uint64 // data
	_       uint32 // key
	_       int32  // rw_flags
	opcode  uint16
	_       int16 // reqprio
	fd      uint32
	buf     uint64
	count   uint64
	offset  int64
	_       uint64
	flags   uint32
	eventFD uint32
}

type ioEvent struct {
	_, _   uint64 // data, obj
	result int64
	_      int64 // res2
}

const (
	opPwritev   = 8 // IOCB_CMD_PWRITEV
	flagEventFD = 1 // IOCB_FLAG_RESFD
)

func newAsyncWriter() (*asyncWriter, error) {
	w := &asyncWriter{}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&w.context)), 0); errno != 0 {
		return nil, os.NewSyscallError("io_setup", errno)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		w.close()
		return nil, os.NewSyscallError("eventfd", err)
	}
	w.done, w.doneFD = os.NewFile(uintptr(fd), "eventfd"), uint32(fd)
	return w, nil
}

func (w *asyncWriter) close() {
	// Neither can fail: nothing is under way.
	_, _, _ = unix.Syscall(unix.SYS_IO_DESTROY, w.context, 0, 0)
	if w.done != nil {
		_ = w.done.Close()
	}
}

// pwritev writes as pwritev(2) does.
func (w *asyncWriter) pwritev(fd int, iovs [][]byte, at int64) (int, error) {
	defer w.pins.Unpin()
	w.iovs = w.iovs[:0]
	for _, b := range iovs {
		w.pins.Pin(&b[0])
		w.iovs = append(w.iovs, unix.Iovec{Base: &b[0], Len: uint64(len(b))})
	}
	w.pins.Pin(&w.iovs[0])
	w.pins.Pin(w)
	w.request = iocb{
		opcode:  opPwritev,
		fd:      uint32(fd),
		buf:     uint64(uintptr(unsafe.Pointer(&w.iovs[0]))),
		count:   uint64(len(w.iovs)),
		offset:  at,
		flags:   flagEventFD,
		eventFD: w.doneFD,
	}
	request := &w.request
	if _, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, w.context, 1, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return 0, errno
	}
	// Should the poller fail, io_getevents waits: what is under way has the memory.
	var count [8]byte
	_, _ = w.done.Read(count[:])
	var event ioEvent
	for {
		n, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, w.context, 1, 1, uintptr(unsafe.Pointer(&event)), 0, 0)
		switch {
		case n == 1 && event.result < 0:
			return 0, unix.Errno(-event.result)
		case n == 1:
			return int(event.result), nil
		case errno != unix.EINTR:
			panic("segment: io_getevents: " + errno.Error()) // nobody would know when the memory is free again
		}
	}
}

// asyncWriters are those of a set, which are used again.
type asyncWriters struct {
	mu   sync.Mutex
	idle []*asyncWriter
	none bool // the system has none, or the set is closed
}

// take returns a writer that nobody else has, or nil if there is none.
func (a *asyncWriters) take() *asyncWriter {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.idle); n > 0 {
		w := a.idle[n-1]
		a.idle = a.idle[:n-1]
		return w
	}
	if a.none {
		return nil
	}
	w, err := newAsyncWriter()
	if err != nil { // a sandbox that does not let it, or the system's limit
		a.none = true
		return nil
	}
	return w
}

func (a *asyncWriters) give(w *asyncWriter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.none || len(a.idle) == directKept {
		w.close()
		return
	}
	a.idle = append(a.idle, w)
}

func (a *asyncWriters) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.none = true
	for _, w := range a.idle {
		w.close()
	}
	a.idle = nil
}
