package wire

import (
	"context"
	"time"

	"bowstring/flight/shm"
	"bowstring/schema"
)

// Blobs may be in mapped files, whose pages the kernel reclaims when memory is short. A
// thread that touches such a page waits for the disk. In user space, and in a system call
// that the Go scheduler does not see, its P waits with it, and so does each garbage
// collection. Two such waits stop a server with two processors. Therefore code that sends
// blobs has to know that their pages are in memory, or has to let the scheduler see the
// system call.

// freshFor is for how long a page that was read stays in memory for certain: the kernel
// takes what was not read for longer. A consumer of ordinary speed takes a frame within
// this time.
const freshFor = 200 * time.Millisecond

// FreshUntil is until when the pages of a batch, which was made ready at a time, are
// known to be in memory. Blobs that were compared with their references just then were
// read for it. The zero time.Time means always: no blob is in a file.
func FreshUntil(b *schema.Batch, ready time.Time) time.Time {
	until := time.Time{}
	for _, column := range b.Blobs {
		for i := range column {
			if _, mapped := column[i].Extent(); !mapped {
				continue
			}
			if !column[i].Unchecked() {
				return unknown // it was compared whenever it was read
			}
			until = ready.Add(freshFor)
		}
	}
	return until
}

// unknown is the time until which pages count as in memory if nothing is known about them.
var unknown = time.Unix(0, 0)

// sooner is the earlier of two times until which pages are in memory.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// isStale reports whether pages may not be in memory any more.
func isStale(until time.Time) bool { return !until.IsZero() && !time.Now().Before(until) }

// bringBack reads pages that may have left memory, by a system call that the scheduler knows of. So no page is missing
// when it is touched next. If the call fails, pages are missing then, and a page that cannot be read shows.
func bringBack(list [][]byte) {
	for _, b := range list {
		if len(b) > InlineBytes && !schema.Resident(b) {
			_ = schema.Populate(b)
		}
	}
}

// Blobs may come from the engine without having been compared with their references
// (fetch.Serving). Here they are: before any byte of them leaves, and those that are
// copied in the copy. Memory is read once for both then, and what was checked is what the
// client reads, whatever becomes of the file.

// checkInPlace verifies blobs in their own memory before they go out. A wrong blob is
// replaced: the batch has other bytes then.
func checkInPlace(ctx context.Context, b *schema.Batch, aside int64, again shm.Reread) error {
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
