package source

import (
	"archive/zip"
	"bufio"
	"bytes"
	"compress/flate"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"iter"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// zipped is a zip as a system of files: its members are below its path as files are below
// a folder. A member is stored as it is, or deflated, and then is a unit. It is safe for
// concurrent use.
type zipped struct {
	outer   *Files
	path    string // of the zip
	tree    *zip.Reader
	members map[string]*zipMember // by name
}

// zipMember is a file in a zip.
type zipMember struct {
	*zip.FileHeader
	info   fs.FileInfo
	header int64        // where the header before its content begins
	begin  atomic.Int64 // where the content begins; 0 until that was read
	bad    error        // why it is not read
}

// isZip says whether a path is that of a zip.
func isZip(files *Files, name string) bool {
	if extension(name) != "zip" {
		return false
	}
	info, err := files.stat(name)
	return err == nil && info.Mode().IsRegular()
}

// openZip reads the table at the end of a zip.
func openZip(ctx context.Context, outer *Files, name string) (_ *Files, err error) {
	z := &zipped{outer: outer, path: outer.absolute(name), members: map[string]*zipMember{}}
	in, err := outer.openParts(ctx, name, zipLeast)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %s", schema.ErrInvalid, Quoted(outer.shown(name)), reason(err))
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	at := &headerFinder{in: in}
	if z.tree, err = zip.NewReader(at, in.Size()); err != nil && !errors.Is(err, zip.ErrInsecurePath) {
		return nil, fmt.Errorf("%w: %s: %w", schema.ErrInvalid, Quoted(outer.shown(name)), err)
	}
	at.in = nil
	headers := map[*zip.FileHeader]int64{}
	for _, f := range z.tree.File {
		begin, err := f.DataOffset()
		if err != nil {
			return nil, fmt.Errorf("%w: %s: member %s: %w", schema.ErrInvalid, Quoted(outer.shown(name)), Quoted(f.Name), err)
		}
		headers[&f.FileHeader] = begin - zipHeader
	}
	err = fs.WalkDir(z.tree, ".", func(name string, d fs.DirEntry, err error) error { // an error: a name twice
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		header, ok := info.Sys().(*zip.FileHeader)
		if !ok {
			return fmt.Errorf("member %s without a header", Quoted(name))
		}
		m := &zipMember{FileHeader: header, info: info, header: headers[header]}
		m.bad = m.problem(in.Size())
		z.members[name] = m
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", schema.ErrInvalid, Quoted(outer.shown(name)), err)
	}
	return &Files{system: z, root: z.path}, nil
}

// top is the folder of all members of a zip, as zip -r puts it there, below its path; the
// path itself where there is none, or the folder names a split.
func (z *zipped) top(path string) string {
	for {
		entries, err := z.readDir(path, 0)
		entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return hidden(e.Name()) })
		if err != nil || len(entries) != 1 || !entries[0].IsDir() || isSplitWord(entries[0].Name()) ||
			strings.Contains(entries[0].Name(), "=") {
			return path
		}
		path = filepath.Join(path, entries[0].Name())
	}
}

// zipHeader is the size of the header before a member, without the name and the extra
// field.
const zipHeader = 30

// headerFinder is what archive/zip reads a zip from. Once in is nil, each header is one
// without name and extra field: so the offset of a member's header follows from that of
// its content, without reading it.
type headerFinder struct{ in io.ReaderAt }

func (h *headerFinder) ReadAt(p []byte, at int64) (int, error) {
	if h.in != nil {
		return h.in.ReadAt(p, at)
	}
	clear(p)
	return copy(p, "PK\x03\x04") + len(p) - min(len(p), 4), nil
}

// deflateRatio is how much larger than a deflated member its content may be.
const deflateRatio = 1032

