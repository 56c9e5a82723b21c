package wire

import (
	"time"

	"bowstring/schema"
)

// Blobs may lie in mapped files, whose pages the kernel takes away where memory is short. Who touches such a page waits
// for the disk, in user space as in a system call that the Go scheduler is not told of: one of its processors waits with
// it, and each collection. Two such waits stop a server with two processors. So whatever sends blobs has to know that
// their pages are in memory, or has to tell the scheduler.

// freshFor is for how long a page that was read stays in memory for certain: the kernel takes what was not read for
// longer. What a consumer of some speed takes goes out within.
const freshFor = 200 * time.Millisecond

// FreshUntil is until when the pages of a batch, which was made ready at a time, are known to be in memory. Blobs that
// were compared with their references just then were read for it. The zero time.Time stands for always: no blob lies in
// a file.
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

// unknown is until when pages are in memory of which nothing is known.
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

// bringBack has pages of which some may be gone read by a system call that the scheduler knows of, so that none is missing
// when they are touched next. Where it fails they are missing then, and what cannot be read at all shows.
func bringBack(list [][]byte) {
	for _, b := range list {
		if len(b) > InlineBytes && !schema.Resident(b) {
			_ = schema.Populate(b)
		}
	}
}
