package read

import (
	"sync/atomic"
	"time"

	"bowstring/schema"
	"bowstring/spill"
)

// read is one blob being read for all who want it, and afterwards the one hold
// that they share. Several attempts may be under way at once, of which the first
// that brings the right bytes ends it.
//
// It is the owner of the blob that all get, and the context of its attempts, so
// that in the usual case a read costs an eighth of an allocation. All fields but reader, ref,
// trace, late, refs, blob and unchecked are guarded by Reader.mu.
type read struct {
	readContext
	reader *Reader
	ref    schema.BlobRef
	start  time.Time
	since  time.Time // when it was wanted first, before start where it had to wait for its turn
	trace  *Trace    // of who wanted it first, or nil; never changes

	account *Account // of who wanted it first, or nil; never changes

	first  waiter   // who wants it
	others []waiter // more who do

	place   spill.Place // where it was found to be wanted
	use     int64       // when it is used: see Cell.Use
	entry   int         // index of the tier that was asked first
	counted uint8       // in which lanes it is counted, a bit each

	attempts int       // begun
	running  int       // under way
	failed   int       // attempts at the last tier that ended badly
	why      error     // of the last of those
	latest   time.Time // when the last attempt began
	hedged   bool      // an attempt was begun because the first was slow
	here     bool      // no other node is asked
	late     bool      // who waits checks the blob; set before its first attempt is made, and never changed
	asked    bool      // another node was asked, and has not sent it
	fill     bool      // whoever wanted it first keeps it; set before its first attempt is made
	over     bool      // brought, failed for good, or no longer wanted
	overdue  bool      // it had its time and brought nothing

	older, newer *read // reads under way in the order they began
	nextFreed    *read // see Reader.letGo

	refs atomic.Int32 // holders of the blob
	blob schema.Blob  // theirs; set before there is a holder
	// unchecked says that they have to check it; set with blob.
	unchecked bool
}

// atOnce is how many reads are allocated together. Whoever holds the blob of one keeps the others from the collector:
// few hundred bytes each, as a read that is over leads to no call, and one that is let go to no blob.
const atOnce = 8

// newLocked returns memory for a read.
func (r *Reader) newLocked() *read {
	if len(r.fresh) == 0 {
		r.fresh = make([]read, atOnce)
	}
	rd := &r.fresh[0]
	r.fresh = r.fresh[1:]
	return rd
}

// readKey is by what reads are found. Who checks late shares what others read, but these not what is not checked.
type readKey struct {
	ref  schema.BlobRef
	late bool
}

func (r *read) key() readKey { return readKey{r.ref, r.late} }

// findLocked returns the read that w may share; nil if there is none.
func (r *Reader) findLocked(w *Want) *read {
	rd := r.reads[readKey{w.Ref, false}]
	if rd == nil && w.Late {
		rd = r.reads[readKey{w.Ref, true}]
	}
	return rd
}

// lateLocked reports whether a read that is to begin in a lane may leave the check to who waits: not where a tier above
// keeps what it brings.
func (r *Reader) lateLocked(l *lane, rd *read) bool {
	if !l.traits.Late {
		return false
	}
	for i := range r.lanes[:l.index] {
		if r.lanes[i].keeper != nil && r.keeps(rd) {
			return false
		}
	}
	return true
}

// Unchecked implements schema.Unchecker.
func (r *read) Unchecked() bool { return r.unchecked }

// Unpin implements schema.Owner.
func (r *read) Unpin() {
	if r.refs.Add(-1) == 0 {
		r.reader.letGo(r)
		r.blob.Release()
	}
}

// Frame implements schema.Framer. Of all who have the blob, one tier alone stores it.
func (r *read) Frame() []byte { return r.blob.Frame() }

// Extent implements schema.Locator: the blob lies where the tier had it that it came from.
func (r *read) Extent([]byte) (schema.Extent, bool) { return r.blob.Extent() }

// acquire takes a hold of a blob that others hold; false if the last has let go.
func (r *read) acquire() bool {
	for {
		n := r.refs.Load()
		if n <= 0 {
			return false
		}
		if r.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// attemptLocked counts another attempt in, which begins then.
func (r *read) attemptLocked(then time.Time) {
	r.attempts++
	r.running++
	r.latest = then
}
