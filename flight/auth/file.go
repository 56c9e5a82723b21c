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
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// FilePeriod is how often a File is looked at.
const FilePeriod = time.Second

const (
	// MostTexts is how many texts a file may have in a row, each read once.
	MostTexts = 5
	// maxText is how many bytes a file may have.
	maxText = 4 << 20
)

// File is a file of rules, tenants or keys that is read again when it changes. One that cannot be read, or
// is wrong, changes nothing: what was read before holds on, for the grace time of its sources. A new text holds once it was
// read twice, as one that is half written may be right, and grant more.
type File[T any] struct {
	what    string // "rules", "tenants"
	path    string
	log     *slog.Logger
	noted   *Source // is told whether the file can be read
	parse   func(file string, text []byte) (*T, error)
	size    func(*T) int
	current atomic.Pointer[T]
	text    string // that current is of; for Check's goroutine
	next    string // that was read last, and is not that of current; for Check's goroutine
	texts   int    // that were read in a row, each of them another one; for Check's goroutine
	failed  string // what was logged last, "" if nothing is wrong; for Check's goroutine
}

// OpenFile reads a file, which must be right. what names what it has; parse makes something of its text, and size counts the
// entries of that, for the log.
func OpenFile[T any](what, path string, parse func(file string, text []byte) (*T, error), size func(*T) int,
	sources *Sources, log *slog.Logger) (*File[T], error) {
	f := &File[T]{what: what, path: path, log: log, parse: parse, size: size, noted: sources.Add("the file of "+what, true)}
	text, v, err := f.read()
	if err != nil {
		return nil, err
	}
	f.text = text
	f.current.Store(v)
	return f, nil
}

// Current is what the file says now.
func (f *File[T]) Current() *atomic.Pointer[T] { return &f.current }

// read reads the whole of the file, however it is put in place: it may be a link that
// is changed to another file.
func (f *File[T]) read() (string, *T, error) {
	text, err := ReadFile(f.path, maxText)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", f.what, err)
	}
	if string(text) == f.text && f.current.Load() != nil {
		return f.text, f.current.Load(), nil
	}
	v, err := f.parse(f.path, text)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", f.what, err)
	}
	return string(text), v, nil
}

// Check reads the file again, and reports whether it says something else now. What is
// wrong with it is logged once. It is for one goroutine at a time.
func (f *File[T]) Check(ctx context.Context) (changed bool) {
	f.noted.Begin(ctx)
	text, v, err := f.read()
	next := ""
	if err == nil && text != f.text {
		next = text
	}
	if next == "" || next == f.next {
		f.texts = 0
	} else if f.texts++; f.texts > MostTexts {
		err = fmt.Errorf("%w: %s: %s has another text each time that it is read; a text holds once it was read twice, "+
			"%s apart", schema.ErrInvalid, f.what, f.path, FilePeriod)
	}
	before := f.next
	f.next = next // it is to be the same twice in a row
	f.noted.Note(ctx, err)
	if err != nil {
		if f.failed != err.Error() {
			f.failed = err.Error()
			f.log.LogAttrs(ctx, slog.LevelError, "a file was not read again: what it said before holds on",
				slog.String("what", f.what), slog.String("error", f.failed))
		}
		return false
	}
	if f.failed != "" {
		f.log.LogAttrs(ctx, slog.LevelInfo, "a file is right again", slog.String("what", f.what),
			slog.String("file", f.path))
	}
	f.failed = ""
	if next == "" || next != before {
		return false
	}
	f.text, f.next = text, ""
	f.current.Store(v)
	f.log.LogAttrs(ctx, slog.LevelInfo, "a file has changed, and what it says holds", slog.String("what", f.what),
		slog.String("file", f.path), slog.Int("entries", f.size(v)))
	return true
}

// Watch looks at the file every second until ctx ends, and calls changed when it says
// something else.
func (f *File[T]) Watch(ctx context.Context, changed func()) {
	tick := time.NewTicker(FilePeriod)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if f.Check(ctx) {
				changed()
			}
		case <-ctx.Done():
			return
		}
	}
}

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
