package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

const (
	// maxFile bounds a file that is read: a hundred thousand tokens fit.
	maxFile = 64 << 20
	// settle is how long changes are gathered before files are looked at.
	settle = 50 * time.Millisecond
)

// source is files that belong together and are read again when one of them
// changes.
type source struct {
	what  string // for the log
	paths []string
	// load takes over the contents, or returns why it cannot; then all stays as it
	// was.
	load func(contents [][]byte) error

	// noted is told whether they could be read.
	noted *Source

	seen   [sha256.Size]byte // of the contents that load was given last
	wrong  error             // what load said to them
	failed string            // why they could not be read, when they could not
}

// read reads the files and loads them if they are not those seen last. It
// returns whether load was called.
func (s *source) read() (loaded bool, err error) {
	contents := make([][]byte, len(s.paths))
	sum := sha256.New()
	for i, path := range s.paths {
		if contents[i], err = ReadFile(path, maxFile); err != nil {
			return false, err
		}
		fmt.Fprintf(sum, "%d ", len(contents[i]))
		_, _ = sum.Write(contents[i]) // a hash takes everything
	}
	now := [sha256.Size]byte(sum.Sum(nil))
	if now == s.seen {
		return false, s.wrong
	}
	s.seen, s.wrong = now, s.load(contents)
	return true, s.wrong
}

// ReadFile reads a file of at most so many bytes. What is no regular file is not read: a
// pipe would keep whoever reads it waiting, and what was read before in force, for ever.
func ReadFile(path string, most int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file (%s), and has to be one: it is read again when it changes", path,
			info.Mode())
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err == nil && len(b) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return b, err
}

// watcher reads sources again when they change: it is told by the kernel, and
// looks by itself, too, as not every file system tells.
type watcher struct {
	sources []*source
	poll    time.Duration
	log     *slog.Logger
}

// run goes on until ctx ends.
func (w *watcher) run(ctx context.Context) {
	events, stop := w.events(ctx)
	defer stop()
	w.look(ctx) // at what has changed before the kernel was asked to tell
	tick := time.NewTicker(w.poll)
	defer tick.Stop()
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			if settled == nil {
				settled = time.After(settle)
			}
		case <-settled:
			settled = nil
			w.look(ctx)
		case <-tick.C:
			w.look(ctx)
		}
	}
}

// events tells of changes in the directories of the files, nil if nobody would.
// Files are exchanged by renaming, and Kubernetes exchanges a link beside them,
// so that watching the files themselves would not do. stop ends it, and waits.
func (w *watcher) events(ctx context.Context) (_ <-chan struct{}, stop func()) {
	notify, err := fsnotify.NewWatcher()
	if err == nil {
		for _, s := range w.sources {
			for _, path := range s.paths {
				err = errors.Join(err, notify.Add(filepath.Dir(path)))
			}
		}
	}
	if err != nil {
		w.log.LogAttrs(ctx, slog.LevelInfo, "changes of some files are found by looking only",
			slog.Duration("every", w.poll), slog.String("reason", err.Error()))
	}
	if notify == nil {
		return nil, func() {}
	}
	events := make(chan struct{}, 1)
	tell := func() {
		select {
		case events <- struct{}{}:
		default: // it will be looked anyway
		}
	}
	var told sync.WaitGroup
	told.Go(func() {
		for range notify.Events {
			tell()
		}
	})
	told.Go(func() {
		for range notify.Errors { // something was missed
			tell()
		}
	})
	return events, func() {
		_ = notify.Close() // there is nothing to be done about it
		told.Wait()
	}
}

// look reads what has changed. What cannot be used changes nothing, and is told
// once.
func (w *watcher) look(ctx context.Context) {
	for _, s := range w.sources {
		s.noted.Begin(ctx)
		loaded, err := s.read()
		s.noted.Note(ctx, err)
		switch {
		case err != nil:
			if why := err.Error(); loaded || why != s.failed {
				s.failed = why
				w.log.LogAttrs(ctx, slog.LevelError, "what was read before stays in force",
					slog.String("what", s.what), slog.Any("files", s.paths), slog.String("error", why))
			}
		case loaded:
			s.failed = ""
			w.log.LogAttrs(ctx, slog.LevelInfo, "read again", slog.String("what", s.what), slog.Any("files", s.paths))
		default:
			s.failed = "" // what could not be opened can be, and is as it was
		}
	}
}
