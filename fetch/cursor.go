package fetch

import (
	"fmt"

	"bowstring/schema"
)

// cursor yields the parts of a stream in order, nil at the end.
type cursor interface {
	next() *part
}

// sizer cuts runs of rows into record batches that are bounded by rows and by
// bytes.
type sizer struct {
	manifest  *schema.Manifest
	columns   []int // ordinals of the blob columns read
	rowBytes  int64 // the metadata of a row, on average
	maxBytes  int64
	blobBytes int64 // of the part so far
	rows      int64
}

func newSizer(j *Job) sizer {
	m := j.Manifest()
	z := sizer{manifest: m, columns: j.projection.BlobColumns(), maxBytes: j.request.BatchBytes}
	if z.maxBytes == 0 {
		z.maxBytes = schema.DefaultBatchBytes
	}
	if rows := m.Rows(); rows > 0 {
		for _, c := range m.Snapshot().Chunks {
			z.rowBytes += c.Size
		}
		z.rowBytes /= rows
	}
	return z
}

// likely is about as many rows as a part has where its step has more.
func (z *sizer) likely() int64 {
	if len(z.columns) == 0 {
		return schema.DefaultMetaBatch
	}
	return 1 << 10
}

func (z *sizer) reset() { z.blobBytes, z.rows = 0, 0 }

// fits reports whether the part may have the sample at pos too, and if so
// counts it in. The first sample always fits.
func (z *sizer) fits(pos int64) bool {
	n := z.rowBytes
	for _, c := range z.columns {
		ref, _ := z.manifest.Blob(c, pos)
		n += ref.Size
	}
	if z.rows > 0 && (z.blobBytes+n > z.maxBytes || z.rows == schema.DefaultMetaBatch) {
		return false
	}
	z.blobBytes += n
	z.rows++
	return true
}

// planCursor walks a rank's share of the steps of a ticket.
type planCursor struct {
	sizer
	job        *Job
	rank       int
	step       int64
	stop       int64
	stride     int64
	lo, at, hi int64 // the rank's share of step in the epoch's order, and how far it is used
}

func newPlanCursor(j *Job, t schema.Ticket) (*planCursor, error) {
	steps := j.plan.Steps()
	if t.Rank < 0 || int64(t.Rank) >= j.request.WorldSize() {
		return nil, &schema.FieldError{Field: "rank", Got: fmt.Sprint(t.Rank), Want: fmt.Sprintf("0 to %d, as world.size is %d", j.request.WorldSize()-1, j.request.WorldSize())}
	}
	if t.Step < 0 || t.Step > steps && max(t.Stride, 1) == 1 {
		return nil, &schema.FieldError{Field: "step", Got: fmt.Sprint(t.Step), Want: fmt.Sprintf("0 to %d, as the epoch has %d steps", steps, steps)}
	}
	c := &planCursor{
		sizer: newSizer(j), job: j, rank: t.Rank,
		step: t.Step, stop: steps, stride: max(t.Stride, 1),
	}
	if t.Stop != nil {
		c.stop = min(c.stop, *t.Stop)
	}
	if c.step < c.stop {
		c.lo, c.hi = j.plan.Share(c.step, c.rank)
	}
	if t.Row < 0 || t.Row > c.hi-c.lo {
		return nil, &schema.FieldError{Field: "row", Got: fmt.Sprint(t.Row), Want: fmt.Sprintf("0 to %d, the rows of rank %d in step %d", c.hi-c.lo, t.Rank, t.Step)}
	}
	c.at = c.lo + t.Row
	return c, nil
}

func (c *planCursor) next() *part {
	// A share may be empty, in the last step or where ranks outnumber rows.
	for c.at == c.hi {
		if c.step >= c.stop-c.stride {
			return nil
		}
		c.step += c.stride
		c.lo, c.hi = c.job.plan.Share(c.step, c.rank)
		c.at = c.lo
	}
	p := &part{step: c.step, row: c.at - c.lo}
	c.reset()
	p.positions = make([]int64, 0, min(c.hi-c.at, c.likely()))
	for ; c.at < c.hi; c.at++ {
		pos := c.job.plan.Position(c.at)
		if !c.fits(pos) {
			break
		}
		p.positions = append(p.positions, pos)
	}
	p.last = c.at == c.hi
	return p
}

// listCursor walks a list of positions.
type listCursor struct {
	sizer
	positions []int64
	at        int
}

func (c *listCursor) next() *part {
	if c.at == len(c.positions) {
		return nil
	}
	p := &part{row: int64(c.at)}
	c.reset()
	for c.at < len(c.positions) && c.fits(c.positions[c.at]) {
		c.at++
	}
	p.positions = c.positions[p.row:c.at:c.at]
	p.last = c.at == len(c.positions)
	return p
}
