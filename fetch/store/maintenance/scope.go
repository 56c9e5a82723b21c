package maintenance

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// DefaultMemory is what a pass may take for the references that it gathers.
const DefaultMemory = 256 << 20

// Scope is a set of snapshots and selections in a source, and with it the blobs
// that they refer to. Each blob is visited once, even if several of them share it.
//
// The blobs come as lists. The first has the object sets and the manifest chunks, the second the pages of these, the last the bitmaps
// of selections and checksums that were learned. Each between them is one pass over the manifests: it has the blobs
// whose keys fall into one part of the key space, in the order in which the manifests
// first name them, which is about the order in which they were imported. All but
// the last depend on nothing but the snapshots and the number of passes.
type Scope struct {
	Source     store.Store
	Snapshots  []*schema.Snapshot
	Selections []*schema.Selection
	// Proofs are the checksums that were learned of the snapshots' object sets.
	Proofs []Run
	// Memory is what the list of a pass may take in bytes; DefaultMemory if 0.
	Memory int64
}

// itemBytes is the size of an item, and of the reference that is made of it.
const itemBytes = 56 + 48

// item is a reference, and when it came first.
type item struct {
	ref schema.BlobRef
	at  uint64
}

// chunkOf is a manifest chunk with a snapshot that has it.
type chunkOf struct {
	snap  *schema.Snapshot
	index int
}

// pageOf is a page of a chunk.
type pageOf struct {
	chunkOf
	page  schema.Chunk
	start int64 // its first row in the chunk
}

// pages are the pages of a chunk. One without an index is its own page.
func (s *Scope) pages(ctx context.Context, c chunkOf) ([]pageOf, error) {
	list := []schema.Chunk{*c.chunk()}
	if c.chunk().Pages > 0 {
		blob, err := get(ctx, s.Source, c.chunk().BlobRef)
		if err == nil {
			list, err = c.chunk().OpenIndex(blob.Bytes())
			blob.Release()
		}
		if err != nil {
			return nil, fmt.Errorf("index of manifest chunk %d of %s@%d: %w", c.index, c.snap.Dataset, c.snap.Number,
				err)
		}
	}
	pages := make([]pageOf, len(list))
	var start int64
	for i, page := range list {
		pages[i] = pageOf{c, page, start}
		start += page.Rows
	}
	return pages, nil
}

func (c chunkOf) chunk() *schema.Chunk { return &c.snap.Chunks[c.index] }

// chunks are the distinct manifest chunks.
func (s *Scope) chunks() []chunkOf {
	var list []chunkOf
	seen := map[schema.Key]struct{}{}
	for _, snap := range s.Snapshots {
		for i := range snap.Chunks {
			if _, ok := seen[snap.Chunks[i].Key]; !ok {
				seen[snap.Chunks[i].Key] = struct{}{}
				list = append(list, chunkOf{snap, i})
			}
		}
	}
	return list
}

// Size is how many cells the distinct manifest chunks have, and their bytes: at
// least as many blobs as there are.
func (s *Scope) Size() (cells, size int64) {
	for _, c := range s.chunks() {
		cells += c.chunk().Rows * int64(len(c.chunk().BlobBytes))
		size += c.chunk().Size
		if c.chunk().Pages > 0 {
			size += c.chunk().PageBytes
		}
		for _, n := range c.chunk().BlobBytes {
			size += n
		}
	}
	return cells, size
}

// Passes is how many passes the blobs of the scope are gathered in.
func (s *Scope) Passes() int {
	memory := s.Memory
	if memory <= 0 {
		memory = DefaultMemory
	}
	cells, _ := s.Size()
	return int(max(1, (cells*itemBytes+memory-1)/memory))
}

// Sets returns the object sets that hold blobs of the snapshots.
func (s *Scope) Sets() []schema.BlobRef {
	var g gathering
	for _, snap := range s.Snapshots {
		for _, set := range snap.Sets {
			if set.Blob != (schema.BlobRef{}) {
				g.add(set.Blob)
			}
		}
	}
	return g.list()
}

// setsOf returns the object sets that the snapshots name and that are in a store as
// blobs, by their prefixes. If two have the same prefix, either may be returned.
func setsOf(snaps []*schema.Snapshot) map[schema.ObjectPrefix]schema.Key {
	sets := map[schema.ObjectPrefix]schema.Key{}
	for _, snap := range snaps {
		for _, set := range snap.Sets {
			if set.Blob != (schema.BlobRef{}) {
				sets[set.Prefix] = set.Blob.Key
			}
		}
	}
	return sets
}

// prefixOf is the prefix of a key that is an address in an object set.
func prefixOf(key schema.Key) schema.ObjectPrefix {
	return schema.ObjectPrefix(key[:len(schema.ObjectPrefix{})])
}

// Chunks is the list of the manifest chunks: each its index of pages, or its only page.
func (s *Scope) Chunks() []schema.BlobRef {
	var g gathering
	for _, c := range s.chunks() {
		g.add(c.chunk().BlobRef)
	}
	return g.list()
}

