package flight

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"bowstring/flight/door"
	"bowstring/flight/rules"
)

// rulesPeriod is how often a file of rules is looked at.
const rulesPeriod = time.Second

// RulesFile is a file of rules that is read again when it changes. One that cannot be
// read, or is wrong, changes nothing: the rules before hold on. A new text holds once it
// was read twice, as one that is half written may be right, and grant more.
type RulesFile struct {
	path    string
	log     *slog.Logger
	current atomic.Pointer[rules.Rules]
	text    string // that current is of; for Check's goroutine
	next    string // that was read last, and is not that of current; for Check's goroutine
	trouble string // what was logged last, "" if nothing is wrong; for Check's goroutine
}

// OpenRules reads a file of rules, which must be right.
func OpenRules(path string, log *slog.Logger) (*RulesFile, error) {
	f := &RulesFile{path: path, log: log}
	text, rs, err := f.read()
	if err != nil {
		return nil, err
	}
	f.text = text
	f.current.Store(rs)
	return f, nil
}

// Rules returns the rules that hold now.
func (f *RulesFile) Rules() *rules.Rules { return f.current.Load() }

// read reads the whole of the file, however it is put in place: it may be a link that
// is changed to another file.
func (f *RulesFile) read() (string, *rules.Rules, error) {
	text, err := door.ReadFile(f.path, rules.MaxBytes)
	if err != nil {
		return "", nil, fmt.Errorf("rules: %w", err)
	}
	if string(text) == f.text && f.current.Load() != nil {
		return f.text, f.current.Load(), nil
	}
	rs, err := rules.Parse(f.path, text)
	if err != nil {
		return "", nil, fmt.Errorf("rules: %w", err)
	}
	return string(text), rs, nil
}

// Check reads the file again, and reports whether the rules are others now. What is
// wrong with it is logged once. It is for one goroutine at a time.
func (f *RulesFile) Check(ctx context.Context) (changed bool) {
	text, rs, err := f.read()
	if err != nil {
		f.next = "" // it is to be the same twice in a row
		if f.trouble != err.Error() {
			f.trouble = err.Error()
			f.log.LogAttrs(ctx, slog.LevelError, "the rules were not read again: those before hold on", slog.String("error", f.trouble))
		}
		return false
	}
	if f.trouble != "" {
		f.log.LogAttrs(ctx, slog.LevelInfo, "the file of rules is right again", slog.String("file", f.path))
	}
	f.trouble = ""
	if text == f.text {
		f.next = ""
		return false
	}
	if text != f.next {
		f.next = text
		return false
	}
	f.text = text
	f.current.Store(rs)
	f.log.LogAttrs(ctx, slog.LevelInfo, "the rules have changed", slog.String("file", f.path), slog.Int("rules", len(rs.List())))
	return true
}

// Watch looks at the file every second until ctx ends, and calls changed when the rules
// are others.
func (f *RulesFile) Watch(ctx context.Context, changed func()) {
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
