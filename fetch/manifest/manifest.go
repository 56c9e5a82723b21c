// Package manifest reads rows of snapshots. It reads pages of manifests when they are
// needed, several at once, and keeps them within a memory limit. A small manifest is read
// whole when it is opened, and its pages stay.
//
// Package schema defines what a page looks like. The caller of [NewCache] decides how its
// bytes are read, as a [ReadFunc].
//
// Begin reading with [Cache.Open] and [Manifest.At].
package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/admission"
	"bowstring/schema"
)

// pagesAtOnce is how many pages one call reads at the same time, so that a call for many
// rows does not fill the queue that all calls share.
const pagesAtOnce = 256

// Manifest is an opened snapshot. Its rows are read when they are needed. It is safe for
// concurrent use, except that Close must be the last call.
type Manifest struct {
	cache  *Cache
	name   string // dataset@number
	form   *schema.Form
	chunks starts
	ids    lookup

	// Set only if the manifest was read whole. Each entry has a use until Close.
	whole  bool
	lists  []*entry // by chunk; nil for a chunk that is itself a page
	pages  []*entry
	places starts // where each page begins
	bytes  int64  // counted in cache.resident
}

// Open opens a snapshot. If its manifest is small, and there is room for it, Open reads
// all of it. A chunk with an impossible size or number of rows is a schema.ErrDataLoss.
// The caller closes the manifest.
func (c *Cache) Open(ctx context.Context, snap *schema.Snapshot) (*Manifest, error) {
	m := &Manifest{cache: c, name: fmt.Sprintf("%s@%d", snap.Dataset, snap.Number)}
	var err error
	if m.form, err = schema.NewForm(snap); err != nil {
		return nil, fmt.Errorf("manifest of %s@%d: %w", snap.Dataset, snap.Number, err)
	}
	var bytes int64
	for i := range snap.Chunks {
		chunk := &snap.Chunks[i]
		if chunk.Rows <= 0 || chunk.Size < 0 || chunk.Pages < 0 || chunk.PageBytes < 0 {
			return nil, m.named(fmt.Errorf("%w: chunk %d has %d rows, %d pages and %d bytes", schema.ErrDataLoss, i,
				chunk.Rows, chunk.Pages, chunk.Size))
		}
		bytes += chunk.ManifestBytes()
		if chunk.Pages > 0 {
			bytes += 2 * chunk.Size // its list is decoded
		}
	}
	m.chunks = newStarts(snap.Chunks)
	if c.admits(bytes) {
		m.whole, m.bytes = true, bytes
		if err := m.readAll(ctx); err != nil {
			m.Close()
			return nil, err
		}
	}
	return m, nil
}

