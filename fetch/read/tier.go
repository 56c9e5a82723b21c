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

// Tier is a place where blobs may be found. Implementations are safe for
// concurrent use. The suite in readtest defines the contract in full.
type Tier interface {
	// Name names the tier in statistics and errors.
	Name() string
	// Has reports whether the tier is likely to have the blob. It must not block:
	// it is asked for every blob, with a lock held. The last tier is not asked.
	Has(ref schema.BlobRef) bool
	// Fetch reads cells, and answers for each once before it returns, by any goroutine, as soon as that cell is there.
	// It may serve cells together: neighbours in an object, keys of one node. None waits for what another one does not
	// get. It ends for a cell when the cell's context does. Memory for the bytes of all is reserved already.
	Fetch(cells []Cell, to Answers)
	// Traits say how the tier is to be used. They never change.
	Traits() Traits
}

// Cell is a blob that a tier is asked for.
type Cell struct {
	// Context says on whose behalf, and ends when nobody wants the blob any more.
	Context context.Context //nolint:containedctx // each cell is given up by itself
	Ref     schema.BlobRef
	// At is where the blob was found to be wanted.
	At spill.Place
	// Use is how many rows its stream hands out before it uses the blob: 0 stands for the next one.
	Use int64
	// Late allows an answer that is not compared with the reference: see [Traits.Late].
	Late bool
}

// Answers takes what came of cells.
type Answers interface {
	// Answer takes what came of the n-th cell.
	Answer(n int, a Answer)
}

// Answer is what came of a cell.
type Answer struct {
	Blob schema.Blob // the caller's to release
	// Unchecked says that the bytes of a cell that is Late are to be compared with the reference, of whose size they are.
	Unchecked bool
	// Err has the read go on in the tier below, whatever it is; of the last tier it is a sentinel of package schema that
	// says whether another attempt makes sense.
	Err error
}

// Traits say how a tier is to be used, and what a read of it costs.
type Traits struct {
	// Parallel is how many reads of it may be under way at once. 0 stands for as
	// many as the path to it carries, which is measured.
	Parallel int
	// Together is how many cells one Fetch serves better than as many do. 0 stands for one.
	Together int
	// Checked says that Fetch has compared the bytes with the reference's checksum.
	Checked bool
	// Remote says that the tier is other nodes, which may ask this one in their turn:
	// what is read for one of them is not asked of it.
	Remote bool
	// Late says that cells that are Late may be answered unchecked. The caller, who copies the bytes, checks the copy. A
	// byte is read from memory once then, and what was checked is what is delivered. What proves wrong is read again.
	Late bool
}

// Gatherer is a Tier that serves some cells together, and others by themselves: [Traits.Together] is of those that it
// gathers.
type Gatherer interface {
	Tier
	// Gathers reports whether a cell of the blob is served better with others. It must not block: it is asked for every
	// blob, with a lock held.
	Gathers(ref schema.BlobRef) bool
}

// Whenever is the [Cell.Use] of a blob that no stream waits for.
const Whenever = math.MaxInt64

// Keeper is a Tier that keeps blobs which came from tiers below it.
type Keeper interface {
	Tier
	// Offer gives it a blob that was read below, which took so long. It must not
	// block. The blob is the tier's to release, whether it keeps it or not.
	Offer(ref schema.BlobRef, at spill.Place, took time.Duration, blob schema.Blob)
	// Missed counts a blob that it did not have and a stream wanted.
	Missed(at spill.Place, size int64)
}

// maxTiers is how many tiers a read can be counted in at once.
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

// Each is the Fetch of a tier that reads cells by themselves: get reads one.
func Each(cells []Cell, to Answers, get func(c *Cell) Answer) {
	var others sync.WaitGroup
	for i := range cells {
		others.Go(func() { to.Answer(i, get(&cells[i])) })
	}
	others.Wait()
}

// maxSpillReads is how many blobs are read from the spill at once: enough to
// keep a disk busy, and few enough that what was read is still in the processor's
// cache when it is sent.
const maxSpillReads = 8

// Spill is the tier that the node's cache is.
func Spill(c *spill.Cache) Keeper { return spillTier{c} }

type spillTier struct{ cache *spill.Cache }

// Name implements Tier.
func (spillTier) Name() string { return "spill" }

// Has implements Tier.
func (t spillTier) Has(ref schema.BlobRef) bool { return t.cache.Has(ref) }

// Traits implements Tier.
func (spillTier) Traits() Traits { return Traits{Parallel: maxSpillReads, Checked: true, Late: true} }

// Fetch implements Tier.
func (t spillTier) Fetch(cells []Cell, to Answers) {
	if len(cells) == 1 { // which costs nothing beside
		to.Answer(0, t.get(&cells[0]))
		return
	}
	Each(cells, to, t.get)
}

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

// Offer implements Keeper. What is at no known place is not kept.
func (t spillTier) Offer(ref schema.BlobRef, at spill.Place, took time.Duration, blob schema.Blob) {
	if at.Dataset == 0 {
		blob.Release()
		return
	}
	t.cache.Offer(ref, at, took, blob)
}

// Missed implements Keeper.
func (t spillTier) Missed(at spill.Place, size int64) { t.cache.Missed(at, size) }

// Store is the tier that a store is: the last one, which has every blob.
func Store(s store.Store) Tier {
	return storeTier{s, s.Traits().Mapped}
}

// Placed is a Tier, or a store, that says where it is, for errors.
type Placed interface {
	// Where names the place, such as a table at an address, or a directory.
	Where() string
}

type storeTier struct {
	store  store.Store
	mapped bool // its blobs lie in files of this node
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
	if len(cells) == 1 { // which costs nothing beside
		to.Answer(0, t.get(&cells[0]))
		return
	}
	Each(cells, to, t.get)
}

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