// problem says why a member is not read, by the size of its zip.
func (m *zipMember) problem(size int64) error {
	packed, whole := m.CompressedSize64, m.UncompressedSize64
	switch {
	case m.Flags&1 != 0:
		return errors.New("it is encrypted; write the zip without a password")
	case m.Method != zip.Store && m.Method != zip.Deflate:
		return fmt.Errorf("it is compressed by method %d; want stored (0) or deflated (8)", m.Method)
	case m.header < 0 || m.header > size || packed > uint64(size-m.header):
		return fmt.Errorf("%w: it has %d bytes from byte %d on, and the zip has %d", errCut, packed, m.header, size)
	case m.Method == zip.Store && packed != whole || whole > deflateRatio*(packed+1):
		return fmt.Errorf("%d bytes in the zip cannot hold the %d that they claim", packed, whole)
	}
	return nil
}

// find returns the member at a path.
func (z *zipped) find(op, name string) (*zipMember, error) {
	rel, err := z.rel(op, name)
	if err != nil {
		return nil, err
	}
	m, ok := z.members[rel]
	switch {
	case !ok:
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	case m.bad != nil:
		return nil, &fs.PathError{Op: op, Path: name, Err: m.bad}
	}
	return m, nil
}

// rel is the name in the zip of a path.
func (z *zipped) rel(op, name string) (string, error) {
	rel, err := filepath.Rel(z.path, z.absolute(name))
	if err != nil || !filepath.IsLocal(rel) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	return filepath.ToSlash(rel), nil
}

func (z *zipped) absolute(name string) string { return z.outer.absolute(name) }

func (z *zipped) shown(name string) string { return z.outer.shown(name) }

func (z *zipped) stat(name string) (fs.FileInfo, error) {
	rel, err := z.rel("stat", name)
	if err != nil {
		return nil, err
	}
	if m, ok := z.members[rel]; ok {
		if m.bad != nil {
			return nil, &fs.PathError{Op: "stat", Path: name, Err: m.bad}
		}
		return m.info, nil
	}
	return fs.Stat(z.tree, rel) // a folder
}

func (*zipped) know(context.Context, []string) error { return nil }

func (*zipped) glance(context.Context, int) ([]string, error) { return nil, nil }

func (*zipped) named(string) (string, bool) { return "", false }

func (z *zipped) broken() error { return z.outer.broken() }

func (z *zipped) notes() []string { return z.outer.notes() }

func (z *zipped) bucket() object.Bucket { return z.outer.bucket() }

func (z *zipped) lstat(name string) (fs.FileInfo, error) { return z.stat(name) }

func (z *zipped) resolve(name string) (string, error) {
	if rel, err := z.rel("resolve", name); err != nil {
		return "", err
	} else if _, ok := z.members[rel]; !ok {
		if _, err := fs.Stat(z.tree, rel); err != nil {
			return "", err
		}
	}
	return filepath.Clean(z.absolute(name)), nil
}

func (z *zipped) walk(root string, visit fs.WalkDirFunc) error {
	rel, err := z.rel("walk", root)
	if err != nil {
		return visit(root, nil, err)
	}
	return fs.WalkDir(z.tree, rel, func(name string, d fs.DirEntry, err error) error {
		return visit(filepath.Join(z.path, filepath.FromSlash(name)), d, err)
	})
}

func (z *zipped) readDir(name string, most int) ([]fs.DirEntry, error) {
	rel, err := z.rel("readdir", name)
	if err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(z.tree, rel)
	if most > 0 {
		entries = entries[:min(len(entries), most)]
	}
	return entries, err
}

func (z *zipped) glob(pattern string) ([]string, error) {
	rel, err := z.rel("glob", pattern)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	found, err := fs.Glob(z.tree, rel)
	for i, name := range found {
		found[i] = filepath.Join(z.path, filepath.FromSlash(name))
	}
	return found, err
}

// zipLeast is the least that is read of a zip at once, here and there.
const zipLeast = 64 << 10

// open opens a member. Reading it from its beginning to its end checks its CRC-32.
func (z *zipped) open(ctx context.Context, name string) (*File, error) {
	return z.openParts(ctx, name, zipLeast)
}