// admits reports whether a manifest of this many bytes may be read whole, and reserves
// room for it if so. Half of the memory is left to manifests that are not.
func (c *Cache) admits(bytes int64) bool {
	if bytes > c.whole {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.resident+bytes > c.ledger.Limit(admission.Manifests)/2 {
		return false
	}
	c.resident += bytes
	return true
}

// readAll reads all lists and pages, and keeps a use of each until Close. After an error the caller
// closes the manifest, which releases those that were read.
func (m *Manifest) readAll(ctx context.Context) error {
	chunks := m.Snapshot().Chunks
	m.lists = make([]*entry, len(chunks))
	all, err := m.someLists(ctx, len(chunks), func(i int) int { return i })
	if err != nil {
		return err
	}
	var pages []schema.Chunk
	for _, l := range all {
		pages = append(pages, l.pages...)
	}
	m.places = newStarts(pages)
	m.pages = make([]*entry, len(pages))
	return m.cache.each(ctx, m.form, wants{
		n: len(pages), chunk: func(i int) schema.Chunk { return pages[i] },
		visit: func(i int, e *entry) error {
			m.pages[i] = e.keep()
			return nil
		},
		lost: func(i int, err error) error { return m.lostPage(pages[i], m.places.at[i], err) },
	})
}

// Close releases the pages. The caller guarantees that nothing obtained from the
// manifest, batches included, is used afterwards.
func (m *Manifest) Close() {
	for _, e := range slices.Concat(m.lists, m.pages) {
		if e != nil {
			e.release()
		}
	}
	m.ids.close()
	m.cache.mu.Lock()
	m.cache.resident -= m.bytes
	m.cache.mu.Unlock()
	m.lists, m.pages, m.bytes = nil, nil, 0
}

// Form is what its pages have in common. It lives as long as the manifest, as does the snapshot.
func (m *Manifest) Form() *schema.Form { return m.form }

// Snapshot is the snapshot whose rows these are.
func (m *Manifest) Snapshot() *schema.Snapshot { return m.form.Snapshot() }

// Rows is the number of samples.
func (m *Manifest) Rows() int64 { return m.form.Rows() }

// Resident reports whether all rows are in memory.
func (m *Manifest) Resident() bool { return m.whole }

// list returns the pages of a chunk. The index stays valid without a use of its entry: the garbage
// collector frees it.
func (m *Manifest) list(ctx context.Context, chunk int) (*index, error) {
	c := m.Snapshot().Chunks[chunk]
	if c.Pages == 0 {
		return newIndex([]schema.Chunk{c}), nil
	}
	if m.whole && m.lists[chunk] != nil {
		return m.lists[chunk].index, nil
	}
	e, err := m.cache.acquire(ctx, m.form, c)
	if err != nil {
		return nil, m.lostList(chunk, err)
	}
	defer e.release()
	return e.index, nil
}

// someLists returns the pages of n chunks. While a manifest is read whole, the lists are
// kept.
func (m *Manifest) someLists(ctx context.Context, n int, chunk func(i int) int) ([]*index, error) {
	lists := make([]*index, n)
	var wanted []int
	for i := range lists {
		if c := &m.Snapshot().Chunks[chunk(i)]; c.Pages == 0 {
			lists[i] = newIndex([]schema.Chunk{*c})
		} else {
			wanted = append(wanted, i)
		}
	}
	err := m.cache.each(ctx, m.form, wants{
		n: len(wanted), chunk: func(i int) schema.Chunk { return m.Snapshot().Chunks[chunk(wanted[i])] },
		visit: func(i int, e *entry) error {
			lists[wanted[i]] = e.index
			if m.whole {
				m.lists[chunk(wanted[i])] = e.keep()
			}
			return nil
		},
		lost: func(i int, err error) error { return m.lostList(chunk(wanted[i]), err) },
	})
	return lists, err
}

// page returns a page, which the caller releases. start, its first position, is for errors.
func (m *Manifest) page(ctx context.Context, page schema.Chunk, start int64) (*entry, error) {
	e, err := m.cache.acquire(ctx, m.form, page)
	if err != nil {
		return nil, m.lostPage(page, start, err)
	}
	return e, nil
}

// lostList is the error of a list of pages that could not be read.
func (m *Manifest) lostList(chunk int, err error) error {
	return m.lost(fmt.Sprintf("chunk %d", chunk), err)
}

// lostPage is the error of a page that could not be read; start is its first position.
func (m *Manifest) lostPage(page schema.Chunk, start int64, err error) error {
	return m.lost(fmt.Sprintf("positions %d to %d", start, start+page.Rows-1), err)
}

// lost names what could not be read. A missing page is a schema.ErrDataLoss: as ErrNotFound the
// caller would take the snapshot for dropped.
func (m *Manifest) lost(what string, err error) error {
	if errors.Is(err, schema.ErrNotFound) { // a blob that is missing here is lost, not absent
		err = fmt.Errorf("%w: %s", schema.ErrDataLoss, err.Error())
	}
	return m.named(fmt.Errorf("%s: %w", what, err))
}

// named adds the snapshot to an error; nil stays nil.
func (m *Manifest) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("manifest of %s@%d: %w", m.Snapshot().Dataset, m.Snapshot().Number, err)
}

