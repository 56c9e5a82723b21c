package maintenance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// CopyOptions tunes Copy.
type CopyOptions struct {
	// Rate is how many bytes a second are sent at most; 0 for no limit.
	Rate int64
	// Workers is how many blobs are under way at once; 32 if 0.
	Workers int
	// Memory is that of Scope.
	Memory int64
	// Selections also copies the selections of the snapshots.
	Selections bool
	// Numbers also has each dataset that is copied whole give out no number that it has given
	// out in the source.
	Numbers bool
	// MoveTags has tags that the target has for other snapshots name the copies. Otherwise they stay.
	MoveTags bool
	// LeaveDropped leaves out snapshots that the target does not have though it has given out their numbers.
	// Otherwise one of them is a conflict.
	LeaveDropped bool
	// Renumber commits each snapshot as the next one of its dataset, in place of under its own number.
	Renumber bool
	// Attached is how cells of other programs' tables, and blobs in buckets, are copied;
	// ByValue if empty. To copy by reference, the target has to be able to reach the
	// tables.
	Attached Attached
	// Progress, if not nil, is called after each blob, never twice at once.
	Progress func(Copied)
}

// Copied is what Copy has done so far.
type Copied struct {
	Snapshots []CopiedSnapshot `json:"snapshots"`
	// Blobs were examined. Sent is the number that the target lacked and got.
	Blobs     int64 `json:"blobs"`
	Bytes     int64 `json:"bytes"`
	Sent      int64 `json:"sent"`
	SentBytes int64 `json:"sent_bytes"`
	// OfBytes is what there is to be seen to, at most.
	OfBytes    int64 `json:"of_bytes"`
	Selections int64 `json:"selections"`
	// Tags were set in the target. KeptTags it has for other snapshots, and were left.
	Tags     int64     `json:"tags"`
	KeptTags []KeptTag `json:"kept_tags,omitempty"`
}

// KeptTag is a tag that the target has for another snapshot than the copy of the source's.
type KeptTag struct {
	Dataset  string `json:"dataset"`
	Tag      string `json:"tag"`
	Snapshot int64  `json:"snapshot"`
	Copied   int64  `json:"copied"`
}

// CopiedSnapshot is a snapshot that is in the target now.
type CopiedSnapshot struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
	// As is its number in the target, 0 if it is not there.
	As   int64 `json:"as"`
	Rows int64 `json:"rows"`
	// There: it was there before.
	There bool `json:"there"`
	// Dropped: the target has given out its number and does not have it, and it was left out.
	Dropped bool `json:"dropped,omitempty"`
}

// copier is one run of Copy.
type copier struct {
	from, to store.Store
	opts     CopyOptions
	pool     *pool
	pace     pace

	attached attachment
	inSets   map[schema.ObjectPrefix]schema.Key // of the snapshots to be copied
	made     map[schema.Key]schema.Chunk        // in the target, of chunks that were made anew, by the keys of those
	madeSets map[schema.Key]schema.BlobRef      // in the target, of object sets that have other keys there, by those in the source
	as       map[Name]int64                     // numbers of snapshots in the target

	mu   sync.Mutex
	done Copied
}

