package source

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/snappy"
)

type mdsShard struct {
	Format      string   `json:"format"`
	Version     int      `json:"version"`
	Names       []string `json:"column_names"`
	Encodings   []string `json:"column_encodings"`
	Sizes       []*int64 `json:"column_sizes"`
	Compression string   `json:"compression"`
	Samples     int64    `json:"samples"`
	Raw         mdsFile  `json:"raw_data"`
	Zip         *mdsFile `json:"zip_data"`
}

type mdsFile struct {
	Basename string `json:"basename"`
	Bytes    int64  `json:"bytes"`
}

// mdsColumn says how a column is read: decode makes a metadata value; without
// it the bytes are a blob.
type mdsColumn struct {
	name, encoding string
	size           int64 // fixed, or -1
	decode         func([]byte) (any, error)
	survey         mdsSurvey // where all values tell what the column becomes
	images         int       // of a sample, in a list of them
	left           bool      // out: it is not read
}

// Bounds of what an index and a shard may claim. A shard that the library writes has 64 MB.
const (
	maxIndex        = 256 << 20
	maxShardSamples = 1 << 24
	snappyRatio     = 64 // a copy of 64 bytes takes 2 at least
)

// openShard opens a shard for reading front to back, compressed or not.
func openShard(p mdsPart, sh mdsShard) (r io.Reader, close func() error, err error) {
	name, compressed := sh.Raw, false
	if _, err := os.Stat(filepath.Join(p.dir, name.Basename)); err != nil && sh.Zip != nil {
		name, compressed = *sh.Zip, true
	}
	f, err := openFile(filepath.Join(p.dir, name.Basename))
	if err != nil {
		return nil, nil, errors.New(reason(err))
	}
	if info, err := f.Stat(); err != nil || info.Size() != name.Bytes {
		if err == nil {
			err = fmt.Errorf("%s has %d bytes, the index says %d", Quoted(name.Basename), info.Size(), name.Bytes)
			if info.Size() < name.Bytes {
				err = fmt.Errorf("%w: %w", errCut, err)
			}
		}
		return nil, nil, errors.Join(err, f.Close())
	}
	in := bufio.NewReaderSize(f, 32<<10)
	if !compressed {
		return in, f.Close, nil
	}
	if algorithm, _, _ := strings.Cut(sh.Compression, ":"); algorithm == "snappy" { // one block, which has to be in memory
		if name.Bytes > maxBlob || sh.Raw.Bytes > maxBlob {
			return nil, nil, errors.Join(fmt.Errorf("a snappy shard of %d bytes is too large, more than %d",
				sh.Raw.Bytes, int64(maxBlob)), f.Close())
		}
		block, err := io.ReadAll(in)
		if err == nil {
			var n int
			if n, err = snappy.DecodedLen(block); err == nil && int64(n) != sh.Raw.Bytes {
				err = fmt.Errorf("it holds %d bytes, the index says %d", n, sh.Raw.Bytes)
			} else if err == nil && n > snappyRatio*len(block) {
				err = fmt.Errorf("%d bytes cannot hold the %d that they claim", len(block), n)
			}
		}
		if err == nil {
			block, err = snappy.Decode(nil, block)
		}
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("snappy: %w", err), f.Close())
		}
		return bytes.NewReader(block), f.Close, nil
	}
	z, stop, err := decompress(in, sh.Compression)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return z, func() error { stop(); return f.Close() }, nil
}

// readShard hands each sample of a shard to visit: its number there, a buffer that then is visit's,
// and the columns in it; or what is wrong with it. It returns what is wrong with the shard.
func (s *mds) readShard(ctx context.Context, p mdsPart, sh mdsShard, visit func(i int64, buf []byte, columns [][]byte,
	err error) bool) error {
	r, shut, err := openShard(p, sh)
	if err != nil {
		return err
	}
	defer func() { _ = shut() }()
	var count [4]byte
	if _, err := io.ReadFull(r, count[:]); err != nil {
		return fmt.Errorf("%w: %w", errCut, err)
	}
	if n := int64(binary.LittleEndian.Uint32(count[:])); n != sh.Samples {
		return fmt.Errorf("it holds %d samples, the index says %d", n, sh.Samples)
	}
	table, err := readBuffer(r, 4*(sh.Samples+1))
	if err != nil {
		return fmt.Errorf("%w: %w", errCut, err)
	}
	defer buffers.put(table)
	offset := func(i int64) int64 { return int64(binary.LittleEndian.Uint32(table[4*i:])) }
	at := 4 + int64(len(table))
	for i := range sh.Samples {
		begin, end := offset(i), offset(i+1)
		if begin < at || end < begin || end-begin > maxBlob {
			return fmt.Errorf("sample %d lies at bytes %d to %d, the one before ends at %d", i, begin, end, at)
		}
		if i > 0 && begin != at {
			return fmt.Errorf("sample %d begins at byte %d, the one before ends at %d", i, begin, at)
		}
		if _, err := io.CopyN(io.Discard, r, begin-at); err != nil {
			return fmt.Errorf("%w at sample %d of %d: %w", errCut, i, sh.Samples, err)
		}
		buf, err := readBuffer(r, end-begin)
		if err != nil {
			return fmt.Errorf("%w at sample %d of %d: %w", errCut, i, sh.Samples, err)
		}
		at = end
		columns, err := s.cut(buf)
		if !visit(i, buf, columns, err) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	// A compressed shard tells only at its end whether it is whole.
	switch n, err := io.CopyN(io.Discard, r, 1); {
	case n > 0:
		return fmt.Errorf("%w: bytes follow the last of %d samples, which ends at byte %d", errJunk, sh.Samples, at)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("behind the last of %d samples: %w", sh.Samples, err)
	}
	return nil
}

// cut divides a sample into its columns.
func (s *mds) cut(buf []byte) ([][]byte, error) {
	sizes := make([]int64, len(s.columns))
	rest := buf
	for i, c := range s.columns {
		if c.size > 0 { // the library takes 0 for not fixed, too
			sizes[i] = c.size
			continue
		}
		if len(rest) < 4 {
			return nil, fmt.Errorf("%w: %d bytes do not hold the sizes of its columns", errCut, len(buf))
		}
		sizes[i] = int64(binary.LittleEndian.Uint32(rest))
		rest = rest[4:]
	}
	columns := make([][]byte, len(s.columns))
	for i, n := range sizes {
		if s.columns[i].decode != nil && n > maxText {
			return nil, fmt.Errorf("column %s has %d bytes, more than the %d that metadata may have",
				Quoted(s.columns[i].name), n, maxText)
		}
		if n > int64(len(rest)) {
			return nil, fmt.Errorf("column %s has %d bytes and only %d are left", Quoted(s.columns[i].name), n,
				len(rest))
		}
		columns[i] = rest[:n:n]
		rest = rest[n:]
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%d bytes lie behind its columns", len(rest))
	}
	return columns, nil
}
