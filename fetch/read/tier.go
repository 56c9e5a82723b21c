package read

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

// Tier is a place where blobs may be. Implementations are safe for concurrent use. The test suite in readtest defines
// the whole contract.
type Tier interface {
	// Name is the tier's name in statistics and errors.
	Name() string
	// Has reports whether the tier is likely to have the blob. It must not block, because it is called for every blob
	// with a lock held. It is not called for the last tier.
	Has(ref schema.BlobRef) bool
	// Fetch reads cells. It answers each cell once before it returns, from any goroutine, as soon as that cell is
	// there. It may serve cells together: neighbours in an object, keys of one node. No cell waits for a failure of
	// another. A cell ends when its context does. The memory for all bytes is reserved already.
	Fetch(cells []Cell, to Answers)
	// Traits describe how the tier is used. They never change.
	Traits() Traits
}

// Cell is a request to a tier for a blob.
type Cell struct {
	// Context identifies the caller, and ends when no receiver wants the blob any more.
	Context context.Context //nolint:containedctx // each cell is cancelled by itself
	Ref     schema.BlobRef
	// At is where the blob is used.
	At spill.Place
	// Use is how many rows the stream delivers before it uses the blob; 0 is the next row.
	Use int64
	// Late allows an unchecked answer: see [Traits.Late].
	Late bool
}

// Answers receives the answers to cells.
type Answers interface {
	// Answer receives the answer to the n-th cell. It may be called from any goroutine.
	Answer(n int, a Answer)
}

// Answer is the answer to a cell.
type Answer struct {
	Blob schema.Blob // owned by the receiver, which releases it
	// Unchecked says that the receiver must verify the bytes of a Late cell by the reference. Their size is verified.
	Unchecked bool
	// Joined says that the bytes came by a request that began before this cell's Fetch, or by none. The time of the
	// answer then says nothing about the path.
	Joined bool
	// Err sends the read to the tier below. From the last tier it is a sentinel of package schema, which determines
	// whether another attempt makes sense.
	Err error
}

// Traits describe how a tier is used, and what its reads cost.
type Traits struct {
	// Parallel is how many reads may be in flight. 0 is as many as the path carries, which is measured.
	Parallel int
	// Together is the most cells that one Fetch serves better than separate calls. 0 is one.
	Together int
	// Checked says that Fetch has verified the bytes by the reference's checksum.
	Checked bool
	// Remote says that the tier is other nodes, which may request blobs from this one. A blob that is read on behalf
	// of another node is not requested from this tier.
	Remote bool
	// Late says that Late cells may be answered unchecked. The receiver copies the bytes and verifies the copy, so
	// that memory is read once, and the verified bytes are the ones delivered. A blob that fails is read again.
	Late bool
}

// Gatherer is a Tier that serves some cells together, and others alone: [Traits.Together] is for those that it
// gathers.
type Gatherer interface {
	Tier
	// Gathers reports whether a cell of the blob is served better with others. It must not block, because it is
	// called for every blob with a lock held.
	Gathers(ref schema.BlobRef) bool
}

// Whenever is the [Cell.Use] of a blob that no stream waits for.
const Whenever = math.MaxInt64

// CachingTier is a Tier that caches blobs from tiers below it.
type CachingTier interface {
	Tier
	// Offer offers a blob that was read below in the time took. It must not block. The tier owns the blob and
	// releases it, whether it caches it or not.
	Offer(ref schema.BlobRef, at spill.Place, took time.Duration, blob schema.Blob)
	// Missed counts a blob that a stream wanted and the tier did not have.
	Missed(at spill.Place, size int64)
}

// maxTiers is the most tiers that a read's bits can count.
const maxTiers = 8

// Validate returns an error that says what is wrong with a list of tiers.
func Validate(list []Tier) error {
	switch n := len(list); {
	case n == 0:
		return fmt.Errorf("%w: a reader without a tier; the last one has to be a store", schema.ErrInvalid)
	case n > maxTiers:
		return fmt.Errorf("%w: a reader of %d tiers; it takes %d at most", schema.ErrInvalid, n, maxTiers)
	}
	for i, t := range list {
		if t == nil {
			return fmt.Errorf("%w: tier %d is nil", schema.ErrInvalid, i)
		}
		tr := t.Traits()
		if tr.Parallel < 0 || tr.Together < 0 {
			return fmt.Errorf("%w: tier %q allows %d reads at once and serves %d together; want 0 or more",
				schema.ErrInvalid, t.Name(), tr.Parallel, tr.Together)
		}
		if tr.Remote && i == len(list)-1 {
			return fmt.Errorf("%w: tier %q is other nodes; the last one has to be a store", schema.ErrInvalid, t.Name())
		}
	}
	return nil
}

