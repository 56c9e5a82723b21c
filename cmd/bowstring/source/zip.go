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

// zipped is a zip as a file system: members are below its path as files are below a
// folder. A member is stored or deflated; a deflated one is a unit. It is safe for
// concurrent use once openZip has returned.
type zipped struct {
	outer   *Files
	path    string // path of the zip in outer
	tree    *zip.Reader
	members map[string]*zipMember // by name
}

// zipMember is a file in a zip.
type zipMember struct {
	*zip.FileHeader
	info   fs.FileInfo
	header int64        // offset of the local header
	begin  atomic.Int64 // offset of the content; 0 until the local header was read
	bad    error        // why the member cannot be read
}

// isZip reports whether a path is that of a zip file.
func isZip(files *Files, name string) bool {
	if extension(name) != "zip" {
		return false
	}
	info, err := files.stat(name)
	return err == nil && info.Mode().IsRegular()
}

// openZip reads the central directory at the end of a zip. It does not read the local
// headers: in a bucket each would be a request.
func openZip(ctx context.Context, outer *Files, name string) (_ *Files, err error) {
	z := &zipped{outer: outer, path: outer.absolute(name), members: map[string]*zipMember{}}
	in, err := outer.openParts(ctx, name, zipLeast)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %s", schema.ErrInvalid, Quoted(outer.shown(name)), reason(err))
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	// archive/zip checks the directory, including the ZIP64 records of large files.
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
	// The tree of archive/zip cleans names, so that no member is outside the zip.
	err = fs.WalkDir(z.tree, ".", func(name string, d fs.DirEntry, err error) error { // an error is a duplicate name
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

// top returns the folder that contains all members, as zip -r makes it. It returns path
// if there is none, or if the folder names a split.
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

// zipHeader is the size of a member's local header without its name and extra field.
const zipHeader = 30

// headerFinder is the input from which archive/zip reads. If in is nil, each read returns
// a local header without name and extra field. DataOffset then returns the offset of the
// header plus a constant, without reading it. archive/zip does not export the offset of
// the header.
type headerFinder struct{ in io.ReaderAt }

// ReadAt implements io.ReaderAt.
func (h *headerFinder) ReadAt(p []byte, at int64) (int, error) {
	if h.in != nil {
		return h.in.ReadAt(p, at)
	}
	clear(p)
	return copy(p, "PK\x03\x04") + len(p) - min(len(p), 4), nil
}

// deflateRatio is the largest ratio of content to deflated size. Deflate codes at most
// 258 bytes in 2 bits.
const deflateRatio = 1032

// problem returns why a member cannot be read; nil if it can. size is that of the zip.
// Sizes in the directory are checked before memory is taken for them.
func (m *zipMember) problem(size int64) error {
	packed, whole := m.CompressedSize64, m.UncompressedSize64
	switch {
	// Bit 0 of the general purpose flags marks encryption.
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

// find returns the member at a path; it must be readable.
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

// rel returns the name in the zip for a path.
func (z *zipped) rel(op, name string) (string, error) {
	rel, err := filepath.Rel(z.path, z.absolute(name))
	if err != nil || !filepath.IsLocal(rel) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	return filepath.ToSlash(rel), nil
}

// absolute implements system.
func (z *zipped) absolute(name string) string { return z.outer.absolute(name) }

// shown implements system.
func (z *zipped) shown(name string) string { return z.outer.shown(name) }

// stat implements system.
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
	return fs.Stat(z.tree, rel) // anything else is a folder
}

// know implements system: the central directory lists everything already.
func (*zipped) know(context.Context, []string) error { return nil }

func (*zipped) glance(context.Context, int) ([]string, error) { return nil, nil }

func (*zipped) named(string) (string, bool) { return "", false }

func (z *zipped) broken() error { return z.outer.broken() }

func (z *zipped) notes() []string { return z.outer.notes() }

func (z *zipped) bucket() object.Bucket { return z.outer.bucket() }

// lstat implements system. Links in a zip are stored as files, and are not followed.
func (z *zipped) lstat(name string) (fs.FileInfo, error) { return z.stat(name) }

// resolve implements system.
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

// walk implements system.
func (z *zipped) walk(root string, visit fs.WalkDirFunc) error {
	rel, err := z.rel("walk", root)
	if err != nil {
		return visit(root, nil, err)
	}
	return fs.WalkDir(z.tree, rel, func(name string, d fs.DirEntry, err error) error {
		return visit(filepath.Join(z.path, filepath.FromSlash(name)), d, err)
	})
}

// readDir implements system.
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

// glob implements system.
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

// zipLeast is the least that one request reads of a zip in a bucket.
const zipLeast = 64 << 10

// open implements system. Reading a member from start to end checks its CRC-32.
func (z *zipped) open(ctx context.Context, name string) (*File, error) {
	return z.openParts(ctx, name, zipLeast)
}

// openParts implements system. It opens the zip once more for each member.
func (z *zipped) openParts(ctx context.Context, name string, least int64) (*File, error) {
	return z.member(name, func(m *zipMember) (*File, error) {
		// The first request covers the local header and, for a small member, its content.
		// The extra field may be longer there than in the directory, so this is an
		// estimate.
		packed := min(int64(m.CompressedSize64)+2*zipHeader+int64(len(m.Name)), stretch)
		return z.outer.openParts(ctx, z.path, max(packed, least))
	})
}

// zipSequence opens members that are read in order.
type zipSequence struct {
	zip  *zipped
	from sequence // sequence of the zip itself
}

func (s zipSequence) open(name string) (*File, error) {
	return s.zip.member(name, func(*zipMember) (*File, error) { return s.from.open(s.zip.path) })
}

func (s zipSequence) close() { s.from.close() }

func (z *zipped) inOrder(ctx context.Context, _ []string) sequence {
	return zipSequence{z, z.outer.inOrder(ctx, []string{z.path})}
}

// member opens a member; open opens the zip for it.
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
	// The local header is read once for each member; later opens use the stored offset.
	begin, err := m.content(in)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	h := &zipHandle{zip: in, member: m, packed: io.NewSectionReader(in, begin, int64(m.CompressedSize64))}
	h.restart()
	return &File{handle: h, size: int64(m.UncompressedSize64), version: in.version}, nil
}

// content returns the offset of a member's content. Name and extra field of the local
// header may have other lengths than in the central directory, so the local header must
// be read.
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
	// The lengths of name and extra field are at bytes 26 and 28 of the local header.
	begin := m.header + zipHeader + int64(binary.LittleEndian.Uint16(head[26:])) +
		int64(binary.LittleEndian.Uint16(head[28:]))
	if int64(m.CompressedSize64) > in.Size()-begin {
		return 0, fmt.Errorf("%w: its content ends behind the zip", errCut)
	}
	m.begin.Store(begin)
	return begin, nil
}

// zipHandle is an open member. One goroutine uses it.
type zipHandle struct {
	zip    *File
	member *zipMember
	packed *io.SectionReader
	at     int64         // offset of the next read
	in     io.Reader     // content from at on
	sum    hash.Hash32   // CRC of the content up to at; nil if it was not read from its start
	whole  *bytes.Reader // the content, if it is deflated and a Seek was necessary
}

// restart goes back to the beginning. Deflated content cannot be entered elsewhere.
func (h *zipHandle) restart() {
	h.at, h.sum = 0, crc32.NewIEEE()
	_, _ = h.packed.Seek(0, io.SeekStart) // cannot fail
	if h.in = h.packed; h.member.Method == zip.Deflate {
		h.in = flate.NewReader(bufio.NewReaderSize(h.packed, 32<<10))
	}
}

// errZipSum means that the content is damaged.
var errZipSum = errors.New("its CRC-32 is not that of the table of the zip")

// Read implements io.Reader. It checks size and CRC-32 at the end.
func (h *zipHandle) Read(p []byte) (int, error) {
	left := int64(h.member.UncompressedSize64) - h.at
	if left < int64(len(p)) {
		p = p[:left+1] // one more, to find out whether there is more
	}
	n, err := h.in.Read(p)
	if h.at += int64(n); int64(n) > left {
		return 0, errors.New("it has more bytes than the table of the zip says")
	}
	// After a Seek the CRC-32 of the whole is no longer known.
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

// seekable returns the content as it is in the zip, if it is stored. Deflated content is
// decoded into memory once, up to maxUnit bytes.
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

// ReadAt implements io.ReaderAt.
func (h *zipHandle) ReadAt(p []byte, at int64) (int, error) {
	r, err := h.seekable()
	if err != nil {
		return 0, err
	}
	return r.ReadAt(p, at)
}

// Seek implements io.Seeker. Seeking to the start needs no memory.
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
	at := h.at // seekable may change it
	r, err := h.seekable()
	if err == nil {
		at, err = r.Seek(offset, io.SeekStart)
		h.in, h.sum = r, nil
	}
	h.at = at
	return at, err
}

// Close implements io.Closer.
func (h *zipHandle) Close() error { return h.zip.Close() }

// inZip is a data set in a zip. Its extents are in the zip, whose name is that of a file
// in the outer place.
type inZip struct {
	Source
	zip *zipped
}

// Files implements Source.
func (s *inZip) Files() *Files { return s.zip.outer }

// Samples implements Source. Extents are converted after Load, because reading a member
// shows where its content begins.
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

// lay converts extents in members to extents in the zip.
func (z *zipped) lay(ctx context.Context, at []Extent) {
	for i, e := range at {
		if !e.IsZero() {
			at[i] = z.extent(ctx, e)
		}
	}
}

// extent converts one extent. A stored member keeps its offsets, and a deflated one
// becomes a unit. A unit within a unit has no form, so such a blob must be imported.
func (z *zipped) extent(ctx context.Context, e Extent) Extent {
	m, ok := z.members[path.Clean(e.File)]
	if !ok || m.bad != nil {
		return Extent{Why: "its member is gone"}
	}
	// A walked data set has extents of members that were never opened.
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
