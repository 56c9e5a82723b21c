package backup

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/google/renameio/v2"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// lineBytes is the length of a line of an index: key, offset of the bytes in the tar,
// size, checksum, each of a fixed width, with a space between and a line feed at the end.
const lineBytes = 64 + 1 + 15 + 1 + 13 + 1 + 16 + 1

// entry is a line of an index.
type entry struct {
	schema.BlobRef
	offset int64
}

func (e entry) append(b []byte) []byte {
	return fmt.Appendf(b, "%s %015d %013d %s\n", e.Key, e.offset, e.Size, e.Sum)
}

// parseLine reads a line.
func parseLine(line []byte) (e entry, err error) {
	if len(line) != lineBytes || line[64] != ' ' || line[80] != ' ' || line[94] != ' ' || line[111] != '\n' {
		return e, errors.New("not a key, an offset, a size and a checksum")
	}
	if _, err := hex.Decode(e.Key[:], line[:64]); err != nil {
		return e, err
	}
	offset, err := strconv.ParseUint(string(line[65:80]), 10, 63)
	if err != nil {
		return e, err
	}
	size, err := strconv.ParseUint(string(line[81:94]), 10, 63)
	if err != nil {
		return e, err
	}
	sum, err := strconv.ParseUint(string(line[95:111]), 16, 64)
	if err != nil {
		return e, err
	}
	e.offset, e.Size, e.Sum = int64(offset), int64(size), schema.Sum(sum)
	return e, nil
}

// index is the open index of a pack: lines in the order of their keys.
type index struct {
	path  string
	file  *os.File
	lines int64
}

func openIndex(path string) (*index, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.Size()%lineBytes != 0 {
		err = fmt.Errorf("%w: %s has %d bytes, no multiple of %d", schema.ErrDataLoss, path, st.Size(), lineBytes)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &index{path, f, st.Size() / lineBytes}, nil
}

// find looks a key up. Keys are hashes, evenly spread: where one is can be guessed from the two ends, and a
// few guesses lead there. A guess that shrinks little is followed by a halving, so that keys that
// are not spread cost no more than a binary search twice over.
func (x *index) find(key schema.Key) (entry, bool, error) {
	want := binary.BigEndian.Uint64(key[:])
	lo, hi := int64(0), x.lines // the line is in [lo, hi)
	from, to := uint64(0), ^uint64(0)
	var buf [lineBytes]byte
	for turn := 0; lo < hi; turn++ {
		mid := lo + (hi-lo)/2
		if turn%2 == 0 && to > from {
			over, under := bits.Mul64(uint64(hi-lo), min(max(want, from), to)-from)
			guess, _ := bits.Div64(over, under, to-from)
			mid = lo + min(int64(guess), hi-lo-1)
		}
		if _, err := x.file.ReadAt(buf[:], mid*lineBytes); err != nil {
			return entry{}, false, fmt.Errorf("read %s: %w", x.path, err)
		}
		e, err := parseLine(buf[:])
		if err != nil {
			return entry{}, false, fmt.Errorf("%w: %s, line %d: %w", schema.ErrDataLoss, x.path, mid+1, err)
		}
		switch c := bytes.Compare(e.Key[:], key[:]); {
		case c == 0:
			return e, true, nil
		case c < 0:
			lo, from = mid+1, binary.BigEndian.Uint64(e.Key[:])
		default:
			hi, to = mid, binary.BigEndian.Uint64(e.Key[:])
		}
	}
	return entry{}, false, nil
}

// writeIndex writes the index of a pack, durably and at once.
func writeIndex(path string, entries []entry) error {
	slices.SortFunc(entries, func(a, b entry) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	text := make([]byte, 0, len(entries)*lineBytes)
	for _, e := range entries {
		text = e.append(text)
	}
	if err := renameio.WriteFile(path, text, fileMode); err != nil {
		return err
	}
	return segment.SyncDir(filepath.Dir(path))
}

// pack is a pack that can be read.
type pack struct {
	name  string
	index *index
	tar   *os.File
}

func openPack(dir, name string) (*pack, error) {
	x, err := openIndex(filepath.Join(dir, name+indexSuffix))
	if err != nil {
		return nil, err
	}
	tar, err := os.Open(filepath.Join(dir, name+tarSuffix))
	if err != nil {
		return nil, errors.Join(err, x.file.Close())
	}
	return &pack{name, x, tar}, nil
}

func (p *pack) close() error { return errors.Join(p.index.file.Close(), p.tar.Close()) }

// read reads the bytes of an entry.
func (p *pack) read(e entry) ([]byte, error) {
	st, err := p.tar.Stat()
	if err != nil {
		return nil, err
	}
	if e.offset > st.Size() || e.Size > st.Size()-e.offset { // before so much is allocated
		return nil, fmt.Errorf("%w: %s has %d bytes, and blob %s of %d bytes at %d",
			schema.ErrDataLoss, p.tar.Name(), st.Size(), e.Key, e.Size, e.offset)
	}
	data := make([]byte, e.Size)
	if _, err := p.tar.ReadAt(data, e.offset); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read blob %s from %s: %w", e.Key, p.tar.Name(), err)
	}
	return data, nil
}
