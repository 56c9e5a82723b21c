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

// FilePeriod is the interval at which a File is read.
const FilePeriod = time.Second

const (
	// MostTexts bounds the different texts that successive reads may find. More means
	// that a program rewrites the file all the time.
	MostTexts = 5
	// maxText bounds a file in bytes.
	maxText = 4 << 20
)

// File is a file of rules, tenants or keys that is read again when it changes. If it
// cannot be read or is wrong, the previous contents stay in force for the grace time of
// its sources. A new text takes effect only after two reads have found it: a half-written
// file may parse, and grant more than the whole one.
type File[T any] struct {
	what    string // "rules", "tenants"
	path    string
	log     *slog.Logger
	noted   *Source // records whether the file can be read
	parse   func(file string, text []byte) (*T, error)
	size    func(*T) int
	current atomic.Pointer[T]
	text    string // the text of current; used by Check's goroutine only
	next    string // the text of the last read, if it differs from text; used by Check's goroutine only
	texts   int    // successive reads that each found another text; used by Check's goroutine only
	failed  string // the error that was logged last, "" if none; used by Check's goroutine only
}

// OpenFile reads a file, which must be valid. what names its contents in messages, parse
// compiles its text, and size counts its entries for the log.
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

// Current holds the contents in force. Readers load it for each decision.
func (f *File[T]) Current() *atomic.Pointer[T] { return &f.current }

// read reads the file by its path, each time: it may be a link that is changed to another
// file, as in Kubernetes.
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

// Check reads the file again, and reports whether new contents have taken effect. It logs
// each error once. Only one goroutine may call it.
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
	f.next = next // must be found twice in a row
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

// Watch checks the file at each FilePeriod until ctx ends, and calls changed when new
// contents have taken effect.
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
	// settle is how long changes are collected before the files are read.
	settle = 50 * time.Millisecond
)

// source is a set of files that are read together when one of them changes, such as a
// certificate and its key.
type source struct {
	what  string // for the log
	paths []string
	// load takes the new contents, or returns an error and leaves everything as it was.
	load func(contents [][]byte) error

	// noted records whether the files can be read.
	noted *Source

	seen   [sha256.Size]byte // hash of the contents that load got last
	wrong  error             // load's error for them
	failed string            // the last error that was logged, "" if none
}

// read reads the files and calls load if they have changed since the last call of load.
// It returns whether it has called load.
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

// ReadFile reads a regular file of at most most bytes. It refuses a pipe, which would
// block its reader for ever and keep the old contents in force.
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

// watcher reads sources again when they change. It gets notifications from the kernel,
// and polls as well, because some file systems send none.
type watcher struct {
	sources []*source
	poll    time.Duration
	log     *slog.Logger
}

// run watches until ctx ends.
func (w *watcher) run(ctx context.Context) {
	events, stop := w.events(ctx)
	defer stop()
	w.check(ctx) // for changes before the notifications began
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
			w.check(ctx)
		case <-tick.C:
			w.check(ctx)
		}
	}
}

// events returns notifications of changes in the directories of the files; nil if the
// system has none. Files are replaced by renaming, and Kubernetes replaces a link next to
// them, so watching the files themselves would miss that. stop ends the notifications and
// waits for the goroutines.
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
	notice := func() {
		select {
		case events <- struct{}{}:
		default: // a check is due already
		}
	}
	var readers sync.WaitGroup
	readers.Go(func() {
		for range notify.Events {
			notice()
		}
	})
	readers.Go(func() {
		for range notify.Errors { // some notification was lost
			notice()
		}
	})
	return events, func() {
		_ = notify.Close() // nothing can be done about an error
		readers.Wait()
	}
}

// check reads the sources that have changed. A source with an error keeps its old
// contents; the error is logged once.
func (w *watcher) check(ctx context.Context) {
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
			s.failed = "" // an unreadable file can be read again and has not changed
		}
	}
}
