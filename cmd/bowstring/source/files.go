package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/bits"
	"path/filepath"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"golang.org/x/text/unicode/norm"

	"bowstring/schema"
)

// maxBlob bounds a sample in bytes, blobs and metadata together. Sizes in files may be
// wrong, and a sparse file of any size takes no room on a disk.
const maxBlob = 2 << 30

// Errors for things that are not files.
var (
	errFolder     = errors.New("a folder, not a file")
	errNotRegular = errors.New("not a regular file")
	errNoFolder   = errors.New("not a folder")
)

// readWhole reads a file of at most limit bytes. A larger file is an error, before memory
// is taken for it.
func (f *Files) readWhole(ctx context.Context, path string, limit int64) (_ []byte, err error) {
	in, err := f.open(ctx, path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if in.Size() > limit {
		return nil, tooLarge(limit)
	}
	b, err := io.ReadAll(io.LimitReader(in, limit+1)) // the file may grow
	if err == nil && int64(len(b)) > limit {
		err = tooLarge(limit)
	}
	return b, err
}

// tooLarge is the error of a file beyond limit.
func tooLarge(limit int64) error {
	return fmt.Errorf("it has more than %s, the most that is read into memory", humanize.IBytes(uint64(limit)))
}

// statFile returns the size of a file, and what makes it a bad sample as far as its
// directory entry shows; "" for nothing. Links are followed.
func (f *Files) statFile(path string) (size int64, bad string) {
	info, err := f.stat(path)
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

// loadFile reads a whole file of a known size into a pooled buffer. The caller returns it
// with buffers.put. A file of another size has changed since it was listed, and is an
// error.
func (f *Files) loadFile(ctx context.Context, path string, size int64) ([]byte, error) {
	in, err := f.open(ctx, path)
	if interrupted(err) {
		return nil, err
	}
	if err != nil {
		return nil, errors.New(reason(err))
	}
	defer func() { _ = in.Close() }()
	// One byte more than the size shows that the file has not grown.
	buf := buffers.get(size + 1)
	n, err := io.ReadFull(in, buf)
	if !errors.Is(err, io.ErrUnexpectedEOF) || int64(n) != size {
		buffers.put(buf)
		if interrupted(err) {
			return nil, err
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
			return nil, errors.New(reason(err))
		}
		return nil, fmt.Errorf("changed while it was read: it had %d bytes", size)
	}
	return buf[:n], nil
}

// reason returns why a file cannot be read. It leaves out the path, which the message has
// already.
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

// fileSample returns a sample whose only blob is a file. Load reads the file when the
// sample is used; Release returns the buffer to the pool.
func (f *Files) fileSample(ctx context.Context, key, path string) Sample {
	s := Sample{Key: key}
	if s.Size, s.Bad = f.statFile(path); s.Bad != "" {
		return s
	}
	s.At = []Extent{f.extent(path, s.Size)}
	if f.lazy {
		return s
	}
	var blob []byte
	s.Load = func() (_ [][]byte, err error) {
		blob, err = f.loadFile(ctx, path, s.Size)
		return [][]byte{blob}, err
	}
	s.Release = func() { buffers.put(blob) }
	return s
}

// extent returns the extent of a whole file.
func (f *Files) extent(path string, size int64) Extent {
	return Extent{File: f.name(path), Length: size}
}

// readBuffer reads n bytes into a pooled buffer, which is never nil. A large buffer grows
// while it is filled, so that a false size does not claim memory.
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

// buffers is the pool of the memory for samples.
var buffers pool

// pool hands out buffers with capacities of powers of two. It is safe for concurrent use.
// Without it each sample would be garbage of its size, and the collector would double the
// memory of an import.
type pool struct {
	classes [40]sync.Pool // of *[]byte with capacity 1<<i
}

// get returns a buffer of n bytes. Its content is arbitrary.
func (p *pool) get(n int64) []byte {
	class := bits.Len64(uint64(max(n, 4096) - 1))
	if class >= len(p.classes) {
		return make([]byte, n)
	}
	if b, ok := p.classes[class].Get().(*[]byte); ok {
		return (*b)[:n]
	}
	return make([]byte, n, 1<<class)
}

// putAll returns the buffers of a sample. nil ones are ignored.
func (p *pool) putAll(blobs [][]byte) {
	for _, b := range blobs {
		p.put(b)
	}
}

// put returns a buffer of get, or a prefix of one. Buffers of other capacities are left
// to the collector.
func (p *pool) put(b []byte) {
	class := bits.Len64(uint64(cap(b))) - 1
	// get makes nothing below 1<<12.
	if class < 12 || class >= len(p.classes) || cap(b) != 1<<class {
		return
	}
	b = b[:0]
	p.classes[class].Put(&b)
}

// bounds restricts a data set to its folder. The author of a data set may name any file,
// by a path or a link. A file outside the folder belongs to the user who imports, and a
// published dataset must not contain it. One goroutine uses it; a nil bounds allows
// everything.
type bounds struct {
	files    *Files
	named    string            // path as the user named it, absolute
	resolved string            // the same path without links
	folders  map[string]string // resolved folders, by name
}

// boundsOf returns the bounds of a folder; nil if Options.Outside allows files outside
// it.
func (f *Files) boundsOf(folder string, opts Options) (*bounds, error) {
	if opts.Outside {
		return nil, nil //nolint:nilnil // no bounds
	}
	resolved, err := f.resolve(f.absolute(folder))
	if err != nil {
		return nil, notFound(err)
	}
	return &bounds{files: f, named: f.absolute(folder), resolved: resolved, folders: map[string]string{}}, nil
}

// outside returns how a path leads out of the folder; "" if it does not, or if nothing
// exists there. A path that is outside by its name is not accessed at all.
func (b *bounds) outside(path string) string {
	if b == nil {
		return ""
	}
	if !below(b.named, path) && !below(b.resolved, path) {
		return fmt.Sprintf("a path out of the folder, to %s; --allow-outside takes it",
			Quoted(b.files.shown(filepath.Clean(path))))
	}
	to, err := b.resolve(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case err != nil:
		return reason(err)
	case !below(b.resolved, to):
		return fmt.Sprintf("a link out of the folder, to %s; --allow-outside takes it", Quoted(to))
	}
	return ""
}

// check returns what outside finds as an error.
func (b *bounds) check(path string) error {
	if why := b.outside(path); why != "" {
		return fmt.Errorf("%w: %s is %s", schema.ErrInvalid, Quoted(b.files.shown(path)), why)
	}
	return nil
}

// resolve returns a path without links. It resolves each folder once: a data set has few
// folders and many files.
func (b *bounds) resolve(path string) (string, error) {
	info, err := b.files.lstat(path)
	if err != nil {
		return "", err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return b.files.resolve(path)
	}
	// Not filepath.Dir, which removes a folder before "..": the system goes on from where
	// a link leads.
	folder, name := filepath.Split(path)
	to, known := b.folders[folder]
	if !known {
		if to, err = b.files.resolve(folder); err != nil {
			return "", err
		}
		b.folders[folder] = to
	}
	return filepath.Join(to, name), nil
}

// below reports whether a path is in a folder, by their names alone.
func below(folder, path string) bool {
	rel, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(rel)
}

// A table may write a file's name in another way than the folder does: with the
// backslashes of Windows, or in another Unicode normal form. macOS decomposes accents
// (NFD), while most programs compose them (NFC).

// slashed returns a path with slashes instead of backslashes.
func slashed(name string) string { return strings.ReplaceAll(name, `\`, "/") }

// canonical returns the common form of all ways to write a path.
func canonical(name string) string { return norm.NFC.String(slashed(name)) }

// ascii reports whether a name is ASCII, so that there is one way to write it.
func ascii(name string) bool {
	for i := range len(name) {
		if name[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// namer finds the files that a table in a folder names. One goroutine uses it.
type namer struct {
	files *Files
	dir   string
	in    *bounds
	names map[string]map[string]string // by folder: names that are not ASCII, by their normal form
}

// find returns the path of a file that a table names, whether it exists or not, and its
// name as a path with slashes. bad is why the file must not be read; "" if it may.
//
// An existing file with exactly that name wins. Only if there is none, other ways to
// write the name are tried: on Linux a backslash may be part of a name.
func (n *namer) find(name string) (file, key, bad string) {
	if at, ok := n.files.named(name); ok {
		if !filepath.IsAbs(at) {
			return at, name, "it is in another place than the table, and only one is read"
		}
		name = at
		if rel, err := filepath.Rel(n.dir, at); err == nil {
			name = rel
		}
	}
	file, bad = n.at(name)
	if bad == "" && !n.files.missing(file) || !strings.Contains(name, `\`) && ascii(name) {
		return file, filepath.ToSlash(filepath.Clean(name)), bad
	}
	for _, other := range []string{name, slashed(name)} {
		at, why := n.at(other)
		if why != "" {
			continue
		}
		if at = n.written(at); !n.files.missing(at) && n.in.outside(at) == "" {
			return at, filepath.ToSlash(filepath.Clean(other)), ""
		}
	}
	return file, filepath.ToSlash(filepath.Clean(name)), bad
}

// know makes the files known that a table names. In a bucket that is one batch of
// requests instead of one for each row.
func (n *namer) know(ctx context.Context, names []string) error {
	if n.files.bucket() == nil {
		return nil
	}
	paths := make([]string, 0, len(names))
	for _, name := range names {
		if at, ok := n.files.named(name); ok {
			name = at
		}
		if !filepath.IsAbs(name) {
			name = filepath.Join(n.dir, name)
		}
		if n.in == nil || below(n.in.named, name) {
			paths = append(paths, name)
		}
	}
	return n.files.know(ctx, paths)
}

// rel returns the path of the named file relative to the table's folder.
func (n *namer) rel(name string) string {
	file, key, _ := n.find(name)
	if rel, err := filepath.Rel(n.dir, file); err == nil {
		return filepath.ToSlash(rel)
	}
	return key
}

// at returns the path of a name, and why the file must not be read.
func (n *namer) at(name string) (file, bad string) {
	file = filepath.FromSlash(name)
	if !filepath.IsAbs(file) {
		file = filepath.Join(n.dir, file)
	}
	return file, n.in.outside(file)
}

// written returns a path below the table's folder, with each part as the folder writes
// it.
func (n *namer) written(file string) string {
	rel, err := filepath.Rel(n.dir, file)
	if err != nil || !filepath.IsLocal(rel) {
		return file
	}
	at := n.dir
	for part := range strings.SplitSeq(rel, string(filepath.Separator)) {
		if next := filepath.Join(at, part); !n.files.missing(next) || ascii(part) {
			at = next
			continue
		}
		if as, ok := n.folder(at)[norm.NFC.String(part)]; ok {
			part = as
		}
		at = filepath.Join(at, part)
	}
	return at
}

// folder returns the names in a directory that are not ASCII, by their normal form. It
// reads each directory once. If two names share a normal form, both are left out, because
// the table cannot choose between them.
func (n *namer) folder(dir string) map[string]string {
	if known, ok := n.names[dir]; ok {
		return known
	}
	found, twice := map[string]string{}, map[string]bool{}
	entries, _ := n.files.readDir(dir, 0) // what cannot be read has no files
	for _, e := range entries {
		if name := e.Name(); !ascii(name) {
			c := norm.NFC.String(name)
			_, had := found[c]
			twice[c] = twice[c] || had
			found[c] = name
		}
	}
	for c, is := range twice {
		if is {
			delete(found, c)
		}
	}
	if n.names == nil {
		n.names = map[string]map[string]string{}
	}
	n.names[dir] = found
	return found
}