// Each is the Fetch of a tier that reads cells separately, each by get, in parallel.
func Each(cells []Cell, to Answers, get func(c *Cell) Answer) {
	var others sync.WaitGroup
	for i := range cells {
		others.Go(func() { to.Answer(i, get(&cells[i])) })
	}
	others.Wait()
}

// maxSpillReads is how many blobs are read from the spill at once: enough to keep a disk busy, and few enough that
// the bytes are still in the CPU cache when they are sent.
const maxSpillReads = 8

// Spill returns the tier of the node's cache.
func Spill(c *spill.Cache) CachingTier { return spillTier{c} }

// spillTier is the tier of a spill. Its reads verify checksums, or leave that to the
// receiver.
type spillTier struct{ cache *spill.Cache }

// Name implements Tier.
func (spillTier) Name() string { return "spill" }

// Has implements Tier.
func (t spillTier) Has(ref schema.BlobRef) bool { return t.cache.Has(ref) }

// Traits implements Tier.
func (spillTier) Traits() Traits { return Traits{Parallel: maxSpillReads, Checked: true, Late: true} }

// Fetch implements Tier.
func (t spillTier) Fetch(cells []Cell, to Answers) {
	if len(cells) == 1 { // without a goroutine
		to.Answer(0, t.get(&cells[0]))
		return
	}
	Each(cells, to, t.get)
}

// get reads a blob of the spill. The spill may have evicted the blob since Has reported
// it; the error then sends the read to the next tier.
func (t spillTier) get(c *Cell) (a Answer) {
	var there bool
	if c.Late {
		a.Blob, a.Unchecked, there = t.cache.GetUnchecked(c.Ref, c.At)
	} else {
		a.Blob, there = t.cache.Get(c.Ref, c.At)
	}
	if !there {
		return Answer{Err: fmt.Errorf("%w: the spill has lost blob %s", schema.ErrNotFound, c.Ref.Key)}
	}
	return a
}

// Offer implements CachingTier. A blob without a place is not cached.
func (t spillTier) Offer(ref schema.BlobRef, at spill.Place, took time.Duration, blob schema.Blob) {
	if at.Dataset == 0 {
		blob.Release()
		return
	}
	t.cache.Offer(ref, at, took, blob)
}

// Missed implements CachingTier.
func (t spillTier) Missed(at spill.Place, size int64) { t.cache.Missed(at, size) }

// Store returns the tier of a store. It is the last one, and has every blob.
func Store(s store.Store) Tier {
	return storeTier{s, s.Traits().Mapped}
}

// Placed is a Tier, or a store, that names its place for errors.
type Placed interface {
	// Where names the place, such as a table at an address, or a directory.
	Where() string
}

// storeTier is the tier of a store.
type storeTier struct {
	store  store.Store
	mapped bool // its blobs are in files of this node
}

// Name implements Tier.
func (storeTier) Name() string { return "store" }

// Where implements Placed.
func (t storeTier) Where() string { return t.store.Where() }

// Has implements Tier.
func (storeTier) Has(schema.BlobRef) bool { return true }

// Traits implements Tier.
func (t storeTier) Traits() Traits { return Traits{Late: t.mapped} }

// Fetch implements Tier.
func (t storeTier) Fetch(cells []Cell, to Answers) {
	if len(cells) == 1 { // without a goroutine
		to.Answer(0, t.get(&cells[0]))
		return
	}
	Each(cells, to, t.get)
}

// get reads a blob of the store. If the waiters verify its bytes, only the size is
// verified here, because a receiver copies as many bytes as the reference says.
func (t storeTier) get(c *Cell) Answer {
	b, err := t.store.Get(c.Context, c.Ref)
	late := c.Late && t.mapped
	if err == nil && late && int64(len(b.Bytes())) != c.Ref.Size {
		err = c.Ref.Check(b.Bytes())
		b.Release()
		b = schema.Blob{}
	}
	return Answer{Blob: b, Unchecked: err == nil && late && c.Ref.Size > 0, Err: err}
}
