package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v17/arrow/memory"
	pq "github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/schema"
)

// byteStreamSplit is the number of the encoding BYTE_STREAM_SPLIT.
const byteStreamSplit pq.Encoding = 9

// plainPages turns pages with encodings that the library does not decode into plain ones: BYTE_STREAM_SPLIT, and
// DELTA_BYTE_ARRAY of values of a fixed length.
type plainPages struct {
	file.PageReader
	column *schema.Column
	plain  file.Page // in the place of the page that Next has found, or nil
	err    error
}

// Next goes to the next page.
func (p *plainPages) Next() bool {
	p.plain = nil
	if p.err != nil || !p.PageReader.Next() {
		return false
	}
	page := p.PageReader.Page()
	values := p.decoder(pq.Encoding(page.Encoding()))
	if values == nil {
		return true
	}
	switch page := page.(type) {
	case *file.DataPageV1:
		p.plain, p.err = p.first(page, values)
	case *file.DataPageV2:
		p.plain, p.err = p.second(page, values)
	}
	return p.err == nil
}

// decoder returns what makes plain values of those of a page, nil where the library does.
func (p *plainPages) decoder(e pq.Encoding) func(values []byte) ([]byte, error) {
	switch {
	case e == byteStreamSplit:
		return p.join
	case e == pq.Encodings.DeltaByteArray && p.column.PhysicalType() == pq.Types.FixedLenByteArray:
		return p.undelta
	}
	return nil
}

// Page is the page that Next has found.
func (p *plainPages) Page() file.Page {
	if p.plain != nil {
		return p.plain
	}
	return p.PageReader.Page()
}

// Err says why Next has found none.
func (p *plainPages) Err() error { return errors.Join(p.err, p.PageReader.Err()) }

// first makes a page of version 1, whose levels say how long they are.
func (p *plainPages) first(page *file.DataPageV1, values func([]byte) ([]byte, error)) (file.Page, error) {
	data, levels := page.Data(), 0
	for _, l := range []struct {
		most     int16
		encoding pq.Encoding
	}{{p.column.MaxRepetitionLevel(), page.RepetitionLevelEncoding()},
		{p.column.MaxDefinitionLevel(), page.DefinitionLevelEncoding()}} {
		if l.most == 0 {
			continue
		}
		if l.encoding != pq.Encodings.RLE {
			return nil, fmt.Errorf("levels with the encoding %s beside values with %s", l.encoding,
				pq.Encoding(page.Encoding()))
		}
		if len(data)-levels < 4 {
			return nil, errors.New("a page that is too small for its levels")
		}
		n := int64(binary.LittleEndian.Uint32(data[levels:])) + 4
		if n > int64(len(data)-levels) {
			return nil, errors.New("a page that is too small for its levels")
		}
		levels += int(n)
	}
	joined, err := behind(data[:levels], data[levels:], values)
	if err != nil {
		return nil, err
	}
	return file.NewDataPageV1(joined, page.NumValues(), pq.Encodings.Plain, page.DefinitionLevelEncoding(),
		page.RepetitionLevelEncoding(), page.UncompressedSize()), nil
}

// second makes a page of version 2, whose header says how long the levels are.
func (p *plainPages) second(page *file.DataPageV2, values func([]byte) ([]byte, error)) (file.Page, error) {
	levels := int64(page.RepetitionLevelByteLen()) + int64(page.DefinitionLevelByteLen())
	if levels > int64(len(page.Data())) {
		return nil, errors.New("a page that is too small for its levels")
	}
	joined, err := behind(page.Data()[:levels], page.Data()[levels:], values)
	if err != nil {
		return nil, err
	}
	return file.NewDataPageV2(joined, page.NumValues(), page.NumNulls(), page.NumRows(), pq.Encodings.Plain,
		page.DefinitionLevelByteLen(), page.RepetitionLevelByteLen(), page.UncompressedSize(), false), nil
}

// behind puts values behind levels.
func behind(levels, data []byte, values func([]byte) ([]byte, error)) (*memory.Buffer, error) {
	plain, err := values(data)
	if err != nil {
		return nil, err
	}
	return memory.NewBufferBytes(slices.Concat(levels, plain)), nil
}

// join puts the bytes of each value together: the first bytes of all values stand first, then the second ones.
func (p *plainPages) join(streams []byte) ([]byte, error) {
	width := 0
	switch p.column.PhysicalType() {
	case pq.Types.Int32, pq.Types.Float:
		width = 4
	case pq.Types.Int64, pq.Types.Double:
		width = 8
	case pq.Types.FixedLenByteArray:
		width = p.column.TypeLength()
	}
	if width < 1 || len(streams)%width != 0 {
		return nil, fmt.Errorf("%d bytes with the encoding BYTE_STREAM_SPLIT for values of type %s", len(streams),
			p.column.PhysicalType())
	}
	values, n := make([]byte, len(streams)), len(streams)/width
	for k := range width {
		for i, b := range streams[k*n : (k+1)*n] {
			values[i*width+k] = b
		}
	}
	return values, nil
}
