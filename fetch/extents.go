package fetch

import (
	"context"
)

// Extent is the range of an object that holds a blob, or that of the blob's unit.
type Extent struct {
	Bucket     string // its URL
	ObjectSize int64
	Length     int64 // of what is read for the blob
}

// Extents are those of some blobs of a job, drawn at random.
type Extents struct {
	Looked  int // blobs that were looked at
	Extents []Extent
}

// Extents returns the extents of some blobs of a job in buckets. It reads pages of the
// manifest and lists of objects, and no blob.
func (e *Engine) Extents(ctx context.Context, j *Job) (Extents, error) {
	var found Extents
	if len(j.Projection().BlobColumns()) == 0 || j.Plan().Rows() == 0 {
		return found, nil
	}
	blobs, err := e.drawBlobs(ctx, j)
	if err != nil {
		return found, err
	}
	for _, b := range blobs[:min(len(blobs), probeExtents)] {
		at, ok, err := e.store.Locate(ctx, b.ref)
		if err != nil {
			return found, err
		}
		if found.Looked++; ok {
			found.Extents = append(found.Extents, Extent{at.Bucket.URL(), at.Object.Size, at.Length})
		}
	}
	return found, nil
}

// probeExtents is how many blobs Extents looks up.
const probeExtents = 256
