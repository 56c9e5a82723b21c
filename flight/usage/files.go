package usage

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// suffix ends the names of the files of days. A file has one JSON object a line.
const suffix = ".jsonl"

// readDay reads a day's file. A missing file has no entries. Any line that does not parse
// fails the whole file: to skip it would understate usage.
func readDay(path, day string) (list []Entry, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		var e Entry
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&e); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(list)+1, err)
		}
		if err := e.check(day); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(list)+1, err)
		}
		list = append(list, e)
	}
	return list, nil
}

// writeDay replaces a day's file atomically and durably: it writes a new file, syncs it,
// renames it, and syncs the directory. Without the last step a power failure could bring
// back the old file.
func writeDay(path string, list []Entry) error {
	temp := path + ".new"
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	enc := json.NewEncoder(w)
	for _, e := range list {
		err = errors.Join(err, enc.Encode(e))
	}
	if err = errors.Join(err, w.Flush(), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Flush writes the days that have changed since they were last written. A day whose write
// fails stays marked as changed, and the next Flush writes it.
func (b *Book) Flush() error {
	b.writing.Lock()
	defer b.writing.Unlock()
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	today := dayOf(b.opts.Now())
	dirty := map[string][]Entry{}
	for name, d := range b.days {
		if !d.changed {
			if name != today { // the day is over, or the clock was wrong: its file has everything
				delete(b.days, name)
			}
			continue
		}
		d.changed = false
		list := make([]Entry, 0, len(d.entries))
		for k, a := range d.entries {
			list = append(list, Entry{name, k.tenant, k.dataset, a})
		}
		dirty[name] = sorted(list)
	}
	b.mu.Unlock()
	var failed error
	for name, list := range dirty {
		if err := writeDay(b.path(name), list); err != nil {
			failed = errors.Join(failed, fmt.Errorf("usage: %w", err))
			b.mu.Lock()
			if d := b.days[name]; d != nil {
				d.changed = true
			}
			b.mu.Unlock()
		}
	}
	return errors.Join(failed, b.expire())
}

// expire removes the oldest files beyond Options.Keep, if they are also older than Keep
// days. Both conditions matter: a clock that was once far in the future removes nothing
// as long as there are few files.
func (b *Book) expire() error {
	names, err := b.onDisk()
	if err != nil || len(names) <= b.opts.Keep {
		return err
	}
	oldest := dayOf(b.opts.Now().Add(-time.Duration(b.opts.Keep) * 24 * time.Hour))
	for _, name := range names[:len(names)-b.opts.Keep] { // ReadDir sorts
		if name >= oldest {
			break
		}
		err = errors.Join(err, os.Remove(b.path(name)))
	}
	return err
}
