package prefetch

import (
	"bowstring/fetch/resolve"
	"bowstring/schema"
)

// sizer cuts runs of rows into record batches that are bounded by rows and by
// bytes.
type sizer struct {
	rowBytes   int64 // the metadata of a row, on average
	batchBytes int64 // what the request allows a batch
	maxBytes   int64 // what it may have now
	bytes      int64 // of the batch so far
	rows       int64
}

// newSizer returns the sizer of a job's batches.
func newSizer(j *resolve.Job) sizer {
	m := j.Manifest()
	z := sizer{batchBytes: j.Request().BatchBytes}
	if z.batchBytes == 0 {
		z.batchBytes = schema.DefaultBatchBytes
	}
	z.maxBytes = z.batchBytes
	if rows := m.Rows(); rows > 0 {
		for _, c := range m.Snapshot().Chunks {
			z.rowBytes += c.ManifestBytes()
		}
		z.rowBytes /= rows
	}
	z.rowBytes += j.ComputedBytes()
	return z
}

func (z *sizer) reset() { z.bytes, z.rows = 0, 0 }

// fits reports whether the batch may have a row with that many bytes of blobs
// too, and if so counts it in. The first row always fits.
func (z *sizer) fits(blobs int64) bool {
	n := z.rowBytes + blobs
	if z.rows > 0 && (z.bytes+n > z.maxBytes || z.rows == schema.DefaultMetaBatch) {
		return false
	}
	z.bytes += n
	z.rows++
	return true
}
