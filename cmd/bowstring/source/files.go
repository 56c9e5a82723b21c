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

// maxBlob bounds a sample, blobs and metadata together: sizes in files may be nonsense, and a
// file of any size takes no room on a disk.
const maxBlob = 2 << 30

// The kinds of what may be in the place of a file.
var (
	errFolder     = errors.New("a folder, not a file")
	errNotRegular = errors.New("not a regular file")
	errNoFolder   = errors.New("not a folder")
)

// readWhole reads a file of at most limit bytes.
func (f *Files) readWhole(ctx context.Context, path string, limit int64) (_ []byte, err error) {
	in, err := f.open(ctx, path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if in.Size() > limit {
		return nil, tooLarge(limit)
	}
	b, err := io.ReadAll(io.LimitReader(in, limit+1)) // it may grow
	if err == nil && int64(len(b)) > limit {
		err = tooLarge(limit)
	}
	return b, err
}

func tooLarge(limit int64) error {
	return fmt.Errorf("it has more than %s, the most that is read into memory", humanize.IBytes(uint64(limit)))
}

// statFile says what is to be read of a file, and what is wrong with it as far as its
// directory entry shows. Links are followed.
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

// loadFile reads a whole file of a known size into a buffer of the pool.
func (f *Files) loadFile(ctx context.Context, path string, size int64) ([]byte, error) {
	in, err := f.open(ctx, path)
	if interrupted(err) {
		return nil, err
	}
	if err != nil {
		return nil, errors.New(reason(err))
	}
	defer func() { _ = in.Close() }()
	// One byte more, to see that there is none.
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

// extent is that of a whole file.
func (f *Files) extent(path string, size int64) Extent {
	return Extent{File: f.name(path), Length: size}
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

// buffers holds the memory that samples are read into.
var buffers pool

// pool hands out buffers in sizes of powers of two, and takes them back. It is
// safe for concurrent use.
type pool struct {
	classes [40]sync.Pool // of *[]byte with capacity 1<<i
}

// get returns a buffer of n bytes with any content.
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

// putAll takes back the buffers of a sample; nil ones are passed over.
func (p *pool) putAll(blobs [][]byte) {
	for _, b := range blobs {
		p.put(b)
	}
}

// put takes back what get returned, or a part of it that begins where it did.
func (p *pool) put(b []byte) {
	class := bits.Len64(uint64(cap(b))) - 1
	if class < 12 || class >= len(p.classes) || cap(b) != 1<<class {
		return
	}
	b = b[:0]
	p.classes[class].Put(&b)
}

// bounds is the folder of a data set. Its author may name any file, by a path or by a
// link: a file outside the folder belongs to the user who imports, and not one that the
// author has handed over. It is used by one goroutine; nil has no bounds.
type bounds struct {
	files    *Files
	named    string            // as it was named, absolute
	resolved string            // without links
	folders  map[string]string // resolved, by name
}

// boundsOf returns the bounds of a folder; nil if files outside it are allowed.
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

// outside says how a path leads out of the folder, "" if it does not, or leads to nothing. A path that is outside by
// its name is not looked at.
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

// check is outside as an error.
func (b *bounds) check(path string) error {
	if why := b.outside(path); why != "" {
		return fmt.Errorf("%w: %s is %s", schema.ErrInvalid, Quoted(b.files.shown(path)), why)
	}
	return nil
}

// resolve returns a path without links. Each folder is looked at once.
func (b *bounds) resolve(path string) (string, error) {
	info, err := b.files.lstat(path)
	if err != nil {
		return "", err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return b.files.resolve(path)
	}
	// Not filepath.Dir, which removes a folder before "..": the system goes on from where a link leads.
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

// below reports whether a path is in a folder, by their names.
func below(folder, path string) bool {
	rel, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(rel)
}

// A table may name a file otherwise than its folder does: with the backslashes of Windows, or with accents of their own
// (NFD, as macOS writes them) where the folder has letters that include them (NFC), or the other way round.

// slashed returns a path with slashes in the place of backslashes.
func slashed(name string) string { return strings.ReplaceAll(name, `\`, "/") }

// canonical is what is the same of all ways to write a path.
func canonical(name string) string { return norm.NFC.String(slashed(name)) }

// ascii says whether there is one way to write a name.
func ascii(name string) bool {
	for i := range len(name) {
		if name[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// namer finds the files that a table in a folder names. It is used by one goroutine.
type namer struct {
	files *Files
	dir   string
	in    *bounds
	names map[string]map[string]string // by folder, of names that are not ASCII: how the folder writes them
}

// find returns the path of a file that a table names, whether it exists or not, and its
// name as a path with slashes. It says why the file is not to be read, "" if it is. A
// name that a file has is that file.
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

// know has the files known that a table names.
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

// rel returns the path in the folder of the table of the file that a table names.
func (n *namer) rel(name string) string {
	file, key, _ := n.find(name)
	if rel, err := filepath.Rel(n.dir, file); err == nil {
		return filepath.ToSlash(rel)
	}
	return key
}

// at returns the place of a file, and why it is not to be read.
func (n *namer) at(name string) (file, bad string) {
	file = filepath.FromSlash(name)
	if !filepath.IsAbs(file) {
		file = filepath.Join(n.dir, file)
	}
	return file, n.in.outside(file)
}

// written returns a path below the folder of the table as the folders on the way write it.
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

// folder reads a folder once. Two names with one normal form are both left out: the table cannot choose between them.
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