// Copy copies snapshots into a store, in the order given, which should be that of their
// numbers: ids, manifests, keys and rows are the same there. Each blob is checked on its
// way. The tags of the snapshots are copied too. Blobs that the target has already are
// not sent, so a stopped copy continues where it was when it is made again.
//
// A snapshot that the target has already is left as it is; where snapshots get numbers of
// their own, those that the target's newest are copies of. A schema.ErrConflict says that
// it has another one of that number, or has given out greater ones.
func Copy(ctx context.Context, from, to store.Store, snaps []*schema.Snapshot, opts CopyOptions) (Copied, error) {
	c := &copier{
		from: from, to: to, opts: opts, pool: newPool(opts.Workers), pace: newPace(opts.Rate),
		made: map[schema.Key]schema.Chunk{}, madeSets: map[schema.Key]schema.BlobRef{}, as: map[Name]int64{},
	}
	if err := c.attach(ctx, snaps); err != nil {
		return c.done, err
	}
	missing, err := c.missing(ctx, snaps)
	if err != nil {
		return c.done, err
	}
	for _, snap := range missing {
		scope := Scope{Source: from, Snapshots: []*schema.Snapshot{snap}}
		_, size := scope.Size()
		c.done.OfBytes += size
	}
	for _, snap := range snaps {
		if slices.Contains(missing, snap) {
			if err := c.snapshot(ctx, snap); err != nil {
				return c.done, fmt.Errorf("copy %s@%d: %w", snap.Dataset, snap.Number, err)
			}
		}
		if _, there := c.as[nameOf(snap)]; there && opts.Selections {
			if err := c.selections(ctx, snap); err != nil {
				return c.done, fmt.Errorf("copy the selections of %s@%d: %w", snap.Dataset, snap.Number, err)
			}
		}
	}
	for _, snap := range snaps {
		if _, there := c.as[nameOf(snap)]; there {
			if err := c.proofs(ctx, snap); err != nil {
				return c.done, fmt.Errorf("copy what was learned of %s@%d: %w", snap.Dataset, snap.Number, err)
			}
		}
	}
	if err := c.numbering(ctx); err != nil {
		return c.done, fmt.Errorf("copy the tags: %w", err)
	}
	return c.done, nil
}

// attach finds out what of the snapshots is attached, and has the target know the tables if these are
// to be referred to.
func (c *copier) attach(ctx context.Context, snaps []*schema.Snapshot) (err error) {
	scope := Scope{Source: c.from, Snapshots: snaps}
	c.inSets = setsOf(snaps)
	if c.attached, err = scope.attached(ctx); err != nil {
		return err
	}
	if c.packed() {
		for _, of := range scope.chunks() {
			c.attached.chunks[of.chunk().Key] = true
		}
	}
	if len(c.attached.tables) == 0 || c.opts.Attached != ByReference {
		return nil
	}
	return c.to.Refer(ctx, c.attached.tables)
}

// packed reports whether one of the stores keeps blobs in segments: then the same blob
// has other keys in the two, and all manifests are made anew. Only extents of attached
// objects keep their keys, which say where the bytes are.
func (c *copier) packed() bool { return c.from.Traits().Segments || c.to.Traits().Segments }

// missing finds out which of the snapshots are to be copied, and notes what becomes of the others.
func (c *copier) missing(ctx context.Context, snaps []*schema.Snapshot) (missing []*schema.Snapshot, err error) {
	if c.opts.Renumber {
		if err := c.renumbered(ctx, snaps); err != nil {
			return nil, err
		}
	}
	for _, snap := range snaps {
		_, made := c.as[nameOf(snap)]
		if !made && !c.opts.Renumber {
			state, err := c.standing(ctx, snap)
			if state == givenOut && c.opts.LeaveDropped {
				c.note(snap, CopiedSnapshot{Dropped: true})
				continue
			} else if err != nil {
				return nil, err
			}
			if made = state == there; made {
				c.as[nameOf(snap)] = snap.Number
			}
		}
		if made {
			c.note(snap, CopiedSnapshot{There: true})
		} else {
			missing = append(missing, snap)
		}
	}
	return missing, nil
}

// note adds a snapshot to what is reported.
func (c *copier) note(snap *schema.Snapshot, s CopiedSnapshot) {
	s.Dataset, s.Snapshot, s.As, s.Rows = snap.Dataset, snap.Number, c.as[nameOf(snap)], snap.Rows()
	c.done.Snapshots = append(c.done.Snapshots, s)
}

// standing is what the target has of a snapshot.
type standing int

const (
	absent   standing = iota
	there             // as it is in the source
	givenOut          // it is not there, and its number was given out: a schema.ErrConflict
)