// Try returns the rows of the samples at some positions, if the manifest was read whole.
// The rows are valid as long as the manifest is open. Positions are in [0, Rows()).
func (m *Manifest) Try(positions []int64) ([]schema.Row, bool) {
	if !m.whole {
		return nil, false
	}
	rows := make([]schema.Row, len(positions))
	for i, pos := range positions {
		p := m.places.of(pos)
		rows[i] = schema.Row{Page: m.pages[p].page, At: int(pos - m.places.at[p])}
	}
	return rows, true
}

// Peek visits the page of the sample at a position, if the page is in memory. It reads
// nothing and does not wait. start is the page's first position. The page is open until
// visit returns. The position is in [0, Rows()).
func (m *Manifest) Peek(pos int64, visit func(start int64, p *schema.Page)) bool {
	if m.whole {
		i := m.places.of(pos)
		visit(m.places.at[i], m.pages[i].page)
		return true
	}
	chunk := m.chunks.of(pos)
	want, begin := m.Snapshot().Chunks[chunk], m.chunks.at[chunk]
	if want.Pages > 0 {
		e := m.cache.peek(want)
		if e == nil {
			return false
		}
		i := e.index.of(pos - begin)
		want, begin = e.index.pages[i], begin+e.index.at[i]
		e.release()
	}
	e := m.cache.peek(want)
	if e == nil {
		return false
	}
	defer e.release()
	visit(begin, e.page)
	return true
}

// At returns the rows of the samples at some positions. They are in pages that are open
// as long as the manifest is, or in copies that the garbage collector frees. At reads
// pages that are not in memory. Positions are in [0, Rows()), in any order; repeats are
// allowed.
func (m *Manifest) At(ctx context.Context, positions []int64) ([]schema.Row, error) {
	if rows, ok := m.Try(positions); ok || len(positions) == 0 {
		return rows, nil
	}
	order, needs, err := m.needs(ctx, positions)
	if err != nil {
		return nil, err
	}
	rows := make([]schema.Row, len(positions))
	gathered := m.form.NewGathering()
	err = m.visitNeeds(ctx, needs, func(n *need, p *schema.Page) error {
		return m.named(gather(gathered, p, n.start, positions, order[n.from:n.to], rows))
	})
	if err != nil {
		return nil, err
	}
	page := gathered.Page()
	for i := range rows {
		rows[i].Page = page
	}
	return rows, nil
}

// Visit visits the pages of the samples at some positions, one at a time, in any order.
// wanted are the positions within the page, ascending, with repeats; start is the page's
// first position. The page is open until visit returns.
func (m *Manifest) Visit(ctx context.Context, positions []int64,
	visit func(start int64, p *schema.Page, wanted []int64) error,
) error {
	order, needs, err := m.needs(ctx, positions)
	if err != nil {
		return err
	}
	sorted := make([]int64, len(positions))
	for i, at := range order {
		sorted[i] = positions[at]
	}
	return m.visitNeeds(ctx, needs, func(n *need, p *schema.Page) error {
		return visit(n.start, p, sorted[n.from:n.to])
	})
}

// visitNeeds visits needed pages as they come, in the caller's goroutine. A panic of visit, which
// reads bytes of the store, is returned as an error.
func (m *Manifest) visitNeeds(ctx context.Context, needs []need, visit func(*need, *schema.Page) error) error {
	return m.cache.safely(func() error {
		return m.cache.each(ctx, m.form, wants{
			n: len(needs), chunk: func(i int) schema.Chunk { return needs[i].page },
			place: func(i int) Place { return Place{m.name, needs[i].start} },
			visit: func(i int, e *entry) error { return visit(&needs[i], e.page) },
			lost:  func(i int, err error) error { return m.lostPage(needs[i].page, needs[i].start, err) },
		})
	})()
}

// need is a page with wanted rows: those at order[from:to], in the order of
// [Manifest.needs].
type need struct {
	page     schema.Chunk
	start    int64
	from, to int // the rows: indexes into the order of positions
}

