package objecttest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mapFrom is the size from which a file is mapped into memory instead of read. A data set
// may be larger than the memory; a mapping of a small file would waste most of its page.
const mapFrom = 1 << 20

// AddFolder makes the server serve a directory: each subdirectory is a bucket, and the files below are its objects.
// They must not change while the server runs. Their versions are derived from size and time.
func (s *Server) AddFolder(root string) error {
	buckets, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, b := range buckets {
		if !b.IsDir() {
			continue
		}
		s.MakeBucket(b.Name())
		under := filepath.Join(root, b.Name())
		err := filepath.WalkDir(under, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			return s.addFile(b.Name(), strings.TrimPrefix(path, under+"/"), path)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// addFile adds a file as an object. Its ETag is made of size and time: a hash would read
// the whole data set at the start.
func (s *Server) addFile(bucket, key, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	var body []byte
	if st.Size() >= mapFrom {
		// The mapping lives as long as the process.
		body, err = unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	} else {
		body, err = os.ReadFile(path)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.putLocked(s.bucketLocked(bucket), key, body, fmt.Sprintf("%016x%016x", st.Size(), st.ModTime().UnixNano()))
	o.modified = st.ModTime().UTC()
	return nil
}
