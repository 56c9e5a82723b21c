package wire

import (
	"context"

	"bowstring/flight/shm"
	"bowstring/schema"
)

// Blobs may come from the engine with nobody having compared them with their references (fetch.CheckedLate). Here they
// are: before any byte of them leaves, and those that are copied in the copy. Memory is read once for both then, and
// what was checked is what the client reads, whatever becomes of the file.

// CheckInPlace checks what goes out from where it lies. What is wrong, is put right: the batch has other bytes then.
func CheckInPlace(ctx context.Context, b *schema.Batch, aside int64, again shm.Reread) error {
	for i := range b.Columns {
		if err := checkVector(ctx, b, &b.Columns[i], aside, again); err != nil {
			return err
		}
	}
	return nil
}

func checkVector(ctx context.Context, batch *schema.Batch, v *schema.Vector, aside int64, again shm.Reread) error {
	for i := range v.Buffers {
		b := &v.Buffers[i]
		if b.Len >= aside {
			continue
		}
		for k, want := range b.Unchecked {
			var next []byte
			if k+1 < len(b.Pieces) {
				next = b.Pieces[k+1]
			}
			if want.Ref.CheckBefore(b.Pieces[k], next) == nil {
				continue
			}
			blob, err := again(ctx, want.Row, want.Ref)
			if err != nil {
				return err
			}
			b.Pieces[k] = blob.Bytes()
			batch.Blobs = append(batch.Blobs, []schema.Blob{blob})
		}
		b.Unchecked = nil
	}
	for i := range v.Children {
		if err := checkVector(ctx, batch, &v.Children[i], aside, again); err != nil {
			return err
		}
	}
	return nil
}
