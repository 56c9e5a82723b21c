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

// maxMemberName bounds the name of a member in bytes. All keys of a data set are kept in
// memory.
const maxMemberName = 4096

// tarReader reads a tar, compressed or not, and other tars that follow it. Tars joined by
// cat are read as one: the end mark of the first says nothing about what follows. One
// goroutine uses it.
//
// Formats of headers (ustar, PAX, GNU) are left to archive/tar. This reader adds what
// that package does not report: offsets, a missing end mark, and what follows the end
// mark.
type tarReader struct {
	members *tar.Reader // the tar that is being read
	in      *tarInput
	seek    io.Seeker // set if members that are not read are skipped
	packed  bool      // the tar is compressed
	ended   bool      // the end mark of the last tar was read, but not what follows it
	dataEnd int64     // end of the last member's content, padding included; 0 if unknown
	until   int64     // next returns errReached if a header begins there; 0 reads to the end
	missed  int64     // an until at which no header began
	close   func() error
}

// errReached means that reading has come to the offset until.
var errReached = errors.New("the next part of the tar begins")

// openTarAt opens an uncompressed tar at a header that begins at byte at. If it fails, it
// closes f.
func openTarAt(f *File, at int64) (*tarReader, error) {
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	t := &tarReader{in: &tarInput{r: f, n: at}, seek: f, dataEnd: at, close: f.Close}
	t.begin(nil)
	return t, nil
}

// readTar opens a tar to read all of it. f and err are the result of opening its file.
func readTar(f *File, err error) (*tarReader, error) {
	if err != nil {
		return nil, err
	}
	return openTar(f, false)
}

