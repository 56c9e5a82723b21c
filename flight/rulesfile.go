package flight

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"bowstring/flight/auth"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// rulesPeriod is how often a file of rules or tenants is looked at.
const rulesPeriod = time.Second

// mostTexts is how many texts a file may have in a row, each read once.
const mostTexts = 5

// watchedFile is a file that is read again when it changes. One that cannot be read, or
// is wrong, changes nothing: what was read before holds on, for the grace time of its sources. A new text holds once it was
// read twice, as one that is half written may be right, and grant more.
type watchedFile[T any] struct {
	what    string // "rules", "tenants"
	path    string
	log     *slog.Logger
	noted   *auth.Source // is told whether the file can be read
	parse   func(file string, text []byte) (*T, error)
	size    func(*T) int
	current atomic.Pointer[T]
	text    string // that current is of; for Check's goroutine
	next    string // that was read last, and is not that of current; for Check's goroutine
	texts   int    // that were read in a row, each of them another one; for Check's goroutine
	trouble string // what was logged last, "" if nothing is wrong; for Check's goroutine
}

// RulesFile is a file of rules that is read again when it changes.
type RulesFile struct{ watchedFile[policy.Rules] }

// OpenRules reads a file of rules, which must be right.
func OpenRules(path string, sources *auth.Sources, log *slog.Logger) (*RulesFile, error) {
	f := &RulesFile{watchedFile[policy.Rules]{what: "rules", path: path, log: log, parse: policy.Parse,
		size: func(rs *policy.Rules) int { return len(rs.List()) }}}
	return f, f.open(sources)
}

// Rules returns the rules that hold now.
func (f *RulesFile) Rules() *atomic.Pointer[policy.Rules] { return &f.current }

// TenantsFile is a file of tenants that is read again when it changes.
type TenantsFile struct{ watchedFile[policy.Tenants] }

// OpenTenants reads a file of tenants, which must be right.
func OpenTenants(path string, sources *auth.Sources, log *slog.Logger) (*TenantsFile, error) {
	f := &TenantsFile{watchedFile[policy.Tenants]{what: "tenants", path: path, log: log, parse: policy.ParseTenants,
		size: func(ts *policy.Tenants) int { return len(ts.List()) }}}
	return f, f.open(sources)
}

// Tenants returns the tenants that there are now.
func (f *TenantsFile) Tenants() *atomic.Pointer[policy.Tenants] { return &f.current }

func (f *watchedFile[T]) open(sources *auth.Sources) error {
	f.noted = sources.Add("the file of "+f.what, true)
	text, v, err := f.read()
	if err != nil {
		return err
	}
	f.text = text
	f.current.Store(v)
	return nil
}

// read reads the whole of the file, however it is put in place: it may be a link that
// is changed to another file.
func (f *watchedFile[T]) read() (string, *T, error) {
	text, err := auth.ReadFile(f.path, policy.MaxBytes)
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
func (f *watchedFile[T]) Check(ctx context.Context) (changed bool) {
	f.noted.Begin(ctx)
	text, v, err := f.read()
	next := ""
	if err == nil && text != f.text {
		next = text
	}
	if next == "" || next == f.next {
		f.texts = 0
	} else if f.texts++; f.texts > mostTexts {
		err = fmt.Errorf("%w: %s: %s has another text each time that it is read; a text holds once it was read twice, "+
			"%s apart", schema.ErrInvalid, f.what, f.path, rulesPeriod)
	}
	before := f.next
	f.next = next // it is to be the same twice in a row
	f.noted.Note(ctx, err)
	if err != nil {
		if f.trouble != err.Error() {
			f.trouble = err.Error()
			f.log.LogAttrs(ctx, slog.LevelError, "a file was not read again: what it said before holds on",
				slog.String("what", f.what), slog.String("error", f.trouble))
		}
		return false
	}
	if f.trouble != "" {
		f.log.LogAttrs(ctx, slog.LevelInfo, "a file is right again", slog.String("what", f.what),
			slog.String("file", f.path))
	}
	f.trouble = ""
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
func (f *watchedFile[T]) Watch(ctx context.Context, changed func()) {
	tick := time.NewTicker(rulesPeriod)
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
