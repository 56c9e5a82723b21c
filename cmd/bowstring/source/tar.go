package source

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// maxMemberName bounds the name of a member, in bytes. Keys are kept in memory.
const maxMemberName = 4096

// tarReader reads a tar, compressed or not. Tars that were joined by cat are read as one:
// the mark at which a tar ends says nothing about what follows.
type tarReader struct {
	members *tar.Reader // of the tar that is being read
	in      *tarInput
	seek    io.Seeker // set where members that are not read are passed over
	packed  bool      // it is compressed
	ended   bool      // the last tar's end mark was read, and what follows it not yet
	dataEnd int64     // where the last member's content ends, padding included; 0 if that is not known
	until   int64     // next returns errReached where a header begins there; 0: it reads to the end
	missed  int64     // an until at which no header begins
	close   func() error
}

// errReached says that reading has come to where it was to end.
var errReached = errors.New("the next part of the tar begins")

// openTarAt opens a tar that is not compressed, to read headers from one that begins at a
// byte on. It closes the file if there is an error.
func openTarAt(f *File, at int64) (*tarReader, error) {
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	t := &tarReader{in: &tarInput{r: f, n: at}, seek: f, dataEnd: at, close: f.Close}
	t.begin(nil)
	return t, nil
}

// readTar opens a tar of what was opened, to read all of it.
func readTar(f *File, err error) (*tarReader, error) {
	if err != nil {
		return nil, err
	}
	return openTar(f, false)
}

// openTar opens a tar, and closes the file if there is an error. If seek is set and the
// tar is not compressed, members that are not read are passed over without reading; its
// end is then not checked.
func openTar(f *File, seek bool) (_ *tarReader, err error) {
	buffer := 32 << 10
	if seek {
		buffer = windowBytes // no more of it may be wanted
	}
	in := bufio.NewReaderSize(f, buffer)
	t := &tarReader{in: &tarInput{r: in}, close: f.Close}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	algorithm := compressionOf(in)
	if algorithm == "" && seek {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		t.in.r, t.seek = f, f
	}
	if algorithm != "" {
		r, stop, err := decompress(bufio.NewReaderSize(in, 32<<10), algorithm)
		if err != nil {
			return nil, err
		}
		t.in.r, t.packed = r, true
		t.close = func() error { stop(); return f.Close() }
	}
	t.begin(nil)
	return t, nil
}

// Read reads the content of the member whose header was read last.
func (t *tarReader) Read(p []byte) (int, error) { return t.members.Read(p) }

// begin begins to read a tar, whose first block may have been read.
func (t *tarReader) begin(first []byte) {
	t.in.again = first
	if t.seek != nil {
		t.members = tar.NewReader(&seekableTar{t.in, t.seek})
	} else {
		t.members = tar.NewReader(t.in)
	}
}

// header returns the next member's header, also that of a tar behind the end mark of
// another.
func (t *tarReader) header() (*tar.Header, error) {
	for {
		if t.ended {
			if err := t.nextTar(); err != nil {
				return nil, err
			}
		}
		h, err := t.members.Next()
		if errors.Is(err, tar.ErrHeader) && t.in.before >= tarBlock && t.in.zeros < tarBlock {
			// Some programs end a tar with a single block of zeros: another tar may stand
			// behind it.
			t.begin(bytes.Clone(t.in.last[:]))
			h, err = t.members.Next()
		}
		switch {
		case errors.Is(err, io.EOF):
			t.ended = true
		case errors.Is(err, tar.ErrHeader):
			return nil, fmt.Errorf("at byte %d stands no header of a tar: %w", max(t.in.n-tarBlock, 0), err)
		case err != nil:
			return nil, err
		default:
			t.dataEnd = 0
			if !isSparse(h) {
				t.dataEnd = t.in.n + wholeBlocks(h.Size)
			}
			return h, nil
		}
	}
}

// nextTar reads on behind an end mark. io.EOF if only zeros follow, which is how tars are
// padded.
func (t *tarReader) nextTar() error {
	for {
		at, block := t.in.n, make([]byte, tarBlock)
		n, err := io.ReadFull(t.in, block)
		if n > 0 && t.in.zeros < int64(n) {
			_, bad := tar.NewReader(bytes.NewReader(block[:n])).Next()
			if n < tarBlock || errors.Is(bad, tar.ErrHeader) {
				return fmt.Errorf("%w: at byte %d, behind the mark at which a tar ends, stands no header of a further "+
					"one", errJunk, at)
			}
			t.ended = false
			t.begin(block)
			return nil
		}
		if err != nil {
			return t.in.err // which io.ReadFull may have replaced
		}
	}
}

// checkEnd looks, once all was read, whether there was the mark at which a tar ends, two
// blocks of zeros. tar.Reader does without.
func (t *tarReader) checkEnd() error {
	if t.in.zeros < 2*tarBlock || t.in.n-t.dataEnd < 2*tarBlock {
		return fmt.Errorf("%w: no end-of-archive mark", errCut)
	}
	return nil
}

// tarMember is a member of a tar that belongs to a sample.
type tarMember struct {
	name    string // cleaned
	size    int64
	key     string // of the sample: the name up to the first dot behind the last slash
	ext     string // what follows that dot, in lower case and composed (NFC)
	at      int64  // where its content begins in the file, -1 where the file is compressed
	header  int64  // where its headers begin, in the file as it is decoded
	problem string // why it cannot be imported, "" if it can
}

// contentAt is where the content of the member begins whose header was read last, -1 if
// the tar is compressed.
func (t *tarReader) contentAt() int64 {
	if t.packed {
		return -1
	}
	return t.in.n
}