// openTar opens a tar; if it fails, it closes f.
//
// If seek is set and the tar is not compressed, members that are not read are skipped.
// Then the bytes between headers are not checked.
func openTar(f *File, seek bool) (_ *tarReader, err error) {
	buffer := 32 << 10
	if seek {
		buffer = windowBytes // the rest of the buffer may not be wanted
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
		// The peek has buffered bytes, so reading starts at the file itself again.
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

// Read reads the content of the current member.
func (t *tarReader) Read(p []byte) (int, error) { return t.members.Read(p) }

// begin starts a tar. first is its first block if that was read already; nil otherwise.
func (t *tarReader) begin(first []byte) {
	t.in.again = first
	if t.seek != nil {
		t.members = tar.NewReader(&seekableTar{t.in, t.seek})
	} else {
		t.members = tar.NewReader(t.in)
	}
}

// header returns the next header, also of a tar that follows the end mark of another. It
// returns io.EOF after the last tar.
func (t *tarReader) header() (*tar.Header, error) {
	for {
		if t.ended {
			if err := t.nextTar(); err != nil {
				return nil, err
			}
		}
		h, err := t.members.Next()
		if errors.Is(err, tar.ErrHeader) && t.in.before >= tarBlock && t.in.zeros < tarBlock {
			// The end mark is two blocks of zeros, but some programs write one. Another
			// tar may follow that block.
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
			// The size in the header of a sparse member is not that of its content in the
			// tar.
			if !isSparse(h) {
				t.dataEnd = t.in.n + wholeBlocks(h.Size)
			}
			return h, nil
		}
	}
}

// nextTar continues after an end mark. It returns io.EOF if only zeros follow, with which
// tars are padded, and errJunk for anything but a header.
func (t *tarReader) nextTar() error {
	for {
		at, block := t.in.n, make([]byte, tarBlock)
		n, err := io.ReadFull(t.in, block)
		if n > 0 && t.in.zeros < int64(n) {
			_, bad := tar.NewReader(bytes.NewReader(block[:n])).Next()
			if n < tarBlock || errors.Is(bad, tar.ErrHeader) {
				return fmt.Errorf("%w: at byte %d, after the end-of-archive mark, there is no header of another tar",
					errJunk, at)
			}
			t.ended = false
			t.begin(block)
			return nil
		}
		if err != nil {
			return t.in.err // io.ReadFull may have replaced it
		}
	}
}

// checkEnd checks, after everything was read, that the tar ended with its end mark: two
// blocks of zeros. archive/tar accepts a tar without one, and so a truncated download.
func (t *tarReader) checkEnd() error {
	if t.in.zeros < 2*tarBlock || t.in.n-t.dataEnd < 2*tarBlock {
		return fmt.Errorf("%w: no end-of-archive mark", errCut)
	}
	return nil
}

// tarMember is a member of a tar that belongs to a sample.
type tarMember struct {
	name    string // cleaned path
	size    int64
	key     string // of the sample: the name up to the first dot after the last slash
	ext     string // the rest after that dot, in lower case and NFC
	at      int64  // offset of the content in the file; -1 in a compressed tar
	header  int64  // offset of the headers in the decoded tar
	problem string // why it cannot be imported; "" if it can
}

// contentAt returns the offset of the current member's content; -1 if the tar is
// compressed.
func (t *tarReader) contentAt() int64 {
	if t.packed {
		return -1
	}
	return t.in.n
}

// content reads the content of the member that next has returned.
func (t *tarReader) content(data []byte) error {
	_, err := io.ReadFull(t, data)
	return err
}

// next returns the next member that belongs to a sample. Directories, names without an
// extension, hidden names, and names that begin with __ belong to none.
func (t *tarReader) next() (m tarMember, err error) {
	for {
		begin := wholeBlocks(t.dataEnd)
		// Headers are compared with until before they are read. If no header begins
		// exactly there, reading goes on, and the part that begins at until is not used.
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
		// tar stores a file with several hard links once. The other members have no
		// content.
		case h.Typeflag == tar.TypeLink || h.Typeflag == tar.TypeSymlink:
			m.problem = fmt.Sprintf("member %s is a link to %s, not a file; tar --hard-dereference --dereference "+
				"stores files", Quoted(m.name), Quoted(h.Linkname))
		case h.Typeflag != tar.TypeReg || isSparse(h):
			m.problem = fmt.Sprintf("member %s is no plain file, but of type %q", Quoted(m.name), h.Typeflag)
		}
		return m, nil
	}
}

// memberNamed returns the member for a name in a header. ok is false if the name belongs
// to no sample. The key ends at the first dot of the last part, as in WebDataset: a.b.jpg
// has the key a.
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

// isSparse reports whether a member is sparse: it has more bytes than the tar stores.
func isSparse(h *tar.Header) bool {
	for name := range h.PAXRecords {
		if strings.HasPrefix(name, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

// maxExtension bounds an extension in bytes. It becomes the name of a column.
const maxExtension = 100

// isExtension reports whether the part after the first dot can name a column: words of
// letters, digits, -, _ and +, with dots between. A word begins with a letter or _, so
// that v1.5.jpg is no extension. The last word may begin with a digit if it has a letter,
// such as 3gp.
func isExtension(ext string) bool {
	words := strings.Split(ext, ".")
	for i, word := range words {
		first := true
		letter := false
		for _, r := range word {
			switch {
			case unicode.IsMark(r) && !first: // a combining mark, such as an accent
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

// undotted returns a name with all dots replaced, except that of the extension.
func undotted(name string) string {
	dir, base := path.Split(name)
	last := max(strings.LastIndexByte(base, '.'), 0)
	return dir + strings.ReplaceAll(base[:last], ".", "_") + base[last:]
}

// tarBlock is the size of a tar's blocks. Headers are whole blocks, and contents are
// padded to them.
const tarBlock = 512

// wholeBlocks rounds a number of bytes up to whole blocks.
func wholeBlocks(bytes int64) int64 { return (bytes + tarBlock - 1) / tarBlock * tarBlock }

// tarInput is the input of a tar. It records what shows the end of a tar.
type tarInput struct {
	r      io.Reader
	again  []byte         // bytes that are read again, before r
	n      int64          // offset: bytes read or skipped
	zeros  int64          // number of zeros at the end of what was read
	before int64          // zeros before the last block, if the last read was one block
	last   [tarBlock]byte // the last block
	err    error          // error of the last read
}

// Read implements io.Reader.
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

// seekableTar lets archive/tar skip content. It hides the Seeker as long as bytes are
// read again.
type seekableTar struct {
	*tarInput
	seek io.Seeker
}

// Seek implements io.Seeker.
func (t *seekableTar) Seek(offset int64, whence int) (int64, error) {
	if len(t.again) > 0 { // no header was read yet, so nothing is skipped
		return 0, io.ErrNoProgress
	}
	n, err := t.seek.Seek(offset, whence)
	if err == nil && (whence != io.SeekCurrent || offset != 0) {
		t.n, t.zeros, t.before = n, 0, 0
	}
	return n, err
}