// Pages is the list of the pages of the manifest chunks that have an index. Those of a chunk
// that is in without are not known; of any other it is an error that its index cannot be
// read.
func (s *Scope) Pages(ctx context.Context, without map[schema.Key]bool) ([]schema.BlobRef, error) {
	var g gathering
	chunks := s.chunks()
	for _, c := range chunks { // the last page of one snapshot, a chunk, may be in the middle of another
		g.add(c.chunk().BlobRef)
	}
	for _, c := range chunks {
		if c.chunk().Pages == 0 || without[c.chunk().Key] {
			continue
		}
		pages, err := s.pages(ctx, c)
		if err != nil {
			return nil, err
		}
		for _, p := range pages {
			g.add(p.page.BlobRef)
		}
	}
	return g.list()[len(chunks):], nil
}

// Bitmaps is the list of the selections' bitmaps, and of the checksums that were learned.
func (s *Scope) Bitmaps() []schema.BlobRef {
	var g gathering
	for _, sel := range s.Selections {
		g.add(sel.Bitmap)
	}
	for _, run := range s.Proofs {
		g.add(run.BlobRef)
	}
	return g.list()
}

// lists is the number of lists for this many passes.
func lists(passes int) int { return passes + 3 }

// list returns a list by number. Each is to be made when the one before has been visited, and what
// is damaged of it repaired or in without: sets, chunks and pages that are in without are not looked into.
func (s *Scope) list(ctx context.Context, n, passes int, without map[schema.Key]bool) ([]schema.BlobRef, error) {
	switch n {
	case 0:
		return append(s.Sets(), s.Chunks()...), nil
	case 1:
		return s.Pages(ctx, without)
	case passes + 2:
		return s.Bitmaps(), nil
	default:
		return s.Pass(ctx, n-2, passes, without)
	}
}

// chunksAtOnce is how many manifest chunks are read at the same time.
const chunksAtOnce = 8

// Pass gathers the blobs of one pass; n counts passes from 0, and there are of of them.
// Chunks and pages that are in without are left out, and so are blobs of sets in without.
func (s *Scope) Pass(ctx context.Context, n, of int, without map[schema.Key]bool) ([]schema.BlobRef, error) {
	g := gathering{}
	sets := setsOf(s.Snapshots)
	chunks := slices.DeleteFunc(s.chunks(), func(c chunkOf) bool { return without[c.chunk().Key] })
	for group := range slices.Chunk(chunks, chunksAtOnce) {
		parts := make([][]schema.BlobRef, len(group))
		readers, ctx := errgroup.WithContext(ctx)
		for i, c := range group {
			readers.Go(func() error {
				return s.cells(ctx, c, without, func(_ int, _ int64, ref schema.BlobRef) {
					set, ok := sets[prefixOf(ref.Key)]
					if lost := ok && without[set]; passOf(&ref.Key, of) == n && !lost {
						parts[i] = append(parts[i], ref)
					}
				})
			})
		}
		if err := readers.Wait(); err != nil {
			return nil, err
		}
		for _, part := range parts {
			for _, ref := range part {
				g.add(ref)
			}
		}
	}
	return g.list(), nil
}

// passOf is the pass that a key falls into. The end of a key is as good as random
// in hashes, and in addresses that have an id there.
func passOf(k *schema.Key, of int) int {
	hi, _ := bits.Mul64(binary.LittleEndian.Uint64(k[24:]), uint64(of))
	return int(hi)
}

// cells visits the blob cells of a manifest chunk that are not null, except those of
// pages in without. row is counted from the chunk's first.
func (s *Scope) cells(ctx context.Context, c chunkOf, without map[schema.Key]bool,
	visit func(column int, row int64, ref schema.BlobRef)) error {
	return s.eachPage(ctx, c, without, func(p pageOf, m *schema.Manifest) error {
		for col := range schema.BlobFields(c.snap.Schema) {
			for row := range m.Rows() {
				if ref, ok := m.Blob(col, row); ok {
					visit(col, p.start+row, ref)
				}
			}
		}
		return nil
	})
}

// eachPage opens the pages of a chunk that are not in without, one after the other.
func (s *Scope) eachPage(
	ctx context.Context, c chunkOf, without map[schema.Key]bool, visit func(p pageOf, m *schema.Manifest) error,
) error {
	pages, err := s.pages(ctx, c)
	if err != nil {
		return err
	}
	for _, p := range pages {
		if without[p.page.Key] {
			continue
		}
		blob, err := get(ctx, s.Source, p.page.BlobRef)
		if err == nil {
			err = schema.VisitPage(c.snap, p.page, blob, func(m *schema.Manifest) error { return visit(p, m) })
		}
		if err != nil {
			return fmt.Errorf("manifest chunk %d of %s@%d: %w", c.index, c.snap.Dataset, c.snap.Number, err)
		}
	}
	return nil
}

// gathering collects references, each once.
type gathering struct {
	items   []item
	settled int // the first settled items were distinct when they were last sorted
	next    uint64
}

