package command

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/dustin/go-humanize"

	"bowstring/cmd/bowstring/source"
)

// printedBad is how many bad items are printed.
const printedBad = 50

// badList collects what cannot be imported: the first few in memory, all of
// them in a file, if there is to be one, from the first on.
type badList struct {
	path  string
	n     int64
	first []source.BadItem

	file *os.File
	out  *bufio.Writer
}

func (l *badList) add(items []source.BadItem) error {
	for _, item := range items {
		l.n++
		if len(l.first) < printedBad {
			l.first = append(l.first, item)
		}
		if err := l.write(item); err != nil {
			return fmt.Errorf("write the list of bad items: %w", err)
		}
	}
	return nil
}

func (l *badList) write(item source.BadItem) error {
	if l.path == "" {
		return nil
	}
	if l.file == nil {
		f, err := os.Create(l.path)
		if err != nil {
			return err
		}
		l.file, l.out = f, bufio.NewWriter(f)
	}
	line, err := json.Marshal(item)
	if err != nil {
		return err
	}
	_, err = l.out.Write(append(printableJSON(line), '\n'))
	return err
}

// written returns the path of the file, if there is one.
func (l *badList) written() string {
	if l.n == 0 {
		return ""
	}
	return l.path
}

// print lists the first items for a person.
func (l *badList) print(app *App) {
	for _, item := range l.first {
		app.Notef("bad: %s: %s", source.Quoted(item.Key), oneLine(item.Reason))
	}
	if more := l.n - int64(len(l.first)); more > 0 && l.path != "" {
		app.Notef("and %s more, all listed in %s", humanize.Comma(more), l.path)
	} else if more > 0 {
		app.Notef("and %s more; --bad-list FILE lists all", humanize.Comma(more))
	}
}

// Close completes the file. It may be called again.
func (l *badList) Close() error {
	if l.file == nil || l.out == nil {
		return nil
	}
	err := errors.Join(l.out.Flush(), l.file.Close())
	l.out = nil
	if err != nil {
		return fmt.Errorf("write the list of bad items: %w", err)
	}
	return nil
}