// needs returns the positions in ascending order, as indexes into positions, and the
// pages of those samples, each page once. It reads the lists of pages that it needs.
func (m *Manifest) needs(ctx context.Context, positions []int64) (order []int, needs []need, err error) {
	order = make([]int, len(positions))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(positions[a], positions[b]) })
	// upTo is the first row in the order whose position is at least end.
	upTo := func(from int, end int64) int {
		return from + sort.Search(len(order)-from, func(i int) bool { return positions[order[from+i]] >= end })
	}
	var chunks []need
	for from := 0; from < len(order); {
		chunk := m.chunks.of(positions[order[from]])
		to := upTo(from, m.chunks.at[chunk+1])
		chunks = append(chunks, need{from: from, to: to, start: int64(chunk)})
		from = to
	}
	// For now start is the number of the chunk.
	lists, err := m.someLists(ctx, len(chunks), func(i int) int { return int(chunks[i].start) })
	if err != nil {
		return nil, nil, err
	}
	for i, c := range chunks {
		begin := m.chunks.at[c.start]
		for from := c.from; from < c.to; {
			p := lists[i].of(positions[order[from]] - begin)
			to := upTo(from, begin+lists[i].at[p+1])
			needs = append(needs, need{lists[i].pages[p], begin + lists[i].at[p], from, to})
			from = to
		}
	}
	return order, needs, nil
}

// gather copies rows of a page into g, runs of neighbours at a time. The rows are those
// at positions[wanted[...]], which ascend; the page begins at start. It sets rows[...].At
// to the row in g; Page is set when g is complete.
func gather(g *schema.Gathering, p *schema.Page, start int64, positions []int64, wanted []int,
	rows []schema.Row) error {
	for i := 0; i < len(wanted); {
		first := positions[wanted[i]]
		last, at := first, g.Rows()
		for ; i < len(wanted) && positions[wanted[i]] <= last+1; i++ {
			last = positions[wanted[i]]
			rows[wanted[i]].At = at + int(last-first)
		}
		if err := g.Append(p, int(first-start), int(last-first+1)); err != nil {
			return err
		}
	}
	return nil
}

// Start runs At in a goroutine of the cache, which calls done. It returns at once. It
// returns false, and done is not called, if the engine is closing.
func (m *Manifest) Start(ctx context.Context, positions []int64, done func([]schema.Row, error)) bool {
	return startAt(ctx, m.cache, m.At, positions, done)
}

// Go runs f in a goroutine of the cache, and then done with its error. Cache.Close waits
// for both. Go returns at once. It returns false, and calls neither, if the engine is
// closing. A panic in f is an error for done.
func (m *Manifest) Go(f func() error, done func(error)) bool {
	return m.cache.start(func() { done(m.cache.safely(f)()) })
}

// lookup finds samples by id. It is an open-addressing table of positions plus one, with
// linear probing, built when it is first used; 0 is a free slot. The ids themselves stay
// in the pages. A byte of each id's hash spares reading pages for ids that share a slot.
// The hash is seeded, so that no choice of ids can make it slow.
//
// After buildIndex has returned without an error, the table is immutable.
type lookup struct {
	seed   maphash.Seed
	small  []uint32        // the table, if positions fit into 4 bytes
	large  []uint64        // the table otherwise
	tags   []uint8         // by slot: the low byte of the id's hash
	memory *admission.Hold // for the table and the tags, until close

	turn chan struct{} // a semaphore of one for the goroutine that builds it; a mutex would not end with a context
	once sync.Once
}

