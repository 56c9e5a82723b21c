package flight

import (
	"context"

	"bowstring/schema"
)

// Blobs may come from the engine with nobody having compared them with their references (fetch.CheckedLate). Here they
// are: before any byte of them leaves, and those that are copied in the copy. Memory is read once for both then, and
// what was checked is what the client reads, whatever becomes of the file.

// rereader brings a blob of a batch's row once more, checked, where it has proved wrong. It may be called by several
// goroutines at once.
type rereader func(ctx context.Context, row int, ref schema.BlobRef) (schema.Blob, error)

// copyChecked copies a blob, and checks what it has written. next is the blob that will be copied next, if it is known.
func copyChecked(ctx context.Context, to, from, next []byte, want schema.Unchecked, again rereader) error {
	if want.Ref.CheckedCopy(to, from, next) == nil {
		return nil
	}
	blob, err := again(ctx, want.Row, want.Ref)
	if err != nil {
		return err
	}
	defer blob.Release()
	return want.Ref.CheckedCopy(to, blob.Bytes(), nil)
}

// checkInPlace checks what goes out from where it lies. What is wrong, is put right: the batch has other bytes then.
func checkInPlace(ctx context.Context, b *schema.Batch, elsewhere *lies, again rereader) error {
	for i := range b.Columns {
		if err := checkVector(ctx, b, &b.Columns[i], elsewhere, again); err != nil {
			return err
		}
	}
	return nil
}

func checkVector(ctx context.Context, batch *schema.Batch, v *schema.Vector, elsewhere *lies, again rereader) error {
	for i := range v.Buffers {
		b := &v.Buffers[i]
		if elsewhere.has(b) {
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
		if err := checkVector(ctx, batch, &v.Children[i], elsewhere, again); err != nil {
			return err
		}
	}
	return nil
}