func (g *gathering) add(ref schema.BlobRef) {
	g.items = append(g.items, item{ref, g.next})
	g.next++
	// Snapshots of a dataset share most of their blobs.
	if len(g.items) > 2*g.settled+1<<16 {
		g.settle()
	}
}

// settle leaves of each key the item that came first.
func (g *gathering) settle() {
	slices.SortFunc(g.items, func(a, b item) int {
		if c := bytes.Compare(a.ref.Key[:], b.ref.Key[:]); c != 0 {
			return c
		}
		return cmp.Compare(a.at, b.at)
	})
	g.items = slices.CompactFunc(g.items, func(a, b item) bool { return a.ref.Key == b.ref.Key })
	g.settled = len(g.items)
}

// list returns what was gathered in the order in which it came.
func (g *gathering) list() []schema.BlobRef {
	g.settle()
	slices.SortFunc(g.items, func(a, b item) int { return cmp.Compare(a.at, b.at) })
	refs := make([]schema.BlobRef, len(g.items))
	for i := range g.items {
		refs[i] = g.items[i].ref
	}
	return refs
}

// Attached is how blobs that are cells of other programs' tables, or are stored in
// buckets, are copied.
type Attached string

const (
	// ByValue reads the blobs and stores their bytes under the hashes of their content, with manifests that
	// say so: the copy needs the tables and buckets no more. It is the default.
	ByValue Attached = "value"
	// ByReference copies manifests and object sets as they are. From or to a store in a
	// bucket, where all keys except those of attached objects differ, they are made anew.
	// The target has to reach the same tables, through which each cell is read once and
	// compared. Blobs in buckets are not read: a verification of the copy does that.
	ByReference Attached = "reference"
)

// attachment says which manifest chunks of a scope have attached blobs, and in which
// tables.
type attachment struct {
	chunks map[schema.Key]bool
	tables []store.AttachedTable // sorted, each once
}

var errEnough = errors.New("no further page is needed")

// attached checks the first cell of each blob column of each chunk that is not null: a
// chunk is made by one import, or by one attachment of tables, and its columns have no
// cells of two kinds. For a snapshot that names object sets it checks cells until it
// finds an attached one.
func (s *Scope) attached(ctx context.Context) (attachment, error) {
	a := attachment{chunks: map[schema.Key]bool{}}
	if !s.Source.Traits().Addresses && len(s.Sets()) == 0 {
		return a, nil
	}
	sets := setsOf(s.Snapshots)
	var mu sync.Mutex
	readers, ctx := errgroup.WithContext(ctx)
	readers.SetLimit(chunksAtOnce)
	for _, c := range s.chunks() {
		readers.Go(func() error {
			seen := map[int]bool{}
			columns, mixed := len(schema.BlobFields(c.snap.Schema)), len(c.snap.Sets) > 0
			err := s.eachPage(ctx, c, nil, func(_ pageOf, m *schema.Manifest) error {
				for col := range columns {
					for row := int64(0); row < m.Rows() && !seen[col]; row++ {
						ref, ok := m.Blob(col, row)
						if !ok {
							continue
						}
						table, ok := s.Source.Addressed(ref.Key)
						_, inBucket := sets[prefixOf(ref.Key)]
						ok = ok || inBucket
						seen[col] = ok || !mixed
						if ok {
							mu.Lock()
							a.chunks[c.chunk().Key] = true
							if table != (store.AttachedTable{}) && !slices.Contains(a.tables, table) {
								a.tables = append(a.tables, table)
							}
							mu.Unlock()
						}
					}
				}
				for col := range columns {
					if !seen[col] {
						return nil
					}
				}
				return errEnough
			})
			if errors.Is(err, errEnough) {
				return nil
			}
			return err
		})
	}
	err := readers.Wait()
	slices.SortFunc(a.tables, store.AttachedTable.Compare)
	return a, err
}

// sameButAttached reports whether made is a copy of from: all is the same, except that
// manifest chunks with attached blobs have other bytes. It names the same object sets, or
// none.
func sameButAttached(made, from *schema.Snapshot, a attachment) (bool, error) {
	if len(a.chunks) == 0 && len(from.Sets) == 0 || len(made.Chunks) != len(from.Chunks) {
		return false, nil
	}
	if len(objectSets(made.Sets)) > 0 && !sameSets(made.Sets, from.Sets) {
		return false, nil
	}
	x, y := *made, *from
	x.Sets, y.Sets = nil, nil
	x.Chunks, y.Chunks = slices.Clone(made.Chunks), slices.Clone(from.Chunks)
	for i := range y.Chunks {
		if a.chunks[y.Chunks[i].Key] {
			x.Chunks[i].BlobRef, y.Chunks[i].BlobRef = schema.BlobRef{}, schema.BlobRef{}
			x.Chunks[i].PageBytes, y.Chunks[i].PageBytes = 0, 0
		}
	}
	return equal(&x, &y)
}
