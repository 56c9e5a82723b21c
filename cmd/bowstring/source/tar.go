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

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// maxMemberName bounds the name of a member, in bytes. Keys are kept in memory.
const maxMemberName = 4096

// zstdOptions bound what a frame may make its reader hold: the window of zstd --long=27.
var zstdOptions = []zstd.DOption{zstd.WithDecoderMaxWindow(128 << 20), zstd.WithDecoderConcurrency(1),
	zstd.WithDecoderLowmem(true)}

// tarReader reads a tar, compressed or not.
type tarReader struct {
	*tar.Reader
	zeros trailingZeros
	close func() error
}

// openTar opens a tar. If seek is set and the tar is not compressed, members
// that are not read are passed over without reading; its end is then not checked.
func openTar(name string, seek bool) (*tarReader, error) {
	f, err := openFile(name)
	if err != nil {
		return nil, err
	}
	t := &tarReader{close: f.Close}
	var in io.Reader = bufio.NewReaderSize(f, 32<<10)
	switch {
	case strings.HasSuffix(strings.ToLower(name), "gz"):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		in = z
		t.close = func() error { return errors.Join(z.Close(), f.Close()) }
	case strings.HasSuffix(strings.ToLower(name), "zst"), strings.HasSuffix(strings.ToLower(name), "zstd"):
		z, err := zstd.NewReader(in, zstdOptions...)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		in = z
		t.close = func() error { z.Close(); return f.Close() }
	case seek:
		t.Reader = tar.NewReader(f)
		return t, nil
	}
	t.zeros.r = in
	t.Reader = tar.NewReader(&t.zeros)
	return t, nil
}

// checkEnd reads on to the end of the file and looks whether there was the mark at which
// a tar ends, two blocks of zeros. tar.Reader does without.
func (t *tarReader) checkEnd() error {
	if _, err := io.Copy(io.Discard, &t.zeros); err != nil {
		return err
	}
	if t.zeros.n < 1024 {
		return fmt.Errorf("%w: no end-of-archive mark", errCut)
	}
	return nil
}

// trailingZeros counts the zeros that what was read ends with.
type trailingZeros struct {
	r io.Reader
	n int
}

func (t *trailingZeros) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if rest := len(bytes.TrimRight(p[:n], "\x00")); rest > 0 {
		t.n = n - rest
	} else {
		t.n += n
	}
	return n, err
}

// tarMember is a member of a tar that belongs to a sample.
type tarMember struct {
	name    string // cleaned
	size    int64
	key     string // of the sample: the name up to the first dot behind the last slash
	ext     string // what follows that dot, in lower case
	problem string // why it cannot be imported, "" if it can
}

// next returns the next member that belongs to a sample. Folders, names without an
// extension, hidden ones and those that begin with __ belong to none.
func (t *tarReader) next() (m tarMember, err error) {
	for {
		h, err := t.Next()
		if err != nil {
			return tarMember{}, err
		}
		if len(h.Name) > maxMemberName {
			return tarMember{}, fmt.Errorf("a member's name has %d bytes, more than %d: %s", len(h.Name), maxMemberName,
				Quoted(h.Name))
		}
		name := strings.TrimPrefix(path.Clean(filepath.ToSlash(h.Name)), "/")
		dir, base := path.Split(name)
		stem, ext, dotted := strings.Cut(base, ".")
		if h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeXGlobalHeader || stem == "" || !dotted ||
			strings.HasPrefix(base, "__") || strings.HasPrefix(dir, "__MACOSX") {
			continue
		}
		m = tarMember{name: name, size: h.Size, key: dir + stem, ext: strings.ToLower(ext)}
		switch {
		case h.Typeflag == tar.TypeLink || h.Typeflag == tar.TypeSymlink:
			m.problem = fmt.Sprintf("member %s is a link to %s, not a file; tar --hard-dereference --dereference "+
				"stores files", Quoted(name), Quoted(h.Linkname))
		case h.Typeflag != tar.TypeReg || isSparse(h):
			m.problem = fmt.Sprintf("member %s is no plain file, but of type %q", Quoted(name), h.Typeflag)
		case !isExtension(m.ext):
			m.problem = fmt.Sprintf("member %s: a key ends at the first dot of a name, as WebDataset has it, which "+
				"makes this %s of sample %s; "+
				"if the dot belongs to the key, name it without, such as %s", Quoted(name), Quoted(m.ext),
				Quoted(m.key), Quoted(undotted(name)))
		}
		return m, nil
	}
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
// letter or _, so that v1.5.jpg is none, but for the last one, which has a letter, as 3gp.
func isExtension(ext string) bool {
	words := strings.Split(ext, ".")
	for i, word := range words {
		first := true
		letter := false
		for _, r := range word {
			switch {
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
