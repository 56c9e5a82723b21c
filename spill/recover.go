package spill

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// recover reads the index and opens the segments that it names. It does not read blobs: what an index tells that is
// older than the segments are, as after a crash, is found out when it is read.
func (c *Cache) recover() (err error) {
	if c.index, err = openIndex(c.path(indexDir), c.opts.fs, c.opts.Logger); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.index.close(false))
		}
	}()
	sizes, next, err := c.segmentFiles()
	if err != nil {
		return err
	}
	clean, err := c.index.load(
		c.named.recovered,
		func(key *schema.Key, value *[entrySize]byte) {
			var s slot
			decodeEntry(value, &s)
			next = max(next, s.segment+1)
			if l := s.location(); l.Offset < 2*segment.HeaderSize || l.Offset+l.Length > sizes[s.segment] {
				c.index.note(change{key: *key, remove: true})
				return
			}
			_, to := c.table.add(key, live)
			decodeEntry(value, to)
		})
	if err != nil {
		return err
	}
	if err := c.attach(sizes, &next, clean); err != nil {
		return err
	}
	for i := range c.table.slots {
		if s := c.table.at(uint32(i)); s.state == live {
			c.set(s.dataset).enter(s)
		}
	}
	return nil
}

// segmentFiles returns the sizes of the segments that there are, and a number above all of them.
func (c *Cache) segmentFiles() (sizes map[uint32]int64, next uint32, err error) {
	ids, err := segment.List(c.path(blobsDir))
	if err != nil {
		return nil, 0, err
	}
	sizes = make(map[uint32]int64, len(ids))
	for _, id := range ids {
		st, err := os.Stat(filepath.Join(c.path(blobsDir), segment.FileName(id)))
		if err != nil {
			return nil, 0, err
		}
		sizes[id] = st.Size()
		next = max(next, id+1)
	}
	return sizes, next, nil
}

// attach opens the segments in which there is something, and removes the others. After a crash it also finds out which
// blocks they have, and gives back those that no blob lies in.
func (c *Cache) attach(sizes map[uint32]int64, next *uint32, clean bool) (err error) {
	sp := &c.space
	sp.blocks, sp.current = map[uint32]*blocks{}, noSegment
	sp.free, sp.keep, sp.failed = c.opts.free, c.opts.KeepFree, c.notGivenBack
	sp.budget.Store(c.opts.Bytes)
	sp.held.Store(fixedOverhead)
	if c.opts.Model == nil {
		if sp.dir, err = os.Open(c.opts.Dir); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil && sp.dir != nil {
			err = errors.Join(err, sp.dir.Close())
		}
	}()
	sp.set = segment.NewSet(c.path(blobsDir), segment.Options{
		MaxBytes: c.opts.SegmentBytes, Direct: true, KeepFree: c.opts.KeepFree, Free: c.opts.free, Fault: c.opts.fault,
		Model: c.opts.Model, NoSync: true,
		Ahead: min(segment.Blocks(c.opts.Bytes/256), 16<<20), Grow: sp.grow,
		NewID: func() (uint32, error) { // never called twice at once
			if *next == noSegment {
				return 0, fmt.Errorf("%w: segment numbers", schema.ErrLimit)
			}
			*next++
			return *next - 1, nil
		},
	})
	defer func() {
		if err != nil {
			sp.set.Close()
		}
	}()

	// The slots of each segment, their offsets in the upper halves so that they can be sorted where they are.
	within := map[uint32][]uint64{}
	for i := range c.table.slots {
		s := c.table.at(uint32(i))
		within[s.segment] = append(within[s.segment], uint64(s.offset)<<32|uint64(i))
	}
	for id, size := range sizes {
		path := filepath.Join(c.path(blobsDir), segment.FileName(id))
		g := (*segment.Segment)(nil)
		if within[id] != nil {
			if g, err = sp.set.Attach(id, size, 0, false); err != nil {
				c.opts.Logger.Warn("a segment of the spill cannot be read and is removed", "error", err)
			}
		}
		if g == nil {
			for _, i := range within[id] {
				c.forget(uint32(i))
			}
			if err := os.Remove(path); err != nil {
				return err
			}
			continue
		}
		held := g.Elsewhere()
		if err := c.survey(g, path, within[id], clean, held); err != nil {
			return err
		}
		if held {
			c.pinElsewhere(g, within[id])
		}
		if sp.blocks[id].live == 0 {
			if err := sp.retire(id); err != nil {
				return err
			}
		}
	}
	return nil
}

