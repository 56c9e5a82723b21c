package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// Names in the directory, and the format that FORMAT names. docs/formats.md describes
// them.
const (
	formatFile   = "FORMAT"
	formatTemp   = "FORMAT.tmp"
	lockFile     = "LOCK"
	pebbleDir    = "pebble"
	segmentsDir  = "segments"
	formatName   = "bowstring-local"
	formatNumber = 2
)

// format is the content of the file FORMAT.
type format struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
}

// checkDirectory reports whether dir holds a store with its database. A directory that is
// neither a store nor empty is an error. checkDirectory changes nothing.
func checkDirectory(dir string) (exists bool, err error) {
	if exists, err = checkFormat(dir); err != nil || !exists {
		return exists, err
	}
	// Without the catalog every segment would count as unknown.
	if _, err := os.Stat(filepath.Join(dir, pebbleDir)); errors.Is(err, fs.ErrNotExist) {
		ids, err := segment.List(filepath.Join(dir, segmentsDir))
		if err == nil && len(ids) > 0 {
			return false, fmt.Errorf("%w: the store in %s has %d segments and no catalog: %s is missing; bowstring "+
				"store rebuild makes it anew",
				schema.ErrDataLoss, dir, len(ids), pebbleDir)
		}
	}
	return true, nil
}

// checkFormat reports whether dir holds a store of this format.
func checkFormat(dir string) (exists bool, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	data, err := os.ReadFile(filepath.Join(dir, formatFile))
	if errors.Is(err, fs.ErrNotExist) {
		for _, e := range entries {
			// left if the creation of a store was killed
			if !slices.Contains([]string{lockFile, formatTemp, "lost+found"}, e.Name()) {
				return false, fmt.Errorf("%w: %s is not a Bowstring store: it has no file %s, and it is not empty "+
					"(%s); name another directory",
					schema.ErrInvalid, dir, formatFile, e.Name())
			}
		}
		return false, nil
	} else if err != nil {
		return false, err
	}
	var f format
	if err := json.Unmarshal(data, &f); err != nil || f.Format != formatName {
		return false, fmt.Errorf("%w: %s is not a Bowstring store: its file %s does not say {\"format\":%q,…}",
			schema.ErrInvalid, dir, formatFile, formatName)
	}
	// A newer format may need rules that this program does not know, so nothing is
	// opened.
	if f.Version != formatNumber {
		return false, fmt.Errorf("%w: the store in %s has format version %d, this program reads version %d; use the "+
			"release of Bowstring that wrote it, or a newer one",
			schema.ErrInvalid, dir, f.Version, formatNumber)
	}
	return true, nil
}

// createDirectory makes an empty directory a store. FORMAT is written first and by
// rename, because a directory without it does not count as a store.
func createDirectory(dir string) error {
	data, err := json.Marshal(format{formatName, formatNumber})
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, formatTemp)
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(dir, formatFile)); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, segmentsDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return segment.SyncDir(dir)
}

// holder is the content of the file LOCK: the process that has the store open. The lock
// itself is the kernel's (flock) and ends with the process, so a dead process keeps no
// directory locked.
type holder struct {
	PID     int       `json:"pid"`
	Host    string    `json:"host"`
	Command string    `json:"command"`
	Since   time.Time `json:"since"`
	Address string    `json:"address,omitempty"` // of its server, if there is one
}

// dirLock is the lock of a directory while this process has it.
type dirLock struct {
	file *os.File

	mu   sync.Mutex // guards self and writing the file
	self holder
}

// lockDirectory locks dir, and writes this process into LOCK. If another process has the
// lock, it returns a schema.ErrUnavailable that names that process.
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

// inUse returns the error that describes the holder of the lock file f.
func inUse(dir string, f *os.File) error {
	buf := make([]byte, 64<<10)
	n, _ := f.ReadAt(buf, 0) // an unreadable file is described as unknown
	var h holder
	if json.Unmarshal(buf[:n], &h) != nil || h.PID == 0 {
		return fmt.Errorf("%w: the store in %s is in use by another process, which is just starting or ending",
			schema.ErrUnavailable, dir)
	}
	// The address lets a user reach the store through the server that has it open.
	msg := fmt.Sprintf("the store in %s is in use by process %d on host %s since %s (%s)",
		dir, h.PID, h.Host, h.Since.Format(time.RFC3339), h.Command)
	if h.Address != "" {
		msg += fmt.Sprintf("; it serves it at %s: use --server %s", h.Address, h.Address)
	} else {
		msg += "; wait until it ends, or run a server on the store and use --server with its address"
	}
	return fmt.Errorf("%w: %s", schema.ErrUnavailable, msg)
}

// setAddr records the address of this process's server.
func (l *dirLock) setAddr(addr string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.self.Address = addr
	return l.write()
}

// write replaces the content of LOCK. A reader may see a mixture of two contents, and
// then reports an unknown process.
func (l *dirLock) write() error {
	data, err := json.Marshal(l.self)
	if err != nil {
		return err
	}
	// The content is overwritten in place and then cut, because a rename would replace
	// the locked file.
	data = append(data, '\n')
	if _, err := l.file.WriteAt(data, 0); err != nil {
		return err
	}
	return l.file.Truncate(int64(len(data)))
}

// release unlocks the directory. The file stays: if it were unlinked, two processes could
// lock two files of the same name. Closing the file alone would not unlock it, because a
// child process that is being started has the open file, with the lock, until it runs its
// own program.
func (l *dirLock) release() error {
	return errors.Join(l.file.Truncate(0), unix.Flock(int(l.file.Fd()), unix.LOCK_UN), l.file.Close())
}