func (z *zipped) openParts(ctx context.Context, name string, least int64) (*File, error) {
	return z.member(name, func(m *zipMember) (*File, error) {
		// The header and, of a small member, the content with it.
		packed := min(int64(m.CompressedSize64)+2*zipHeader+int64(len(m.Name)), stretch)
		return z.outer.openParts(ctx, z.path, max(packed, least))
	})
}

// zipSequence are members that are read in order.
type zipSequence struct {
	zip  *zipped
	from sequence // of the zip
}

func (s zipSequence) open(name string) (*File, error) {
	return s.zip.member(name, func(*zipMember) (*File, error) { return s.from.open(s.zip.path) })
}

func (s zipSequence) close() { s.from.close() }

func (z *zipped) inOrder(ctx context.Context, _ []string) sequence {
	return zipSequence{z, z.outer.inOrder(ctx, []string{z.path})}
}

// member opens a member of the zip, which open opens.
func (z *zipped) member(name string, open func(*zipMember) (*File, error)) (_ *File, err error) {
	m, err := z.find("open", name)
	if err != nil {
		return nil, err
	}
	if err := regular(name, m.info); err != nil {
		return nil, err
	}
	in, err := open(m)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, in.Close())
		}
	}()
	begin, err := m.content(in)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	h := &zipHandle{zip: in, member: m, packed: io.NewSectionReader(in, begin, int64(m.CompressedSize64))}
	h.restart()
	return &File{handle: h, size: int64(m.UncompressedSize64), version: in.version}, nil
}

// content returns where the content of a member begins.
func (m *zipMember) content(in *File) (int64, error) {
	if begin := m.begin.Load(); begin > 0 {
		return begin, nil
	}
	var head [zipHeader]byte
	if _, err := in.ReadAt(head[:], m.header); err != nil {
		return 0, err
	}
	if string(head[:4]) != "PK\x03\x04" || binary.LittleEndian.Uint16(head[8:]) != m.Method {
		return 0, fmt.Errorf("at byte %d of the zip stands no header of it", m.header)
	}
	begin := m.header + zipHeader + int64(binary.LittleEndian.Uint16(head[26:])) +
		int64(binary.LittleEndian.Uint16(head[28:]))
	if int64(m.CompressedSize64) > in.Size()-begin {
		return 0, fmt.Errorf("%w: its content ends behind the zip", errCut)
	}
	m.begin.Store(begin)
	return begin, nil
}

// zipHandle is an open member.
type zipHandle struct {
	zip    *File
	member *zipMember
	packed *io.SectionReader
	at     int64         // that is read next
	in     io.Reader     // of the content, from at on
	sum    hash.Hash32   // of the content up to at; nil where it was not read from its beginning
	whole  *bytes.Reader // the content, where it is deflated and was sought in
}

// restart begins at the beginning.
func (h *zipHandle) restart() {
	h.at, h.sum = 0, crc32.NewIEEE()
	_, _ = h.packed.Seek(0, io.SeekStart) // which cannot fail
	if h.in = h.packed; h.member.Method == zip.Deflate {
		h.in = flate.NewReader(bufio.NewReaderSize(h.packed, 32<<10))
	}
}

var errZipSum = errors.New("its CRC-32 is not that of the table of the zip")

func (h *zipHandle) Read(p []byte) (int, error) {
	left := int64(h.member.UncompressedSize64) - h.at
	if left < int64(len(p)) {
		p = p[:left+1] // one more, to see that there is none
	}
	n, err := h.in.Read(p)
	if h.at += int64(n); int64(n) > left {
		return 0, errors.New("it has more bytes than the table of the zip says")
	}
	if h.sum == nil {
		return n, err
	}
	_, _ = h.sum.Write(p[:n])
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	switch {
	case int64(n) < left:
		err = io.ErrUnexpectedEOF
	case h.sum.Sum32() != h.member.CRC32:
		err = errZipSum
	}
	return n, err
}

