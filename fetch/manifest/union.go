package manifest

import (
	"context"
	"sort"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"bowstring/schema"
)

// Reader reads the rows of a job: those of a [Manifest], or of several manifests as a
// [Union]. The methods are described there.
type Reader interface {
	Form() *schema.Form
	Snapshot() *schema.Snapshot
	Rows() int64
	Resident() bool
	Try(positions []int64) ([]schema.Row, bool)
	Peek(pos int64, visit func(start int64, p *schema.Page)) bool
	At(ctx context.Context, positions []int64) ([]schema.Row, error)
	Start(ctx context.Context, positions []int64, done func([]schema.Row, error)) bool
	Go(f func() error, done func(error)) bool
	Prefetch(ctx context.Context, positions []int64)
}

var (
	_ Reader = (*Manifest)(nil)
	_ Reader = (*Union)(nil)
)

// Union is several manifests in one space of positions: the rows of each follow those of
// the manifest before it. All rows have the columns of the union's form. A union is valid
// as long as its manifests are open. It owns nothing of them and needs no Close. It is
// safe for concurrent use.
type Union struct {
	form  *schema.Form
	parts []*Manifest
	base  []int64 // first position of each part, then the number of all rows
	whole bool    // all parts are in memory
	// adopted are pages with the columns of the form, by part and page. They are made on
	// demand, for parts in memory whose own columns differ; nil for other parts.
	adopted [][]atomic.Pointer[schema.Page]
}

// NewUnion returns the rows of manifests, in the order of form, which [schema.NewUnion]
// made of their forms. The caller closes the manifests, after the union's last use.
func NewUnion(form *schema.Form, parts []*Manifest) *Union {
	u := &Union{form: form, parts: parts, base: make([]int64, 1, len(parts)+1), whole: true,
		adopted: make([][]atomic.Pointer[schema.Page], len(parts))}
	for i, m := range parts {
		u.base = append(u.base, u.base[i]+m.Rows())
		u.whole = u.whole && m.whole
		if m.whole && form.Adopts(i) {
			u.adopted[i] = make([]atomic.Pointer[schema.Page], len(m.pages))
		}
	}
	return u
}

// Form is the form of all rows.
func (u *Union) Form() *schema.Form { return u.form }

// Snapshot is the snapshot of the form: one that stands for all parts together.
func (u *Union) Snapshot() *schema.Snapshot { return u.form.Snapshot() }

// Rows is the number of samples.
func (u *Union) Rows() int64 { return u.base[len(u.parts)] }

// Resident reports whether all rows are in memory.
func (u *Union) Resident() bool { return u.whole }

// part returns the index of the manifest that has a position.
func (u *Union) part(pos int64) int {
	return sort.Search(len(u.parts), func(i int) bool { return u.base[i+1] > pos })
}

// row returns the row at a position of a part whose manifest is in memory.
func (u *Union) row(part int, pos int64) schema.Row {
	m := u.parts[part]
	n := m.places.of(pos)
	p, at := m.pages[n].page, int(pos-m.places.at[n])
	if u.adopted[part] == nil {
		return schema.Row{Page: p, At: at}
	}
	made := &u.adopted[part][n]
	q := made.Load()
	if q == nil {
		q = u.form.Adopt(part, p)
		if !made.CompareAndSwap(nil, q) {
			q = made.Load() // another goroutine was faster; batches compare pages by address, so there is one
		}
	}
	return schema.Row{Page: q, At: at}
}

// Try returns the rows at some positions, if they are in memory for as long as the
// manifests are open.
func (u *Union) Try(positions []int64) ([]schema.Row, bool) {
	rows := make([]schema.Row, len(positions))
	for i, pos := range positions {
		part := u.part(pos)
		if !u.parts[part].whole {
			return nil, false
		}
		rows[i] = u.row(part, pos-u.base[part])
	}
	return rows, true
}

// Peek visits the page of the sample at a position, if it is in memory: see
// [Manifest.Peek].
func (u *Union) Peek(pos int64, visit func(start int64, p *schema.Page)) bool {
	part := u.part(pos)
	return u.parts[part].Peek(pos-u.base[part], func(start int64, p *schema.Page) {
		visit(u.base[part]+start, u.form.Adopt(part, p))
	})
}