// Find returns the positions of the samples with some ids, -1 for an id that the snapshot
// does not have. The first call reads all ids. Its index takes 6.25 bytes per row (11.25
// beyond 2^32 rows) of the ledger's memory for admission.Evaluation until the manifest is
// closed. If they do not fit, the error is a schema.ErrLimit.
func (m *Manifest) Find(ctx context.Context, ids []schema.ID) ([]int64, error) {
	if err := m.buildIndex(ctx); err != nil {
		return nil, err
	}
	x := &m.ids
	found, at := make([]int64, len(ids)), make([]int, len(ids))
	left := make([]int, 0, len(ids))
	tags := make([]uint8, len(ids))
	for i, id := range ids {
		found[i], left = -1, append(left, i)
		at[i], tags[i] = x.slot(id)
	}
	// Each round takes the next candidate of every id that is left, so that the
	// candidates of a round are read together. Nearly all ids are found in the first.
	for len(left) > 0 {
		var asked []int
		var positions []int64
		for _, i := range left {
			if pos, ok := x.next(&at[i], tags[i]); ok {
				asked, positions = append(asked, i), append(positions, pos)
			}
		}
		left = left[:0]
		for from := 0; from < len(asked); from += findAtOnce {
			to := min(from+findAtOnce, len(asked))
			rows, err := m.At(ctx, positions[from:to])
			if err != nil {
				return nil, err
			}
			err = schema.Guard(func() error {
				for k, i := range asked[from:to] {
					if rows[k].ID() == ids[i] {
						found[i] = positions[from+k]
					} else {
						left = append(left, i)
					}
				}
				return nil
			})
			if err != nil {
				return nil, m.named(err)
			}
		}
	}
	return found, nil
}

// findAtOnce is how many rows are copied at the same time to compare their ids.
const findAtOnce = 1024

