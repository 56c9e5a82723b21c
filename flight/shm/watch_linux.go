package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// watch reports when the kernel has freed shared memory. A client that keeps a descriptor
// or a mapping of a ring keeps its pages, and the server cannot take them away: the seals
// that protect the server from a client also forbid the server to truncate. The server
// cannot trust a client's report either. So it uses inotify: IN_DELETE_SELF comes when
// the last descriptor and the last mapping of a nameless file are gone in all processes,
// which is when the kernel frees the pages.
type watch struct {
	file *os.File // the inotify instance

	mu   sync.Mutex
	gone map[int32]func() // callbacks by the kernel's watch number; guarded by mu
}

func newWatch() (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify_init1, which reports when clients have released shared memory: %w", err)
	}
	return &watch{file: os.NewFile(uintptr(fd), "inotify"), gone: map[int32]func(){}}, nil
}

// add calls gone, once, from the goroutine of run, when no process has the nameless file
// f open or mapped. f is open during the call.
func (w *watch) add(f *os.File, gone func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	path := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	n := 0
	ctlErr := raw.Control(func(fd uintptr) { n, err = unix.InotifyAddWatch(int(fd), path, unix.IN_DELETE_SELF) })
	if err := errors.Join(ctlErr, err); err != nil {
		return fmt.Errorf("watching shared memory: %w", err)
	}
	w.gone[int32(n)] = gone
	return nil
}

// run reads events and calls the callbacks until close. It is the only caller of
// callbacks.
func (w *watch) run(log *slog.Logger) {
	buf := make([]byte, 256*unix.SizeofInotifyEvent)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			if !errors.Is(err, fs.ErrClosed) {
				log.Error("the kernel does not report any more which shared memory clients have released: all of it "+
					"counts until the server ends", "error", err)
			}
			return
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			number := int32(binary.NativeEndian.Uint32(b))
			mask, name := binary.NativeEndian.Uint32(b[4:]), binary.NativeEndian.Uint32(b[12:])
			b = b[min(unix.SizeofInotifyEvent+int(name), len(b)):]
			if mask&unix.IN_Q_OVERFLOW != 0 {
				log.Error("the kernel has dropped reports of shared memory that clients have released: some of it " +
					"counts until the server ends; raise fs.inotify.max_queued_events")
			}
			if mask&unix.IN_DELETE_SELF != 0 {
				w.freed(number)
			}
		}
	}
}

// freed calls the callback of a watch, once. It calls it without the mutex, because the
// callback takes locks of the server.
func (w *watch) freed(number int32) {
	w.mu.Lock()
	gone := w.gone[number]
	delete(w.gone, number)
	w.mu.Unlock()
	if gone != nil {
		gone()
	}
}

func (w *watch) close() error { return w.file.Close() }
