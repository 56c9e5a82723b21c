package fetch_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// madeUp is a store of one snapshot whose manifest is made up as it is read. Pages differ in
// the ids and keys of their rows; every blob is the same. A read takes the round trip.
type madeUp struct {
	store.Store
	snap *schema.Snapshot
	page []byte // of the first rows
	info schema.Chunk
	list [][]byte // of each chunk's pages
	ids  int      // offsets of the ids, the keys, and the days in a page
	keys int
	days int
	blob []byte
	rtt  time.Duration
}

// Kinds of blobs, in the first byte of their made-up keys.
const (
	madeIndex = iota + 1
	madePage
	madeBlob
)

func madeKey(kind byte, n int64) (k schema.Key) {
	k[0] = kind
	binary.BigEndian.PutUint64(k[24:], uint64(n))
	return k
}

func newMadeUp(tb testing.TB, rows int64, rtt time.Duration) *madeUp {
	s := must(schema.NewSchema([]arrow.Field{{Name: "label", Type: arrow.PrimitiveTypes.Int64},
		{Name: "day", Type: arrow.PrimitiveTypes.Uint64}}, []arrow.Field{schema.BlobField("image", "image", false)}))
	m := &madeUp{Store: newStore(tb).Store, blob: bytes.Repeat([]byte("made up "), 128), rtt: rtt, snap: &schema.Snapshot{Dataset: "d", Number: 1,
		Schema: s}}
	b := schema.NewChunkBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	labels := array.NewInt64Builder(memory.DefaultAllocator)
	defer labels.Release()
	days := array.NewUint64Builder(memory.DefaultAllocator)
	defer days.Release()
	ids, refs := make([]schema.ID, schema.PageRows), make([]*schema.BlobRef, schema.PageRows)
	ref := schema.RefOf(m.blob)
	for i := range ids {
		labels.Append(int64(i % 1000))
		days.Append(madeDay)
		ids[i][0], refs[i] = 0xd1, &schema.BlobRef{Key: madeKey(madeBlob, int64(i)), Size: ref.Size, Sum: ref.Sum}
	}
	col := labels.NewArray()
	defer col.Release()
	day := days.NewArray()
	defer day.Release()
	rec := array.NewRecord(arrow.NewSchema(schema.MetaFields(s), nil), []arrow.Array{col, day}, schema.PageRows)
	defer rec.Release()
	if err := b.AppendBatch(ids, rec, [][]*schema.BlobRef{refs}); err != nil {
		tb.Fatal(err)
	}
	var err error
	if m.page, m.info, err = b.Finish(); err != nil {
		tb.Fatal(err)
	}
	first, second := madeKey(madeBlob, 0), madeKey(madeBlob, 1)
	m.ids, m.keys = bytes.Index(m.page, bytes.Repeat(append([]byte{0xd1}, make([]byte, 15)...), 3)),
		bytes.Index(m.page, append(first[:], second[:]...))
	m.days = bytes.Index(m.page, binary.LittleEndian.AppendUint64(nil, madeDay))
	chunks := make([]schema.Chunk, rows/schema.ChunkRows)
	m.list = make([][]byte, len(chunks))
	var g errgroup.Group
	g.SetLimit(2)
	for c := range chunks {
		g.Go(func() error {
			data, chunk := m.index(int64(c))
			chunk.BlobRef = schema.BlobRef{Key: madeKey(madeIndex, int64(c)), Size: int64(len(data)),
				Sum: schema.Checksum(data)}
			chunks[c], m.list[c] = chunk, data
			return nil
		})
	}
	_ = g.Wait() // none fails
	m.snap.Chunks = chunks
	return m
}

// madeDay stands where the day is put.
const madeDay = 0xd1d2d3d4d5d6d7d8

// dayOf is the day of all rows of a page.
func dayOf(page int64) uint64 { return uint64(page / 4) }

// rows makes up a page.
func (m *madeUp) rows(n int64) []byte {
	b := bytes.Clone(m.page)
	for i := range schema.PageRows {
		pos := uint64(n*schema.PageRows + int64(i))
		binary.BigEndian.PutUint64(b[m.ids+16*i+8:], pos)
		binary.BigEndian.PutUint64(b[m.keys+32*i+24:], pos)
		binary.LittleEndian.PutUint64(b[m.days+8*i:], dayOf(n))
	}
	return b
}