// content reads the content of the member that next returned last.
func (t *tarReader) content(data []byte) error {
	_, err := io.ReadFull(t, data)
	return err
}

// next returns the next member that belongs to a sample. Folders, names without an
// extension, hidden ones and those that begin with __ belong to none.
func (t *tarReader) next() (m tarMember, err error) {
	for {
		begin := wholeBlocks(t.dataEnd)
		if t.until > 0 && begin >= t.until {
			if begin == t.until {
				return tarMember{}, errReached
			}
			t.missed, t.until = t.until, 0
		}
		h, err := t.header()
		if err != nil {
			return tarMember{}, err
		}
		if len(h.Name) > maxMemberName {
			return tarMember{}, fmt.Errorf("a member's name has %d bytes, more than %d: %s", len(h.Name), maxMemberName,
				Quoted(h.Name))
		}
		m, ok := memberNamed(h.Name)
		if !ok || h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		m.size, m.at, m.header = h.Size, t.contentAt(), begin
		switch {
		case h.Typeflag == tar.TypeLink || h.Typeflag == tar.TypeSymlink:
			m.problem = fmt.Sprintf("member %s is a link to %s, not a file; tar --hard-dereference --dereference "+
				"stores files", Quoted(m.name), Quoted(h.Linkname))
		case h.Typeflag != tar.TypeReg || isSparse(h):
			m.problem = fmt.Sprintf("member %s is no plain file, but of type %q", Quoted(m.name), h.Typeflag)
		}
		return m, nil
	}
}

// memberNamed is a member by its name in a header. It is false of one that belongs to no
// sample.
func memberNamed(in string) (m tarMember, ok bool) {
	name := strings.TrimPrefix(path.Clean(filepath.ToSlash(in)), "/")
	dir, base := path.Split(name)
	stem, ext, dotted := strings.Cut(base, ".")
	if stem == "" || !dotted || strings.HasPrefix(base, "__") || strings.HasPrefix(dir, "__MACOSX") {
		return tarMember{}, false
	}
	m = tarMember{name: name, key: dir + stem, ext: norm.NFC.String(strings.ToLower(ext))}
	if !isExtension(m.ext) {
		m.problem = fmt.Sprintf("member %s: a key ends at the first dot of a name, as WebDataset has it, which "+
			"makes this %s of sample %s; "+
			"if the dot belongs to the key, name it without, such as %s", Quoted(name), Quoted(m.ext),
			Quoted(m.key), Quoted(undotted(name)))
	}
	return m, true
}

// isSparse says whether a member holds more zeros than the tar does.
func isSparse(h *tar.Header) bool {
	for name := range h.PAXRecords {
		if strings.HasPrefix(name, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

// maxExtension bounds an extension, which becomes a column, in bytes.
const maxExtension = 100

// isExtension says whether what follows the first dot of a member's name is fit to name a
// column: words with dots between, of letters, digits, -, _ and +. A word begins with a
// letter or _, so that v1.5.jpg is none, except the last one, which has a letter, as 3gp.
func isExtension(ext string) bool {
	words := strings.Split(ext, ".")
	for i, word := range words {
		first := true
		letter := false
		for _, r := range word {
			switch {
			case unicode.IsMark(r) && !first: // what is not composed, such as an accent
			case unicode.IsLetter(r) && r != unicode.ReplacementChar:
				letter = true
			case r == '_':
				letter = letter || first
			case !unicode.IsDigit(r) && r != '-' && r != '+', first && i < len(words)-1:
				return false
			}
			first = false
		}
		if !letter {
			return false
		}
	}
	return len(ext) <= maxExtension
}

// undotted is a name with all dots but that of its extension replaced.
func undotted(name string) string {
	dir, base := path.Split(name)
	last := max(strings.LastIndexByte(base, '.'), 0)
	return dir + strings.ReplaceAll(base[:last], ".", "_") + base[last:]
}

// tarBlock is the size of the blocks that a tar consists of.
const tarBlock = 512

// wholeBlocks rounds a number of bytes up to whole blocks.
func wholeBlocks(bytes int64) int64 { return (bytes + tarBlock - 1) / tarBlock * tarBlock }

// tarInput is what a tar is read from. It remembers what shows the end of a tar.
type tarInput struct {
	r      io.Reader
	again  []byte         // is read once more, before r
	n      int64          // bytes read, or passed over
	zeros  int64          // that what was read ends with
	before int64          // zeros before the last block, if the last read was of one
	last   [tarBlock]byte // that block
	err    error          // of the last read
}

func (t *tarInput) Read(p []byte) (int, error) {
	if len(t.again) > 0 {
		n := copy(p, t.again)
		t.again = t.again[n:]
		return n, nil
	}
	n, err := t.r.Read(p)
	t.n += int64(n)
	t.err = err
	t.before = 0
	if n == tarBlock {
		t.before = t.zeros
		copy(t.last[:], p)
	}
	if rest := len(bytes.TrimRight(p[:n], "\x00")); rest > 0 {
		t.zeros = int64(n - rest)
	} else {
		t.zeros += int64(n)
	}
	return n, err
}

// seekableTar passes over what tar.Reader does not ask for.
type seekableTar struct {
	*tarInput
	seek io.Seeker
}

func (t *seekableTar) Seek(offset int64, whence int) (int64, error) {
	if len(t.again) > 0 { // tar.Reader has read no header yet, and passes over nothing
		return 0, io.ErrNoProgress
	}
	n, err := t.seek.Seek(offset, whence)
	if err == nil && (whence != io.SeekCurrent || offset != 0) {
		t.n, t.zeros, t.before = n, 0, 0
	}
	return n, err
}
