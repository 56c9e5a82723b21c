package source

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/dustin/go-humanize"
)

// maxBlob bounds a sample, blobs and metadata together: sizes in files may be nonsense, and a
// file of any size takes no room on a disk.
const maxBlob = 2 << 30

// What there may be in the place of a file.
var (
	errFolder     = errors.New("a folder, not a file")
	errNotRegular = errors.New("not a regular file")
)

// openFile opens a regular file. Anything else is refused unopened: opening a pipe waits for
// a writer, and opening a device may do what it does. Links are followed.
func openFile(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := regular(path, info); err != nil {
		return nil, err
	}
	// It may have been replaced meanwhile: a pipe is opened without waiting, to find out.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = regular(path, info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func regular(path string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return &fs.PathError{Op: "open", Path: path, Err: errFolder}
	case !info.Mode().IsRegular():
		return &fs.PathError{Op: "open", Path: path, Err: errNotRegular}
	}
	return nil
}

// readWhole reads a file of at most limit bytes.
func readWhole(path string, limit int64) (_ []byte, err error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err := f.Stat(); err != nil || info.Size() > limit {
		return nil, cmp.Or(err, tooLarge(limit))
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1)) // it may grow
	if err == nil && int64(len(b)) > limit {
		err = tooLarge(limit)
	}
	return b, err
}

func tooLarge(limit int64) error {
	return fmt.Errorf("it has more than %s, the most that is read into memory", humanize.IBytes(uint64(limit)))
}

// statFile says what is to be read of a file, and what is wrong with it as far
// as its entry in the directory tells. Links are followed.
func statFile(path string) (size int64, bad string) {
	info, err := os.Stat(path)
	if err == nil {
		err = regular(path, info)
	}
	switch {
	case err != nil:
		return 0, reason(err)
	case info.Size() == 0:
		return 0, "empty"
	case info.Size() > maxBlob:
		return 0, fmt.Sprintf("it has %s bytes, more than the %s that a sample may have", humanize.Comma(info.Size()),
			humanize.Comma(maxBlob))
	}
	return info.Size(), ""
}

// isDir says whether path is, or is a link to, a directory.
func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// loadFile reads a whole file of a known size into a buffer of the pool.
func loadFile(path string, size int64) ([]byte, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, errors.New(reason(err))
	}
	defer func() { _ = f.Close() }()
	// One byte more, to see that there is none.
	buf := buffers.get(size + 1)
	n, err := io.ReadFull(f, buf)
	if !errors.Is(err, io.ErrUnexpectedEOF) || int64(n) != size {
		buffers.put(buf)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
			return nil, errors.New(reason(err))
		}
		return nil, fmt.Errorf("changed while it was read: it had %d bytes", size)
	}
	return buf[:n], nil
}

// reason says why a file cannot be read, without its path, which stands beside it.
func reason(err error) string {
	var path *fs.PathError
	switch {
	case errors.Is(err, errFolder):
		return errFolder.Error()
	case errors.Is(err, errNotRegular):
		return errNotRegular.Error()
	case errors.As(err, &path):
		return "unreadable: " + path.Err.Error()
	}
	return "unreadable: " + err.Error()
}

// fileSample is a sample that a file holds the only blob of.
func fileSample(key, path string) Sample {
	s := Sample{Key: key}
	if s.Size, s.Bad = statFile(path); s.Bad != "" {
		return s
	}
	var blob []byte
	s.Load = func() (_ [][]byte, err error) {
		blob, err = loadFile(path, s.Size)
		return [][]byte{blob}, err
	}
	s.Release = func() { buffers.put(blob) }
	return s
}

// readBuffer reads n bytes into a buffer of the pool. It is never nil. Large
// ones are read step by step, so that a false size does not claim memory.
func readBuffer(r io.Reader, n int64) ([]byte, error) {
	const step = 16 << 20
	buf := buffers.get(min(n, step))
	for have := int64(0); ; {
		if _, err := io.ReadFull(r, buf[have:]); err != nil {
			buffers.put(buf)
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		have = int64(len(buf))
		if have == n {
			return buf, nil
		}
		larger := buffers.get(min(n, 2*have))
		copy(larger, buf)
		buffers.put(buf)
		buf = larger
	}
}