// forget takes a blob off the table that is not there any more.
func (c *Cache) forget(i uint32) {
	s := c.table.at(i)
	c.index.note(change{key: s.key, remove: true})
	c.table.take(s)
	c.table.free(i)
}

// survey counts the blocks of a segment. If the cache was not closed in order it also forgets blobs in blocks that were
// given back already, and gives back blocks in which there is no blob, but not where somebody else reads the segment.
func (c *Cache) survey(g *segment.Segment, path string, slots []uint64, clean, elsewhere bool) error {
	sp := &c.space
	b := &blocks{users: []uint8{1}}
	sp.blocks[g.ID()] = b
	sp.files.Store(int64(len(sp.blocks)))
	var runs []run
	if !clean {
		slices.Sort(slots)
		if err := g.DataRuns(func(from, to int64) bool {
			runs = append(runs, run{from, segment.Blocks(to)})
			return true
		}); err != nil {
			return err
		}
	}
	rest := runs
	for _, k := range slots {
		i := uint32(k)
		l := c.table.at(i).location()
		if !clean {
			first, last := blocksOf(l)
			for len(rest) > 0 && rest[0].to <= first*segment.Block {
				rest = rest[1:]
			}
			if len(rest) == 0 || rest[0].from > first*segment.Block || rest[0].to < (last+1)*segment.Block {
				c.forget(i)
				continue
			}
		}
		sp.use(l)
		sp.held.Add(overhead)
	}
	used := int64(0)
	for _, n := range b.users {
		if n > 0 {
			used += segment.Block
		}
	}
	if !clean {
		c.elsewhere.unswept = c.elsewhere.unswept || elsewhere
		if err := g.Cut(); err != nil {
			return err
		}
		for _, r := range runs {
			if elsewhere {
				break
			}
			if err := c.punchUnused(g, b, r); err != nil {
				return err
			}
		}
	}
	held, err := allocated(path)
	if err == nil && !clean && !elsewhere && held > used {
		// Space that was taken and never written is a hole to look at, and is not.
		err = c.punchUnused(g, b, run{0, g.Allocated()})
		if err == nil {
			held, err = allocated(path)
		}
	}
	if err != nil {
		return err
	}
	held = max(held, used)
	b.punched = g.Allocated() - held
	sp.held.Add(held)
	return nil
}

// run is a stretch of a file.
type run struct{ from, to int64 }

// punchUnused gives back the blocks of a run that no blob lies in.
func (c *Cache) punchUnused(g *segment.Segment, b *blocks, r run) error {
	used := func(at int64) bool { i := at / segment.Block; return i < int64(len(b.users)) && b.users[i] > 0 }
	for from := r.from; from < r.to; {
		to := from
		for to < r.to && !used(to) {
			to += segment.Block
		}
		if to > from && !c.space.wholeOnly.Load() {
			switch err := g.Punch(from, to); {
			case errors.Is(err, errors.ErrUnsupported):
				c.space.wholeOnly.Store(true)
			case err != nil:
				return err
			}
		}
		for from = to; from < r.to && used(from); {
			from += segment.Block
		}
	}
	return nil
}

// allocated is what the file system holds of a file.
func allocated(path string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, err
	}
	return segment.Blocks(st.Blocks * 512), nil
}
