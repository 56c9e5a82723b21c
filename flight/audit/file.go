package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// file is the log on disk: the current file, and older ones with a number appended to the
// name, 1 being the oldest. One goroutine uses it at a time.
type file struct {
	path     string
	maxBytes int64
	keep     int // number of older files to keep; 0 for all

	out  *os.File
	size int64
	torn bool // the file may end within a line
	next int  // number for the current file when it is renamed
}

// openFile opens the log at path. It continues numbers behind the highest one that exists,
// so that no older file is overwritten.
func openFile(path string, maxBytes int64, keep int) (*file, error) {
	f := &file{path: path, maxBytes: maxBytes, keep: keep, next: 1}
	numbers, err := f.numbers()
	if err != nil {
		return nil, err
	}
	if n := len(numbers); n > 0 {
		f.next = numbers[n-1] + 1
	}
	return f, f.open()
}

// numbers returns the numbers of the older files, ascending.
func (f *file) numbers() ([]int, error) {
	entries, err := os.ReadDir(filepath.Dir(f.path))
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, e := range entries {
		if text, ok := strings.CutPrefix(e.Name(), filepath.Base(f.path)+"."); ok {
			if n, err := strconv.Atoi(text); err == nil && n > 0 {
				numbers = append(numbers, n)
			}
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// open opens or creates the current file, and makes its directory entry durable. It detects
// a partial last line, which a crash leaves.
func (f *file) open() error {
	out, err := os.OpenFile(f.path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := out.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", f.path)
	}
	last := []byte{'\n'}
	if err == nil && info.Size() > 0 {
		_, err = out.ReadAt(last, info.Size()-1)
	}
	if err == nil {
		err = syncDir(filepath.Dir(f.path))
	}
	if err != nil {
		return errors.Join(err, out.Close())
	}
	f.out, f.size, f.torn = out, info.Size(), last[0] != '\n'
	return nil
}

// write appends a line, which ends with a newline. It renames a full file first. On an
// error the file ends with a complete line, or torn is set.
func (f *file) write(line []byte) error {
	if f.out == nil { // opening it failed after the last rename
		if err := f.open(); err != nil {
			return err
		}
	}
	if f.size > 0 && f.size+int64(len(line)) > f.maxBytes {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	if f.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := f.out.Write(line)
	if err == nil && n < len(line) {
		err = io.ErrShortWrite
	}
	if err != nil {
		// The partial line is removed. If that fails, the next one begins on a line of
		// its own.
		if n > 0 && f.out.Truncate(f.size) != nil {
			f.size, f.torn = f.size+int64(n), true
		}
		return err
	}
	f.size, f.torn = f.size+int64(n), false
	return nil
}

// sync makes all written lines durable.
func (f *file) sync() error {
	if f.out == nil {
		return nil
	}
	return f.out.Sync()
}

// rotate renames the current file, opens a new one, and removes the oldest ones beyond
// keep. The sync comes first: lines of the renamed file can no longer be synced later.
func (f *file) rotate() error {
	if err := f.out.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.path, f.path+"."+strconv.Itoa(f.next)); err != nil {
		return err
	}
	f.next++
	err := f.out.Close()
	f.out = nil
	if opened := f.open(); opened != nil || err != nil {
		return errors.Join(err, opened)
	}
	if f.keep == 0 {
		return nil
	}
	numbers, err := f.numbers()
	for i := 0; err == nil && i < len(numbers)-f.keep; i++ {
		err = os.Remove(f.path + "." + strconv.Itoa(numbers[i]))
	}
	return err
}

// close makes all lines durable and closes the file.
func (f *file) close() error {
	if f.out == nil {
		return nil
	}
	return errors.Join(f.out.Sync(), f.out.Close())
}

// syncDir makes the names in a directory durable. Without it, a crash can lose a new file
// whose contents are durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
