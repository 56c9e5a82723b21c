package auth

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

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
