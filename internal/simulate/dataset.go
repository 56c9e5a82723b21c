package simulate

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// zeros is what every blob is read as: as many zeros. It is not written to.
var zeros = sync.OnceValue(func() []byte { return make([]byte, maxBytes) })

// content is a blob of n bytes.
func content(n int64) []byte { return zeros()[:n:n] }

// made is a dataset that was made up: its record, and the pages of its manifest by key.
type made struct {
	snap  *schema.Snapshot
	pages map[schema.Key][]byte
	bytes int64
}

// sizeClasses is how many sizes blobs have at most. Their checksums are computed once.
const sizeClasses = 256

// makeDataset makes up a dataset.
func makeDataset(d Dataset, seed uint64) (*made, error) {
	sch, err := schema.NewSchema(nil, []arrow.Field{schema.BlobField("data", "", false)})
	if err != nil {
		return nil, err
	}
	name := sha256.Sum256(fmt.Appendf(nil, "%d %s", seed, d.Name))
	rng := rand.New(rand.NewPCG(binary.LittleEndian.Uint64(name[:]), seed))
	sizes, sums := sizesOf(d), [sizeClasses]schema.Sum{}
	for i, n := range sizes {
		sums[i] = schema.Checksum(content(n))
	}
	m := &made{pages: map[schema.Key][]byte{}, snap: &schema.Snapshot{
		Dataset: d.Name, Number: 1, Created: time.Unix(0, 0), Source: "simulate", Schema: sch,
		Splits: []schema.Split{{Name: "train", Ranges: []schema.Range{{End: d.Samples}}}},
	}}
	b := schema.NewChunkBuilder(memory.DefaultAllocator, sch)
	defer b.Release()
	var list schema.PageList
	keep := func(data []byte) schema.BlobRef {
		ref := schema.RefOf(data)
		m.pages[ref.Key] = data
		return ref
	}
	finish := func() {
		data, chunk := list.Finish()
		if data != nil {
			chunk.BlobRef = keep(data)
		}
		m.snap.Chunks = append(m.snap.Chunks, chunk)
	}
	for at := int64(0); at < d.Samples; {
		n := min(schema.PageRows, d.Samples-at)
		ids, refs := make([]schema.ID, n), make([]*schema.BlobRef, n)
		for i := range n {
			binary.BigEndian.PutUint64(ids[i][8:], uint64(at+i))
			class := rng.IntN(sizeClasses)
			ref := &schema.BlobRef{Size: sizes[class], Sum: sums[class]}
			for k := 0; k < len(ref.Key); k += 8 {
				binary.LittleEndian.PutUint64(ref.Key[k:], rng.Uint64())
			}
			// All blobs of a size have the same bytes, so that their keys are no hashes.
			ref.Key = schema.AddressKey([12]byte(ref.Key[:12]), ref.Sum, schema.ID(ref.Key[16:]))
			refs[i] = ref
			m.bytes += ref.Size
		}
		if err := b.AppendBatch(ids, nil, [][]*schema.BlobRef{refs}); err != nil {
			return nil, err
		}
		data, page, err := b.Finish()
		if err != nil {
			return nil, err
		}
		page.BlobRef = keep(data)
		list.Add(page)
		if at += n; list.Len() == schema.ChunkPages || at == d.Samples {
			finish()
		}
	}
	return m, nil
}

// sizesOf are the sizes that blobs have, each as often: the middles of as many equal parts of a lognormal distribution.
func sizesOf(d Dataset) (sizes [sizeClasses]int64) {
	sigma := math.Sqrt(math.Log(1 + d.Spread*d.Spread))
	var sum float64
	var at [sizeClasses]float64
	for i := range at {
		at[i] = math.Exp(sigma * math.Sqrt2 * math.Erfinv(2*(float64(i)+0.5)/sizeClasses-1))
		sum += at[i]
	}
	for i := range sizes {
		sizes[i] = min(max(int64(math.Round(at[i]*sizeClasses/sum*float64(d.Bytes))), 1), maxBytes)
	}
	return sizes
}
