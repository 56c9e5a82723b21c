package prefetch

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"bowstring/fetch/resolve"
	"bowstring/schema"
)

// digester computes the digest of a share of a step: its samples, their order, and their
// checksums. The digest is computed from the manifest and the faults, and reads no blob.
// It is a sum of a hash of each row, so it does not depend on how the share is cut into
// batches. All blob columns of the snapshot count, whichever are served, so ranks that
// read different columns have the same digest.
//
// A digester belongs to the consumer's goroutine.
type digester struct {
	columns []int // ordinals of the blob columns that the caller may see
	name    string
	on      bool   // the request wants digests
	whole   bool   // sum has all rows of the share that were delivered
	sum     uint64 // the sum of the rows' hashes
	buf     []byte // reused for each row
}

// init turns digests on for a stream of the ticket. If the ticket resumes in the middle
// of a share and has no sum, that share gets no digest.
func (d *digester) init(j *resolve.Job, t *schema.Ticket) {
	d.on, d.name, d.whole = true, j.SnapshotName(), t.Row == 0
	for ordinal, f := range schema.BlobFields(j.Manifest().Snapshot().Schema) {
		if !j.Hides(f.Name) {
			d.columns = append(d.columns, ordinal)
		}
	}
	if sum, ok := t.DigestedSum(); ok {
		d.sum, d.whole = sum, true
	}
}

// digest adds a mended part. If the part ends the share, it returns the share's digest;
// else it puts the sum so far into the part's resume ticket.
func (s *Stream) digest(p *part) (string, error) {
	d := &s.digester
	if !d.on {
		return "", nil
	}
	first := p.walk.row()
	if p.packing != nil { // of samples
		first = p.walk.plan.First(p.walk.at) - p.walk.plan.First(p.walk.lo)
	}
	if first == 0 {
		d.sum, d.whole = 0, true
	}
	d.buf = binary.LittleEndian.AppendUint64(append(d.buf[:0], d.name...), s.epochOf(p.walk.epochOffset))
	seed := xxh3.Hash(binary.LittleEndian.AppendUint64(d.buf, uint64(p.walk.step)))
	err := schema.Guard(func() error {
		for i := range p.positions {
			if err := d.add(p, i, first+int64(i), seed); err != nil {
				return err
			}
		}
		return nil
	})
	for _, f := range p.faults {
		d.buf = binary.LittleEndian.AppendUint64(d.buf[:0], uint64(first)+uint64(f.row))
		d.sum += xxh3.HashSeed(append(d.buf, f.column...), ^seed)
	}
	switch {
	case err != nil || !d.whole:
		return "", err
	case p.last:
		return schema.DigestOf(d.sum), nil
	}
	p.resume.Digested = schema.DigestOf(d.sum)
	return "", nil
}

// add adds sample i of a part, which is the row-th of the share.
func (d *digester) add(p *part, i int, row int64, seed uint64) error {
	d.buf = binary.LittleEndian.AppendUint64(d.buf[:0], uint64(row))
	d.buf = binary.LittleEndian.AppendUint64(d.buf, uint64(p.positions[i]))
	for _, column := range d.columns {
		ref, ok, err := p.rows[i].TryBlob(column)
		if err != nil {
			return err
		}
		if !ok {
			ref.Size = -1
		}
		d.buf = binary.LittleEndian.AppendUint64(d.buf, uint64(ref.Size))
		d.buf = binary.LittleEndian.AppendUint64(d.buf, uint64(ref.Sum))
	}
	d.sum += xxh3.HashSeed(d.buf, seed)
	return nil
}
