package source

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// statFile says what is to be read of a file, and what is wrong with it as far
// as its entry in the directory tells. Links are followed.
func statFile(path string) (size int64, bad string) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return 0, reason(err)
	case info.IsDir():
		return 0, "a folder, not a file"
	case !info.Mode().IsRegular():
		return 0, "not a regular file"
	case info.Size() == 0:
		return 0, "empty"
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
	f, err := os.Open(path)
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
	if errors.As(err, &path) {
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
