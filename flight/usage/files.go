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

// suffix is that of the file of a day: an entry a line, in JSON.
const suffix = ".jsonl"

// readDay reads the file of a day; none if there is none.
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

// writeDay puts a file in place from one moment to the next, on stable storage.
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

// Flush writes what was counted since it was written last. What cannot be written stays,
// to be written the next time.
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
			if name != today { // it is over, or the clock was wrong
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

// expire removes the days before those that are kept. A clock that was far ahead for a
// while costs nothing: what counts is how many days have files.
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