// standing finds out what the target has of a snapshot.
func (c *copier) standing(ctx context.Context, snap *schema.Snapshot) (standing, error) {
	const advice = "drop what is there, take another store, or copy it as the next snapshot with --renumber"
	old, err := c.to.Snapshot(ctx, snap.Dataset, snap.Number)
	switch {
	case err == nil:
		same, err := equal(old, snap)
		if err == nil && !same {
			same, err = sameButAttached(old, snap, c.attached)
		}
		if same {
			c.keepChunks(old, snap)
			return there, nil
		} else if err != nil {
			return absent, err
		}
		return absent, fmt.Errorf("%w: the target has another snapshot %s@%d, of %d rows from %s: %s",
			schema.ErrConflict, snap.Dataset, snap.Number, old.Rows(), schema.Quote(old.Source), advice)
	case !errors.Is(err, schema.ErrNotFound):
		return absent, err
	}
	switch err := c.to.Restorable(ctx, snap); {
	case errors.Is(err, schema.ErrConflict):
		return givenOut, fmt.Errorf("%w: %s", err, advice)
	case err != nil:
		return absent, fmt.Errorf("%w: %s", err, advice)
	}
	return absent, nil
}

// equal compares snapshots as stores record them.
func equal(a, b *schema.Snapshot) (bool, error) {
	x, err := json.Marshal(a)
	if err != nil {
		return false, err
	}
	y, err := json.Marshal(b)
	return bytes.Equal(x, y), err
}

// keepChunks remembers which chunks of a snapshot in the target are which of the source's.
func (c *copier) keepChunks(made, from *schema.Snapshot) {
	if wanted := c.sets(from); c.packed() {
		sets := objectSets(made.Sets)
		if !sameSets(sets, wanted) { // it was copied the other way: its chunks name blobs for extents, or extents for blobs
			for _, chunk := range from.Chunks {
				delete(c.made, chunk.Key)
			}
			return
		}
		for i, set := range sets {
			c.madeSets[wanted[i].Blob.Key] = set.Blob
		}
	}
	for i, chunk := range from.Chunks {
		if c.attached.chunks[chunk.Key] {
			c.made[chunk.Key] = made.Chunks[i]
		}
	}
}

// renumbered finds what a copy that was stopped has made already: of each dataset, as many of the first
// snapshots as the newest of the target are copies of, in that order. It notes the numbers that they have there.
// Older ones of the same content are none of this copy's: to make one the newest again is what it may be for.
func (c *copier) renumbered(ctx context.Context, snaps []*schema.Snapshot) error {
	there, err := c.to.Datasets(ctx)
	if err != nil {
		return err
	}
	of := map[string][]*schema.Snapshot{}
	for _, snap := range snaps {
		of[snap.Dataset] = append(of[snap.Dataset], snap)
	}
	for _, d := range there {
		wanted := of[d.Name]
		var newest []Name
		for _, number := range d.Snapshots[max(0, len(d.Snapshots)-len(wanted)):] {
			newest = append(newest, Name{Dataset: d.Name, Number: number})
		}
		made, err := readSnapshots(ctx, c.to, newest, nil)
		if err != nil {
			return err
		}
		for ; len(made) > 0; made = made[1:] {
			same, err := c.copies(made, wanted[:len(made)])
			if err != nil {
				return err
			}
			if same {
				for i, snap := range made {
					c.as[nameOf(wanted[i])] = snap.Number
				}
				break
			}
		}
	}
	return nil
}

