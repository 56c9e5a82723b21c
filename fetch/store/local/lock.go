package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// holder is the content of the file LOCK: who has the store open. The lock
// itself is the kernel's (flock) and ends with its process, so that what a dead
// one left in the file is no obstacle.
type holder struct {
	PID     int       `json:"pid"`
	Host    string    `json:"host"`
	Command string    `json:"command"`
	Since   time.Time `json:"since"`
	Address string    `json:"address,omitempty"` // of its server, if it is one
}

type dirLock struct {
	file *os.File

	mu   sync.Mutex // guards self and writing the file
	self holder
}

// lockDirectory takes the lock of dir, or returns a schema.ErrUnavailable that
// names its holder.
func lockDirectory(dir string) (*dirLock, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.Join(inUse(dir, f), f.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	l := &dirLock{file: f, self: holder{
		PID: os.Getpid(), Host: host, Command: strings.Join(os.Args, " "), Since: time.Now().Truncate(time.Second),
	}}
	if err := l.write(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return l, nil
}

// inUse describes the holder of the lock file f.
func inUse(dir string, f *os.File) error {
	buf := make([]byte, 64<<10)
	n, _ := f.ReadAt(buf, 0) // what cannot be read is described as unknown
	var h holder
	if json.Unmarshal(buf[:n], &h) != nil || h.PID == 0 {
		return fmt.Errorf("%w: the store in %s is in use by another process, which is just starting or ending",
			schema.ErrUnavailable, dir)
	}
	msg := fmt.Sprintf("the store in %s is in use by process %d on host %s since %s (%s)",
		dir, h.PID, h.Host, h.Since.Format(time.RFC3339), h.Command)
	if h.Address != "" {
		msg += fmt.Sprintf("; it serves it at %s: use --server %s", h.Address, h.Address)
	} else {
		msg += "; wait until it ends, or run a server on the store and use --server with its address"
	}
	return fmt.Errorf("%w: %s", schema.ErrUnavailable, msg)
}

func (l *dirLock) setAddr(addr string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.self.Address = addr
	return l.write()
}

// write replaces the file's content.
func (l *dirLock) write() error {
	data, err := json.Marshal(l.self)
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if _, err := l.file.WriteAt(data, 0); err != nil {
		return err
	}
	return l.file.Truncate(int64(len(data)))
}

// release lets go of the directory. The file stays: unlinking it would let two
// processes hold locks on two files of that name. Closing it would not do: a
// child that this process is just starting has the open file, and the lock
// with it, until it runs its own program.
func (l *dirLock) release() error {
	return errors.Join(l.file.Truncate(0), unix.Flock(int(l.file.Fd()), unix.LOCK_UN), l.file.Close())
}