// index makes up the list of a chunk's pages.
func (m *madeUp) index(c int64) ([]byte, schema.Chunk) {
	var list schema.PageList
	for p := c * schema.ChunkPages; p < (c+1)*schema.ChunkPages; p++ {
		page := m.info
		b := m.rows(p)
		marker := binary.LittleEndian.AppendUint64(nil, madeDay)
		page.Statistics = bytes.ReplaceAll(page.Statistics, marker, binary.LittleEndian.AppendUint64(nil, dayOf(p)))
		page.BlobRef = schema.BlobRef{Key: madeKey(madePage, p), Size: int64(len(b)), Sum: schema.Checksum(b)}
		list.Add(page)
	}
	return list.Finish()
}

func (*madeUp) Traits() store.Traits { return store.Traits{Replicas: 1} }

func (m *madeUp) Snapshot(ctx context.Context, _ string, _ int64) (*schema.Snapshot, error) {
	return m.snap, pause(ctx, m.rtt)
}

func (m *madeUp) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if err := pause(ctx, m.rtt); err != nil {
		return schema.Blob{}, err
	}
	n := int64(binary.BigEndian.Uint64(ref.Key[24:]))
	switch ref.Key[0] {
	case madeIndex:
		return schema.NewBlob(m.list[n], nil), nil
	case madePage:
		return schema.NewBlob(m.rows(n), nil), nil
	}
	return schema.NewBlob(m.blob, nil), nil
}

// residentMB is the most memory that the process has had since it was last asked to forget.
func residentMB(b *testing.B) float64 {
	for line := range strings.Lines(string(must(os.ReadFile("/proc/self/status")))) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			return must(strconv.ParseFloat(strings.Fields(rest)[0], 64)) / 1024
		}
	}
	b.Fatal("no VmHWM in /proc/self/status")
	return 0
}

// BenchmarkManifest opens snapshots of very many rows over 20 ms, shuffles, and filters them. The rows
// are made up by the same process, whose memory is what counts. BOWSTRING_BENCH_ROWS has it try
// others than 10^8 and 10^9.
func BenchmarkManifest(b *testing.B) {
	sizes := []int64{1e8, 1e9}
	if text := os.Getenv("BOWSTRING_BENCH_ROWS"); text != "" {
		sizes = []int64{must(strconv.ParseInt(text, 10, 64))}
	}
	for _, rows := range sizes {
		b.Run(fmt.Sprintf("%.0e", float64(rows)), func(b *testing.B) {
			madeUp := rows
			if testing.Short() {
				madeUp /= 1000
			}
			m := newMadeUp(b, madeUp, 20*time.Millisecond)
			for b.Loop() {
				if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
					b.Fatal(err)
				}
				e := must(fetch.NewEngine(m, fetch.Options{Logger: quiet}))
				metric := func(name string, v float64) {
					b.ReportMetric(v, fmt.Sprintf("%s_%.0e", name, float64(rows)))
				}
				begun := time.Now()
				j := must(e.Open(b.Context(), schema.Request{Dataset: "d", Batch: 256,
					Shuffle: &schema.Shuffle{Seed: 1}}))
				metric("open_s", time.Since(begun).Seconds())
				begun = time.Now()
				s := must(e.Stream(b.Context(), j, schema.Ticket{Request: j.Request()}))
				for n := range 100 {
					batch := must(s.Next())
					batch.Release()
					if n == 0 {
						metric("first_batch_ms", float64(time.Since(begun).Milliseconds()))
					}
				}
				metric("rows_per_s", 25_600/time.Since(begun).Seconds())
				s.Close()
				j.Close()
				if rows <= 1e8 {
					begun = time.Now()
					j := must(e.Open(b.Context(), schema.Request{Dataset: "d", Where: "label < 100"}))
					metric("where_s", time.Since(begun).Seconds())
					j.Close()
					begun = time.Now()
					j = must(e.Open(b.Context(), schema.Request{Dataset: "d",
						Where: "day in 12000..12048 and label < 100"}))
					metric("where_sparse_s", time.Since(begun).Seconds())
					j.Close()
				}
				metric("rss_mb", residentMB(b))
				if err := e.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