// copies says whether snapshots have the content of others, whatever their numbers.
func (c *copier) copies(made, from []*schema.Snapshot) (bool, error) {
	for i := range made {
		x, y := *made[i], *from[i]
		for _, snap := range []*schema.Snapshot{&x, &y} {
			snap.Number, snap.Parent, snap.Created = 0, 0, time.Time{}
		}
		same, err := equal(&x, &y)
		if err == nil && !same {
			same, err = sameButAttached(&x, &y, c.attached)
		}
		if !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

// snapshot copies one snapshot.
func (c *copier) snapshot(ctx context.Context, snap *schema.Snapshot) error {
	as, err := c.commit(ctx, snap)
	was := false
	if errors.Is(err, schema.ErrConflict) && !c.opts.Renumber {
		// Another copy of the same may have been made at the same time.
		if state, _ := c.standing(ctx, snap); state == there {
			as, was, err = snap.Number, true, nil
		}
	}
	if err != nil {
		return err
	}
	c.as[nameOf(snap)] = as
	c.note(snap, CopiedSnapshot{There: was})
	return nil
}

// commit copies a snapshot with all that it refers to, and returns its number in the target.
func (c *copier) commit(ctx context.Context, snap *schema.Snapshot) (number int64, err error) {
	in, err := c.to.Begin(ctx, snap.Dataset)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if snap, err = c.blobs(ctx, in, snap); err != nil {
		return 0, err
	}
	if !c.opts.Renumber {
		return snap.Number, in.Restore(ctx, *snap)
	}
	next := *snap
	next.Number, next.Parent = 0, 0
	if newest, err := c.to.Snapshot(ctx, snap.Dataset, 0); err == nil {
		next.Parent = newest.Number
	} else if !errors.Is(err, schema.ErrNotFound) {
		return 0, err
	}
	made, err := in.Commit(ctx, next)
	if err != nil {
		return 0, err
	}
	return made.Number, nil
}

// blobs ensures that the target has all blobs of a snapshot, and returns the snapshot as
// it is there. Attached cells that were copied with an earlier snapshot are not read from
// their tables again, but are added to this ingest where they are stored: the earlier
// snapshot may be dropped at any time.
func (c *copier) blobs(ctx context.Context, in store.Ingest, snap *schema.Snapshot) (*schema.Snapshot, error) {
	known, rest := *snap, *snap
	known.Chunks, rest.Chunks = nil, nil
	known.Sets, rest.Sets = nil, c.sets(snap) // all are the rest's: the snapshot before may have named others
	for _, chunk := range snap.Chunks {
		if made, ok := c.made[chunk.Key]; ok {
			known.Chunks = append(known.Chunks, made)
		} else {
			rest.Chunks = append(rest.Chunks, chunk)
		}
	}
	if !c.to.Traits().Segments && len(known.Chunks) > 0 {
		there := Scope{Source: c.to, Snapshots: []*schema.Snapshot{&known}, Memory: c.opts.Memory}
		if _, err := c.transfer(ctx, in, there); err != nil {
			return nil, err
		}
	}
	made, err := c.transfer(ctx, in, Scope{Source: c.from, Snapshots: []*schema.Snapshot{&rest}, Memory: c.opts.Memory})
	if err != nil {
		return nil, err
	}
	next := *snap
	next.Chunks, next.Sets = slices.Clone(snap.Chunks), made[0].Sets
	if c.to.Traits().Segments {
		// They are in segments that a present snapshot names. If it is dropped before
		// this one is committed, the commit fails.
		carry := func(key schema.Key) {
			if set := (schema.SetRef{Prefix: prefixOf(key)}); !slices.Contains(next.Sets, set) {
				next.Sets = append(next.Sets, set)
			}
		}
		for _, chunk := range known.Chunks {
			carry(chunk.Key)
		}
		for _, set := range objectSets(next.Sets) {
			carry(set.Blob.Key)
		}
	}
	at := 0
	for i, chunk := range snap.Chunks {
		if made, ok := c.made[chunk.Key]; ok {
			next.Chunks[i] = made
			continue
		}
		next.Chunks[i] = made[0].Chunks[at]
		at++
	}
	c.keepChunks(&next, snap)
	return &next, nil
}

// sets returns the object sets that the copy of a snapshot names: none if all its blobs
// are stored in the target.
func (c *copier) sets(snap *schema.Snapshot) []schema.SetRef {
	if c.opts.Attached != ByReference {
		return nil
	}
	return objectSets(snap.Sets)
}

// objectSets are those of sets that are of objects elsewhere: any other is of the store itself.
func objectSets(sets []schema.SetRef) []schema.SetRef {
	return slices.DeleteFunc(slices.Clone(sets), func(set schema.SetRef) bool { return set.Blob == (schema.BlobRef{}) })
}

// sameSets says whether object sets are the same, under whatever keys.
func sameSets(a, b []schema.SetRef) bool {
	bare := func(sets []schema.SetRef) []schema.SetRef {
		sets = objectSets(sets)
		for i := range sets {
			sets[i].Blob.Key = schema.Key{}
		}
		return sets
	}
	return slices.Equal(bare(a), bare(b))
}

// selections copies those of a snapshot, which has another number in the target perhaps.
func (c *copier) selections(ctx context.Context, snap *schema.Snapshot) (err error) {
	list, err := Selections(ctx, c.from, []*schema.Snapshot{snap})
	if err != nil || len(list) == 0 {
		return err
	}
	in, err := c.to.Begin(ctx, snap.Dataset)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if !c.packed() {
		if _, err := c.transfer(ctx, in, Scope{Source: c.from, Selections: list}); err != nil {
			return err
		}
	}
	for _, sel := range list {
		moved := *sel
		if c.packed() {
			if err := c.bitmap(ctx, in, &moved); err != nil {
				return err
			}
		}
		moved.Snapshot = c.as[nameOf(snap)]
		if err := in.SaveSelection(ctx, moved); err != nil {
			return err
		}
		c.done.Selections++
	}
	return nil
}

// bitmap puts the bitmap of a selection into the target, and has the selection name it there.
func (c *copier) bitmap(ctx context.Context, in store.Ingest, sel *schema.Selection) error {
	t := &transfer{copier: c, in: in, scope: Scope{Source: c.from}, hashed: c.hashedIn(c.from)}
	b, err := t.read(ctx, c.from, sel.Bitmap, t.hashed(sel.Bitmap.Key))
	if err != nil {
		return err
	}
	defer b.Release()
	ref, err := t.putNew(ctx, b.Bytes())
	if err == nil {
		sel.SetBitmap(ref, b.Bytes())
	}
	return err
}

// numbering gives the target the tags of what was copied, under the numbers that it has
// there, and has it give out greater numbers than the source has.
func (c *copier) numbering(ctx context.Context) error {
	last := map[string]int64{}
	for _, s := range c.done.Snapshots {
		// Before the snapshots are listed: a number that is given out meanwhile is none of this copy.
		if c.opts.Numbers && !c.opts.Renumber && last[s.Dataset] == 0 {
			var err error
			if last[s.Dataset], err = c.from.LastNumber(ctx, s.Dataset); err != nil {
				return err
			}
		}
	}
	list, err := c.from.Datasets(ctx)
	if err != nil {
		return err
	}
	have, err := c.to.Datasets(ctx)
	if err != nil {
		return err
	}
	for _, d := range list {
		if last[d.Name] > 0 && c.whole(d) {
			if err := c.to.Advance(ctx, d.Name, last[d.Name]); err != nil {
				return err
			}
		}
		var tags []store.Tag
		if i := slices.IndexFunc(have, func(o store.Dataset) bool { return o.Name == d.Name }); i >= 0 {
			tags = have[i].Tags
		}
		for _, tag := range d.Tags {
			number, ok := c.as[Name{Dataset: d.Name, Number: tag.Snapshot}]
			if !ok {
				continue
			}
			if err := c.tag(ctx, d.Name, tag.Name, number, tags); err != nil {
				return err
			}
		}
	}
	return nil
}

// whole says whether all snapshots of a dataset were to be copied.
func (c *copier) whole(d store.Dataset) bool {
	for _, number := range d.Snapshots {
		if !slices.ContainsFunc(c.done.Snapshots, func(s CopiedSnapshot) bool {
			return s.Dataset == d.Name && s.Snapshot == number
		}) {
			return false
		}
	}
	return true
}

// tag sets a tag of the target, which has others.
func (c *copier) tag(ctx context.Context, dataset, name string, number int64, have []store.Tag) error {
	if i := slices.IndexFunc(have, func(t store.Tag) bool { return t.Name == name }); i >= 0 {
		was := have[i].Snapshot
		if was != number && !c.opts.MoveTags {
			c.done.KeptTags = append(c.done.KeptTags, KeptTag{dataset, name, was, number})
		}
		if was == number || !c.opts.MoveTags {
			return nil
		}
	}
	if err := c.to.Tag(ctx, dataset, name, number); err != nil {
		return err
	}
	c.done.Tags++
	return nil
}
