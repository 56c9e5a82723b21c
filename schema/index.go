package schema

import (
	"encoding/binary"
	"fmt"
	"slices"
)

const (
	// PageRows is how many rows a manifest page has, except the last of an import. Other
	// numbers can be read as well. A shuffled stream reads a page for each of its rows,
	// so a page is about as large as a small blob.
	PageRows = 1024
	// ChunkPages is how many pages a chunk has.
	ChunkPages = 64
	// ChunkRows is how many rows a chunk has, except the last of an import.
	ChunkRows = PageRows * ChunkPages

	indexMagic  = "BOWINDX1"
	indexHeader = len(indexMagic) + 8
	indexEntry  = len(Key{}) + 24 // plus 8 for each blob column, plus the statistics
)

// ManifestBytes is the total size of the chunk's pages.
func (c *Chunk) ManifestBytes() int64 {
	if c.Pages == 0 {
		return c.Size
	}
	return c.PageBytes
}

// PageList collects the pages of a chunk that is being written.
type PageList struct{ pages []Chunk }

// Add appends a page that was stored.
func (l *PageList) Add(page Chunk) { l.pages = append(l.pages, page) }

// Len is the number of pages.
func (l *PageList) Len() int { return len(l.pages) }

// Finish returns the chunk of the pages, and begins a new one. data is its index; the
// caller stores it and sets the BlobRef of the chunk. data is nil if there is one page,
// which then is the chunk itself.
func (l *PageList) Finish() (data []byte, c Chunk) {
	pages := l.pages
	l.pages = nil
	if len(pages) == 1 {
		pages[0].Statistics = nil // they are stored in the index only
		return nil, pages[0]
	}
	c = Chunk{Pages: len(pages), BlobBytes: make([]int64, len(pages[0].BlobBytes))}
	statistics := len(pages[0].Statistics)
	for _, p := range pages {
		if len(p.Statistics) != statistics { // some have none, so the index cannot have them
			statistics = 0 // not all have some
		}
	}
	stride := indexEntry + 8*len(c.BlobBytes) + statistics
	data = append(make([]byte, 0, indexHeader+stride*len(pages)), indexMagic...)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(pages)))
	data = binary.LittleEndian.AppendUint32(data, uint32(stride))
	for _, p := range pages {
		data = append(data, p.Key[:]...)
		for _, n := range append([]int64{p.Size, int64(p.Sum), p.Rows}, p.BlobBytes...) {
			data = binary.LittleEndian.AppendUint64(data, uint64(n))
		}
		data = append(data, p.Statistics[:statistics]...)
		c.Rows += p.Rows
		c.PageBytes += p.Size
		for i, n := range p.BlobBytes {
			c.BlobBytes[i] += n
		}
	}
	return data, c
}

// OpenIndex parses the pages of a chunk, in order, from the bytes that it names. It keeps
// nothing of data. Bytes that contradict the chunk are an ErrDataLoss.
func (c *Chunk) OpenIndex(data []byte) (pages []Chunk, err error) {
	if err := c.Check(data); err != nil {
		return nil, err
	}
	err = Guard(func() error {
		pages, err = c.openIndex(data)
		return err
	})
	return pages, err
}

// openIndex parses an index whose checksum is right. It checks sums and bounds all the
// same, since a wrong writer may have stored it.
func (c *Chunk) openIndex(data []byte) ([]Chunk, error) {
	broken := func(format string, args ...any) error {
		return fmt.Errorf("%w: index of a manifest chunk: "+format, slices.Concat([]any{ErrDataLoss}, args)...)
	}
	if len(data) < indexHeader || string(data[:len(indexMagic)]) != indexMagic {
		return nil, broken("it does not begin with %q", indexMagic)
	}
	n, stride := int(binary.LittleEndian.Uint32(data[len(indexMagic):])),
		int(binary.LittleEndian.Uint32(data[len(indexMagic)+4:]))
	columns := len(c.BlobBytes)
	// Later versions may have longer entries.
	if n != c.Pages || stride < indexEntry+8*columns || uint64(len(data)-indexHeader) != uint64(n)*uint64(stride) {
		return nil, broken("%d pages of %d bytes each in %d bytes, the snapshot says %d pages", n, stride, len(data),
			c.Pages)
	}
	pages, sums := make([]Chunk, n), make([]int64, n*columns)
	more := stride - indexEntry - 8*columns
	statistics := make([]byte, 0, n*more)
	var rows, size int64
	blobs := make([]int64, columns)
	for i := range pages {
		entry := data[indexHeader+i*stride:]
		p := &pages[i]
		next := func() int64 {
			v := int64(binary.LittleEndian.Uint64(entry))
			entry = entry[8:]
			return v
		}
		copy(p.Key[:], entry)
		entry = entry[len(p.Key):]
		p.Size, p.Sum, p.Rows = next(), Sum(next()), next()
		p.BlobBytes = sums[i*columns : (i+1)*columns : (i+1)*columns]
		for b := range p.BlobBytes {
			p.BlobBytes[b] = next()
			blobs[b] += p.BlobBytes[b]
		}
		if more > 0 {
			statistics = append(statistics, entry[:more]...)
			p.Statistics = statistics[i*more : (i+1)*more : (i+1)*more]
		}
		if p.Rows <= 0 || p.Size < 0 || p.Rows > c.Rows-rows || p.Size > c.PageBytes-size {
			return nil, broken("page %d has %d rows and %d bytes", i, p.Rows, p.Size)
		}
		rows, size = rows+p.Rows, size+p.Size
	}
	if rows != c.Rows || size != c.PageBytes || !slices.Equal(blobs, c.BlobBytes) {
		return nil, broken("pages of %d rows, %d bytes and blobs of %d bytes, the snapshot says %d, %d and %d", rows,
			size, blobs, c.Rows, c.PageBytes, c.BlobBytes)
	}
	return pages, nil
}

// EachPage visits the pages of a chunk of a snapshot, one after the other. page describes
// the page, start is its first row in the chunk, and rows is open until visit returns. A
// chunk without an index is its own page. get reads a blob.
func EachPage(snap *Snapshot, c Chunk, get func(BlobRef) (Blob, error),
	visit func(page Chunk, start int64, rows *Manifest) error) error {
	pages := []Chunk{c}
	if c.Pages > 0 {
		index, err := get(c.BlobRef)
		if err != nil {
			return err
		}
		pages, err = c.OpenIndex(index.Bytes())
		index.Release()
		if err != nil {
			return err
		}
	}
	var start int64
	for _, page := range pages {
		blob, err := get(page.BlobRef)
		if err != nil {
			return err
		}
		if err := VisitPage(snap, page, blob, func(m *Manifest) error { return visit(page, start, m) }); err != nil {
			return err
		}
		start += page.Rows
	}
	return nil
}

// VisitPage opens a page of a snapshot until visit returns. It owns the blob from now on,
// also if it fails.
func VisitPage(snap *Snapshot, page Chunk, blob Blob, visit func(rows *Manifest) error) error {
	// One page at a time: a manifest of the whole chunk would pin all of it.
	part := &Snapshot{Dataset: snap.Dataset, Number: snap.Number, Schema: snap.Schema, Chunks: []Chunk{page}}
	m, err := OpenManifest(part, []Blob{blob})
	if err != nil {
		return err
	}
	defer m.Close()
	return Guard(func() error { return visit(m) })
}
