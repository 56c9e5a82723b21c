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

// watch reports when memory that was shared is gone. A client that has a descriptor of a ring, or a mapping, keeps its
// pages whatever the server does: the seals that protect the server from a client keep the server, too, from taking
// pages out. So the server does not trust a client's word for it. The kernel reports (inotify, IN_DELETE_SELF) that the
// last descriptor and the last mapping of a file without a name are gone, those in other processes included, which is
// when it frees the pages.
type watch struct {
	file *os.File // the inotify instance

	mu   sync.Mutex
	gone map[int32]func() // what is called once the memory is gone, by the kernel's number; guarded by mu
}

func newWatch() (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify_init1, which reports when clients have let go of shared memory: %w", err)
	}
	return &watch{file: os.NewFile(uintptr(fd), "inotify"), gone: map[int32]func(){}}, nil
}

// add has gone called when no process has f, which has no name, and no process has it mapped. The caller has f open.
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

// run calls what add was given, until the watch is closed.
func (w *watch) run(log *slog.Logger) {
	buf := make([]byte, 256*unix.SizeofInotifyEvent)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			if !errors.Is(err, fs.ErrClosed) {
				log.Error("the kernel does not report any more which shared memory clients have let go of: all of it "+
					"counts until the server ends", "error", err)
			}
			return
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			number := int32(binary.NativeEndian.Uint32(b))
			mask, name := binary.NativeEndian.Uint32(b[4:]), binary.NativeEndian.Uint32(b[12:])
			b = b[min(unix.SizeofInotifyEvent+int(name), len(b)):]
			if mask&unix.IN_Q_OVERFLOW != 0 {
				log.Error("the kernel has dropped reports of shared memory that clients have let go of: some of it " +
					"counts until the server ends; raise fs.inotify.max_queued_events")
			}
			if mask&unix.IN_DELETE_SELF != 0 {
				w.tell(number)
			}
		}
	}
}

func (w *watch) tell(number int32) {
	w.mu.Lock()
	gone := w.gone[number]
	delete(w.gone, number)
	w.mu.Unlock()
	if gone != nil {
		gone()
	}
}

func (w *watch) close() error { return w.file.Close() }