// seekable is the content in memory, or in the zip if it is stored as it is.
func (h *zipHandle) seekable() (interface {
	io.ReadSeeker
	io.ReaderAt
}, error) {
	if h.member.Method == zip.Store {
		return h.packed, nil
	}
	if h.whole == nil {
		size := int64(h.member.UncompressedSize64)
		if size > maxUnit {
			return nil, fmt.Errorf("a deflated member of %d bytes, more than the %d in which one can be sought: store it, "+
				"or unpack the zip", size, int64(maxUnit))
		}
		h.restart()
		b, err := readBuffer(h, size)
		if err == nil {
			_, err = io.CopyN(io.Discard, h, 1)
		}
		if !errors.Is(err, io.EOF) {
			return nil, err
		}
		h.whole = bytes.NewReader(b)
	}
	return h.whole, nil
}

func (h *zipHandle) ReadAt(p []byte, at int64) (int, error) {
	r, err := h.seekable()
	if err != nil {
		return 0, err
	}
	return r.ReadAt(p, at)
}

func (h *zipHandle) Seek(offset int64, whence int) (int64, error) {
	if whence == io.SeekStart && offset == 0 {
		h.restart()
		return 0, nil
	}
	switch whence {
	case io.SeekCurrent:
		offset += h.at
	case io.SeekEnd:
		offset += int64(h.member.UncompressedSize64)
	}
	if offset == h.at {
		return h.at, nil
	}
	at := h.at // which seekable may change
	r, err := h.seekable()
	if err == nil {
		at, err = r.Seek(offset, io.SeekStart)
		h.in, h.sum = r, nil
	}
	h.at = at
	return at, err
}

func (h *zipHandle) Close() error { return h.zip.Close() }

// inZip is a data set in a zip. Its blobs are in the zip.
type inZip struct {
	Source
	zip *zipped
}

func (s *inZip) Files() *Files { return s.zip.outer }

func (s *inZip) Samples(ctx context.Context) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		for sample, err := range s.Source.Samples(ctx) {
			at := sample.At
			if err := s.zip.broken(); err != nil {
				yield(Sample{}, err)
				return
			}
			if load := sample.Load; load == nil {
				s.zip.lay(ctx, at)
			} else {
				sample.Load = func() ([][]byte, error) {
					blobs, err := load()
					if err == nil {
						s.zip.lay(ctx, at)
					}
					return blobs, err
				}
			}
			if !yield(sample, err) {
				return
			}
		}
	}
}

// lay makes extents of members those of the zip.
func (z *zipped) lay(ctx context.Context, at []Extent) {
	for i, e := range at {
		if !e.IsZero() {
			at[i] = z.extent(ctx, e)
		}
	}
}

func (z *zipped) extent(ctx context.Context, e Extent) Extent {
	m, ok := z.members[path.Clean(e.File)]
	if !ok || m.bad != nil {
		return Extent{Why: "its member is gone"}
	}
	begin := m.begin.Load()
	if begin == 0 {
		in, err := z.outer.openParts(ctx, z.path, zipLeast)
		if err != nil {
			return Extent{Why: reason(err)}
		}
		begin, err = m.content(in)
		if err = errors.Join(err, in.Close()); err != nil {
			return Extent{Why: reason(err)}
		}
	}
	file := z.outer.name(z.path)
	switch {
	case m.Method == zip.Deflate && e.Unit != nil:
		return Extent{Why: "it is compressed within a member that is deflated: import it instead"}
	case m.Method == zip.Deflate:
		return inUnit(file, &schema.Unit{Offset: begin, Length: int64(m.CompressedSize64),
			Size: int64(m.UncompressedSize64), Codec: schema.CodecDeflate}, e.Offset, e.Length)
	case e.Unit != nil:
		u := *e.Unit
		u.Offset += begin
		return inUnit(file, &u, e.Offset, e.Length)
	}
	return Extent{File: file, Offset: begin + e.Offset, Length: e.Length}
}