// buildIndex builds the table unless it exists. Concurrent calls wait for the one that
// builds. A failed build leaves nothing, and the next call tries again.
func (m *Manifest) buildIndex(ctx context.Context) error {
	x := &m.ids
	x.once.Do(func() { x.turn = make(chan struct{}, 1) })
	select {
	case x.turn <- struct{}{}:
		defer func() { <-x.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if x.tags != nil {
		return nil
	}
	n := m.Rows()
	slots, width := n+n/4+1, int64(4) // 80 % full at most, so probes stay short
	if n >= math.MaxUint32 {
		width = 8
	}
	memory, ok := m.cache.ledger.Try(admission.Evaluation, slots*(width+1))
	if !ok {
		return fmt.Errorf("%w: to find samples of %s@%d by id, %d bytes would be needed for an index, more than what "+
			"is left for %s; ask by position",
			schema.ErrLimit, m.Snapshot().Dataset, m.Snapshot().Number, slots*(width+1), admission.Evaluation)
	}
	x.seed, x.small, x.large = maphash.MakeSeed(), nil, nil
	if width == 4 {
		x.small = make([]uint32, slots)
	} else {
		x.large = make([]uint64, slots)
	}
	tags := make([]uint8, slots)
	var mu sync.Mutex
	err := m.Walk(ctx, 0, n, nil, func(_ context.Context, start int64, p *schema.Page) error {
		mu.Lock()
		defer mu.Unlock()
		return schema.Guard(func() error {
			for row := range p.Rows() {
				x.add(tags, p.ID(row), start+int64(row))
			}
			return nil
		})
	})
	if err != nil {
		memory.Release()
		x.small, x.large = nil, nil
		return m.named(err)
	}
	x.tags, x.memory = tags, memory
	return nil
}

// slots is the number of slots.
func (x *lookup) slots() int { return max(len(x.small), len(x.large)) }

// slot returns the first slot of an id, and its tag. The slot comes from the high bits of
// the hash and the tag from the low ones, so that ids with the same slot differ in tags.
func (x *lookup) slot(id schema.ID) (int, uint8) {
	hash := maphash.Bytes(x.seed, id[:])
	hi, _ := bits.Mul64(hash, uint64(x.slots()))
	return int(hi), uint8(hash)
}

// add enters an id at the first free slot from its own. tags is not x.tags yet, because
// that field says that the table is complete.
func (x *lookup) add(tags []uint8, id schema.ID, pos int64) {
	at, tag := x.slot(id)
	for x.has(at) {
		if at++; at == x.slots() {
			at = 0
		}
	}
	tags[at] = tag
	if x.small != nil {
		x.small[at] = uint32(pos + 1)
	} else {
		x.large[at] = uint64(pos + 1)
	}
}

// has reports whether a slot is taken.
func (x *lookup) has(at int) bool {
	if x.small != nil {
		return x.small[at] != 0
	}
	return x.large[at] != 0
}

// next returns the position of the next candidate from slot *at on, and moves *at behind
// it; false if a free slot comes first.
func (x *lookup) next(at *int, tag uint8) (pos int64, ok bool) {
	for x.has(*at) {
		slot := *at
		if *at++; *at == x.slots() {
			*at = 0
		}
		switch {
		case x.tags[slot] != tag:
		case x.small != nil:
			return int64(x.small[slot]) - 1, true
		default:
			return int64(x.large[slot]) - 1, true
		}
	}
	return 0, false
}

// close releases the memory.
func (x *lookup) close() {
	x.memory.Release()
	x.small, x.large, x.tags = nil, nil, nil
}

const (
	// walkBytes is how many bytes of a manifest a walk reads at the same time, and
	// walkMost how many pages.
	walkBytes = 32 << 20
	walkMost  = 256
	// chunksAtOnce is how many chunks have their pages listed at the same time.
	chunksAtOnce = 64
)

// Prefetch begins to read the pages of the samples at some positions, up to pagesAtOnce
// of them. It returns at once. The pages stay in the cache until their memory is needed.
// The call that reads the rows gets the errors.
func (m *Manifest) Prefetch(ctx context.Context, positions []int64) {
	if m.whole {
		return
	}
	m.cache.start(func() {
		_, needs, err := m.needs(ctx, positions)
		if err != nil {
			return // the call that reads the rows gets the error
		}
		needs = needs[:min(len(needs), pagesAtOnce)]
		_ = m.visitNeeds(ctx, needs, func(*need, *schema.Page) error { return nil }) // as above
	})
}

// Walk visits the pages with rows in [from, to), in any order and several at once. start
// is the position of a page's first row; a page is open until visit returns. If need is
// not nil, it is called for each chunk that lists pages, and for each page. Where it
// returns false, nothing of the chunk or page is read. It may be called concurrently, and
// for more pages than visit then sees.
//
// If several pages cannot be read or visited, Walk returns the error at the least
// position, whatever the timing: pages before it are still visited. If ctx ends, its
// cause is returned.
func (m *Manifest) Walk(ctx context.Context, from, to int64, need func(start int64, run *schema.Chunk) bool,
	visit func(ctx context.Context, start int64, p *schema.Page) error,
) error {
	if from >= to {
		return nil
	}
	if need == nil {
		need = func(int64, *schema.Chunk) bool { return true }
	}
	first, last := m.chunks.of(from), m.chunks.of(to-1)
	var bytes, most int64 // of a page, about; pages that there may be
	for i := first; i <= last; i++ {
		c := &m.Snapshot().Chunks[i]
		pages := int64(max(c.Pages, 1))
		bytes = max(bytes, c.ManifestBytes()/pages)
		rows := max(c.Rows/pages, 1)
		most += min(pages, (min(to-m.chunks.at[i], c.Rows)-max(from-m.chunks.at[i], 0))/rows+2)
	}
	// The walk is a pipeline: one goroutine sends chunks, some list their pages, and more
	// of them read and visit pages. Lists and pages are read at the same time.
	w := &walk{m: m, ctx: ctx, from: from, to: to, need: need, visit: visit}
	w.failedAt.Store(to)
	chunks, pages := make(chan int), make(chan page)
	var g errgroup.Group
	g.Go(func() error {
		defer close(chunks)
		for c := first; c <= last && w.goesOn(m.chunks.at[c]); c++ {
			chunks <- c
		}
		return nil
	})
	var listing sync.WaitGroup
	for range min(last-first+1, chunksAtOnce) {
		listing.Add(1)
		g.Go(func() error {
			defer listing.Done()
			for c := range chunks {
				start := m.chunks.at[c]
				w.at(start, func() error { return w.list(c, pages) })
			}
			return nil
		})
	}
	g.Go(func() error {
		listing.Wait()
		close(pages)
		return nil
	})
	for range min(walkMost, int(min(max(4, walkBytes/max(bytes, 1)), max(most, 1)))) {
		g.Go(func() error {
			for p := range pages {
				w.at(p.start, func() error { return w.page(p) })
			}
			return nil
		})
	}
	_ = g.Wait() // errors are in w
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return w.err
}

// walk is the state of one Walk. Its goroutines share it.
type walk struct {
	m        *Manifest
	ctx      context.Context
	from, to int64
	need     func(int64, *schema.Chunk) bool
	visit    func(context.Context, int64, *schema.Page) error

	// failedAt is the position of err, or the end of the walk if there is none. Pages
	// from there on are skipped. It only decreases, so the error at the least position
	// remains.
	failedAt atomic.Int64 // the position of err, to if there is none; pages from there on are skipped
	mu       sync.Mutex
	err      error // guarded by mu
}

// page is a page to be read.
type page struct {
	schema.Chunk
	start int64
}

// goesOn reports whether the page at a position is still needed.
func (w *walk) goesOn(start int64) bool { return start < w.failedAt.Load() && w.ctx.Err() == nil }

// at calls do for the run of rows that begins at start, if it is still needed, and
// records its error.
func (w *walk) at(start int64, do func() error) {
	if !w.goesOn(start) {
		return
	}
	err := w.m.cache.safely(do)()
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if start = max(start, w.from); start < w.failedAt.Load() {
		w.failedAt.Store(start)
		w.err = err
	}
}

// list sends the needed pages of a chunk to the goroutines that visit them.
func (w *walk) list(c int, pages chan<- page) error {
	run := &w.m.Snapshot().Chunks[c]
	at := w.m.chunks.at[c]
	if run.Pages > 0 && !w.need(at, run) {
		return nil
	}
	l, err := w.m.list(w.ctx, c)
	if err != nil {
		return err
	}
	for i := range l.pages {
		p := page{l.pages[i], at + l.at[i]}
		if p.start >= w.to || p.start+p.Rows <= w.from || !w.goesOn(p.start) || !w.need(p.start, &p.Chunk) {
			continue
		}
		pages <- p
	}
	return nil
}

// page reads and visits a page.
func (w *walk) page(p page) error {
	e, err := w.m.page(w.ctx, p.Chunk, p.start)
	if err != nil {
		return err
	}
	defer e.release()
	return w.visit(w.ctx, p.start, e.page)
}

// starts says where runs of rows begin: the first position of each, then the number of rows.
type starts struct {
	at      []int64
	uniform int64 // rows of every run but the last, 0 if they differ
}

// newStarts returns where chunks begin. If all but the last have the same number of rows,
// as chunks of an import have, of needs a division and no search.
func newStarts(chunks []schema.Chunk) starts {
	s := starts{at: make([]int64, 1, len(chunks)+1)}
	for i := range chunks {
		rows := chunks[i].Rows
		switch {
		case i == 0:
			s.uniform = rows
		case s.uniform != 0 && (rows > s.uniform || s.at[i]%s.uniform != 0):
			s.uniform = 0
		}
		s.at = append(s.at, s.at[i]+rows)
	}
	return s
}

// of returns the index of the run that has a position. The position is in range.
func (s *starts) of(pos int64) int {
	if s.uniform != 0 {
		return int(pos / s.uniform)
	}
	return sort.Search(len(s.at), func(i int) bool { return s.at[i] > pos }) - 1
}

// index is the pages of a chunk. It is immutable.
type index struct {
	pages []schema.Chunk
	starts
}

// newIndex returns the index of pages, which the caller must not change afterwards.
func newIndex(pages []schema.Chunk) *index { return &index{pages, newStarts(pages)} }
