package spill

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// What is in the directory of a cache.
const (
	formatFile   = "FORMAT"
	lockFile     = "LOCK"
	indexDir     = "index"
	blobsDir     = "blobs"
	formatName   = "bowstring-spill"
	formatNumber = 2
)

// format is the content of the file FORMAT.
type format struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
}

// prepareDirectory makes dir the directory of a cache of this format. One of another format, or that is damaged, is
// emptied, for a cache can be filled again; one that holds anything but a cache is refused. The lock of dir is held.
func prepareDirectory(dir string, log *slog.Logger) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	foreign := ""
	for _, e := range entries {
		if !slices.Contains([]string{formatFile, lockFile, indexDir, blobsDir, "lost+found"}, e.Name()) {
			foreign = e.Name()
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, formatFile))
	var f format
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if foreign == "" {
			foreign = firstOf(entries, indexDir, blobsDir)
		}
		if foreign != "" {
			return fmt.Errorf("%w: %s is not a spill directory: it has no file %s, and it is not empty (%s); name "+
				"another directory",
				schema.ErrInvalid, dir, formatFile, foreign)
		}
	case err != nil:
		return err
	case json.Unmarshal(data, &f) == nil && f == format{formatName, formatNumber}:
		return errors.Join(makeDir(filepath.Join(dir, indexDir)), makeDir(filepath.Join(dir, blobsDir)))
	case f.Format != formatName && (foreign != "" || f.Format != "" && firstOf(entries, indexDir, blobsDir) == ""):
		return fmt.Errorf("%w: %s is not a spill directory: its file %s does not say {\"format\":%q,…}, and it holds "+
			"%s; name another directory",
			schema.ErrInvalid, dir, formatFile, formatName, strings.TrimSpace(foreign+" "+f.Format))
	default:
		log.Warn("the spill has another format and begins anew", "directory", dir,
			"found", strings.TrimSpace(string(data[:min(len(data), 100)])), "format", formatName, "version",
			formatNumber)
	}
	return emptyDirectory(dir)
}

func firstOf(entries []os.DirEntry, names ...string) string {
	for _, e := range entries {
		if slices.Contains(names, e.Name()) {
			return e.Name()
		}
	}
	return ""
}

func makeDir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// emptyDirectory removes what the cache in dir holds. FORMAT is there all the time, so that it stays one.
func emptyDirectory(dir string) error {
	data, err := json.Marshal(format{formatName, formatNumber})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, formatFile), append(data, '\n'), 0o600); err != nil {
		return err
	}
	for _, name := range []string{indexDir, blobsDir} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.RemoveAll(path), makeDir(path)); err != nil {
			return err
		}
	}
	return segment.SyncDir(dir)
}

// holder is the content of the file LOCK: who has the directory. The lock itself is the kernel's and ends with its
// process, so that what a dead one left is no obstacle.
type holder struct {
	PID     int       `json:"pid"`
	Host    string    `json:"host"`
	Command string    `json:"command"`
	Since   time.Time `json:"since"`
}

// lockDirectory takes the lock of dir, or returns a schema.ErrUnavailable that names its holder.
func lockDirectory(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		var h holder
		buf := make([]byte, 64<<10)
		n, _ := f.ReadAt(buf, 0) // what cannot be read is described as unknown
		who := "another process, which is just starting or ending"
		if json.Unmarshal(buf[:n], &h) == nil && h.PID != 0 {
			who = fmt.Sprintf("process %d on host %s since %s (%s)", h.PID, h.Host, h.Since.Format(time.RFC3339),
				h.Command)
		}
		return nil, errors.Join(fmt.Errorf("%w: the spill directory %s is in use by %s; give each process a "+
			"directory of its own",
			schema.ErrUnavailable, dir, who), f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	data, err := json.Marshal(holder{os.Getpid(), host, strings.Join(os.Args, " "), time.Now().Truncate(time.Second)})
	if err == nil {
		if err = f.Truncate(0); err == nil {
			_, err = f.WriteAt(append(data, '\n'), 0)
		}
	}
	if err != nil && !errors.Is(err, unix.ENOSPC) { // a full disk is no reason not to read what is there
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// unlockDirectory lets go of the lock. The file stays: unlinking it would let two processes hold locks on two files
// of that name. Closing it would not do, as a child that is just being started has it open too.
func unlockDirectory(f *os.File) error {
	return errors.Join(f.Truncate(0), unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}
