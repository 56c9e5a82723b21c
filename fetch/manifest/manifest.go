package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"

	"bowstring/fetch/admission"
	"bowstring/schema"
)

// pagesAtOnce is how many pages one call has on their way at the same time.
const pagesAtOnce = 256

// Manifest is an opened snapshot: its rows, read when they are wanted. It is safe
// for concurrent use.
type Manifest struct {
	cache  *Cache
	name   string // dataset@number
	form   *schema.Form
	chunks starts
	ids    lookup

	// Of a manifest that was read whole.
	whole  bool
	lists  []*entry // by chunk; nil of one that is a page itself
	pages  []*entry
	places starts
	bytes  int64
}

// Open opens a snapshot. One whose manifest is small, and has room, is read whole.
// The caller closes it.
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

// admits counts a manifest of so many bytes in that is to be read whole, if it may. Half
// of the memory is left to those that are not.
func (c *Cache) admits(bytes int64) bool {
	if bytes > c.opts.Resident {
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

// Close lets go of the pages. The caller guarantees that nothing obtained from
// the manifest, batches included, is used afterwards.
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

// Form is what its pages have in common.
func (m *Manifest) Form() *schema.Form { return m.form }

// Snapshot is the snapshot whose rows these are.
func (m *Manifest) Snapshot() *schema.Snapshot { return m.form.Snapshot() }

// Rows is the number of samples.
func (m *Manifest) Rows() int64 { return m.form.Rows() }

// Resident reports whether all rows are in memory.
func (m *Manifest) Resident() bool { return m.whole }

// list returns the pages of a chunk.
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

// someLists returns the pages of n chunks. Of a manifest that is being read whole, the lists are kept.
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

// page returns a page, which begins at start.
func (m *Manifest) page(ctx context.Context, page schema.Chunk, start int64) (*entry, error) {
	e, err := m.cache.acquire(ctx, m.form, page)
	if err != nil {
		return nil, m.lostPage(page, start, err)
	}
	return e, nil
}

func (m *Manifest) lostList(chunk int, err error) error {
	return m.lost(fmt.Sprintf("chunk %d", chunk), err)
}

func (m *Manifest) lostPage(page schema.Chunk, start int64, err error) error {
	return m.lost(fmt.Sprintf("positions %d to %d", start, start+page.Rows-1), err)
}

// lost says what could not be read.
func (m *Manifest) lost(what string, err error) error {
	if errors.Is(err, schema.ErrNotFound) { // a blob that is missing here is lost, not absent
		err = fmt.Errorf("%w: %s", schema.ErrDataLoss, err.Error())
	}
	return m.named(fmt.Errorf("%s: %w", what, err))
}

// named says whose rows could not be read.
func (m *Manifest) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("manifest of %s@%d: %w", m.Snapshot().Dataset, m.Snapshot().Number, err)
}

// Try says where the samples at some positions lie, if they are in memory for as long as
// the manifest is open. Positions are in [0, Rows()).
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

// At says where the samples at some positions lie: in pages that are open as long as the
// manifest is, or in copies, which are the garbage collector's. It reads what is
// not there. Positions are in [0, Rows()), in any order; repeats are allowed.
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

// Visit visits the pages that the samples at some positions lie in, one at a time, in any order. wanted are
// those of the positions that lie in the page, ascending, with repeats; start is its first one. It is open until
// visit is back.
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

// need is a page that rows lie in.
type need struct {
	page     schema.Chunk
	start    int64
	from, to int // which rows, in their order
}

// needs returns the order of positions, as indexes, and the pages that they lie in.
func (m *Manifest) needs(ctx context.Context, positions []int64) (order []int, needs []need, err error) {
	order = make([]int, len(positions))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(positions[a], positions[b]) })
	// upTo is the first row in the order that lies at a position from end on.
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

// gather copies the rows at positions[wanted[...]], ascending, of a page that begins at
// start, and notes where each is.
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

// Start is At in a goroutine of the cache's, which tells done. It returns at once; false
// if the engine is closing.
func (m *Manifest) Start(ctx context.Context, positions []int64, done func([]schema.Row, error)) bool {
	return m.cache.start(func() {
		var rows []schema.Row
		err := m.cache.safely(func() (err error) {
			rows, err = m.At(ctx, positions)
			return err
		})()
		done(rows, err)
	})
}

// Go runs f in a goroutine of the cache's, which it waits for when it is closed. It returns at
// once; false if the engine is closing. A panic in f is an error for done.
func (m *Manifest) Go(f func() error, done func(error)) bool {
	return m.cache.start(func() { done(m.cache.safely(f)()) })
}