// some are those of a call's positions that belong to one manifest.
type some struct {
	part  int
	where []int        // their indexes in the call's positions
	at    []int64      // their positions in the manifest
	rows  []schema.Row // the results, in the order of at
	// The pages that they are in: see [Manifest.needs].
	order []int // as [Manifest.needs] has it, as are needs
	needs []need
}

// split groups positions by manifest. whole are the groups of manifests in memory, others
// the rest.
func (u *Union) split(positions []int64) (whole, others []*some) {
	byPart := make([]*some, len(u.parts))
	for i, pos := range positions {
		part := u.part(pos)
		s := byPart[part]
		if s == nil {
			s = &some{part: part}
			byPart[part] = s
			if u.parts[part].whole {
				whole = append(whole, s)
			} else {
				others = append(others, s)
			}
		}
		s.where, s.at = append(s.where, i), append(s.at, pos-u.base[part])
	}
	return whole, others
}

// At returns the rows at some positions: see [Manifest.At]. Pages of all manifests are
// read concurrently.
func (u *Union) At(ctx context.Context, positions []int64) ([]schema.Row, error) {
	rows := make([]schema.Row, len(positions))
	whole, others := u.split(positions)
	for _, s := range whole {
		for i, pos := range s.at {
			rows[s.where[i]] = u.row(s.part, pos)
		}
	}
	if len(others) == 0 {
		return rows, nil
	}
	g, all := errgroup.WithContext(ctx)
	for _, s := range others {
		g.Go(func() (err error) {
			s.rows = make([]schema.Row, len(s.at))
			s.order, s.needs, err = u.parts[s.part].needs(all, s.at)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	type pageOf struct {
		*some
		*need
	}
	var pages []pageOf
	for _, s := range others {
		for i := range s.needs {
			pages = append(pages, pageOf{s, &s.needs[i]})
		}
	}
	gathered := u.form.NewGathering()
	cache := u.parts[0].cache
	err := cache.safely(func() error {
		return cache.each(ctx, nil, wants{
			n: len(pages), chunk: func(i int) schema.Chunk { return pages[i].page },
			form:  func(i int) *schema.Form { return u.parts[pages[i].part].form },
			place: func(i int) Place { return Place{u.parts[pages[i].part].name, pages[i].start} },
			visit: func(i int, e *entry) error {
				p := pages[i]
				return u.parts[p.part].named(gather(gathered, u.form.Adopt(p.part, e.page), p.start, p.at,
					p.order[p.from:p.to], p.rows))
			},
			lost: func(i int, err error) error {
				return u.parts[pages[i].part].lostPage(pages[i].page, pages[i].start, err)
			},
		})
	})()
	if err != nil {
		return nil, err
	}
	page := gathered.Page()
	for _, s := range others {
		for i, at := range s.where {
			rows[at] = schema.Row{Page: page, At: s.rows[i].At}
		}
	}
	return rows, nil
}

// Start runs At in a goroutine of the cache: see [Manifest.Start].
func (u *Union) Start(ctx context.Context, positions []int64, done func([]schema.Row, error)) bool {
	return startAt(ctx, u.parts[0].cache, u.At, positions, done)
}

// startAt runs at in a goroutine of the cache, and then done; false if the cache is
// closed.
func startAt(ctx context.Context, c *Cache, at func(context.Context, []int64) ([]schema.Row, error), positions []int64,
	done func([]schema.Row, error)) bool {
	return c.start(func() {
		var rows []schema.Row
		err := c.safely(func() (err error) {
			rows, err = at(ctx, positions)
			return err
		})()
		done(rows, err)
	})
}

// Go runs f in a goroutine of the cache: see [Manifest.Go].
func (u *Union) Go(f func() error, done func(error)) bool { return u.parts[0].Go(f, done) }

// Prefetch begins to read the pages of the samples at some positions: see
// [Manifest.Prefetch].
func (u *Union) Prefetch(ctx context.Context, positions []int64) {
	_, others := u.split(positions)
	for _, s := range others {
		u.parts[s.part].Prefetch(ctx, s.at)
	}
}
