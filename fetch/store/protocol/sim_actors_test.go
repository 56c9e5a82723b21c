package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/store"
	"bowstring/schema"
)

const (
	// lasts is how long processes are at work.
	lasts = 4 * time.Minute
	// payloads is how many different blobs they import.
	payloads = 6
)

var (
	simDatasets  = []string{"a", "b"}
	simSchema, _ = schema.NewSchema(nil, []arrow.Field{schema.BlobField("x", "", false)})
)

// actor is a process of the simulation with its store.
type actor struct {
	w     *world
	p     *process
	s     *Store
	inUse map[string]*schema.Snapshot // nil if the process does not report it
	marks int
}

// launch begins a process with some of these roles.
func (w *world) launch(name string, bugs bug, roles ...func(*actor)) {
	p := &process{w: w, name: name}
	if w.faults.clocks {
		p.clock = w.between(-10*time.Minute, 10*time.Minute)
	}
	for range w.faults.suspends + w.faults.kills {
		p.hurtAt = append(p.hurtAt, 1+w.rng.IntN(160))
	}
	w.procs = append(w.procs, p)
	p.Go(func() {
		s := New(w.database(p), p, Options{Holder: name, RenewEvery: 5 * time.Second, Parallel: 3,
			References: simReferences})
		s.bugs, s.memo = bugs, &w.memo
		a := &actor{w: w, p: p, s: s}
		if w.chance(2) {
			a.inUse = map[string]*schema.Snapshot{}
			s.SetInUse(a.using)
		}
		for _, role := range roles {
			p.Go(func() {
				for w.now < lasts {
					role(a)
				}
			})
		}
	})
}

func simReferences(_ *schema.Snapshot, _ schema.Chunk, blob schema.Blob, visit func(schema.Key)) error {
	for _, key := range keysIn(blob.Bytes()) {
		visit(key)
	}
	return nil
}

func (a *actor) using() []*schema.Snapshot {
	var list []*schema.Snapshot
	for _, snap := range a.inUse {
		list = append(list, snap)
	}
	return list
}

func (a *actor) sleep(d time.Duration) {
	_ = a.p.Wait(context.Background(), nil, a.w.between(0, d))
}

func (a *actor) dataset() string { return simDatasets[a.w.rng.IntN(len(simDatasets))] }

// failed says whether an error is one that users have to live with.
func (a *actor) failed(doing string, err error, excuses ...error) bool {
	if err == nil {
		return false
	}
	a.w.say(a.p, "%s: %v", doing, err)
	if errors.Is(err, schema.ErrUnavailable) {
		return true
	}
	for _, excuse := range excuses {
		if errors.Is(err, excuse) {
			return true
		}
	}
	a.w.wrong("%s: %v", doing, err)
	return true
}

// imports begins an ingest, and commits a snapshot or two, or a selection, or keeps checksums.
func (a *actor) imports() {
	ctx, w := context.Background(), a.w
	a.sleep(20 * time.Second)
	dataset := a.dataset()
	begun, err := a.s.Begin(ctx, dataset)
	if a.failed("begin", err) {
		return
	}
	in := begun.(*Ingest)
	defer func() { _ = in.Close() }()
	w.say(a.p, "begins an ingest into %s in epoch %d", dataset, in.epoch)
	if w.chance(4) {
		a.selects(in)
		return
	}
	if w.chance(4) {
		a.proves(in)
		return
	}
	for again := true; again; again = w.chance(4) {
		if !a.commits(in) {
			return
		}
	}
}

// pass waits until no collection runs, except one that is suspended.
func (a *actor) pass() {
	for w := a.w; w.faults.stall != "" && w.db.collecting.Run != "" && !w.collectorFrozen(); {
		a.sleep(time.Second)
	}
}

func (a *actor) commits(in *Ingest) bool {
	ctx, w := context.Background(), a.w
	var chunk []byte
	for range 1 + w.rng.IntN(w.faults.rows()) {
		a.pass()
		ref, err := in.Put(ctx, fmt.Appendf(nil, "payload %d", w.rng.IntN(w.faults.blobs())))
		if a.failed("put", err) {
			switch { // what it leaves half done meets a collection
			case w.faults.stall != "":
				_ = a.p.Wait(context.Background(), nil, w.between(rowLapses, 2*time.Minute))
			case w.faults.bytes > 0:
				a.sleep(time.Minute)
			}
			return false
		}
		chunk = append(chunk, ref.Key[:]...)
		if w.chance(2) {
			a.sleep(15 * time.Second)
		}
	}
	a.pass()
	ref, err := in.Put(ctx, chunk)
	if a.failed("put", err) {
		return false
	}
	a.marks++
	mark := fmt.Sprintf("%s-%d", a.p.name, a.marks)
	snap := schema.Snapshot{Schema: simSchema, Source: mark}
	if w.chance(3) { // a record of its own blob
		var long strings.Builder
		for range 90 {
			fmt.Fprintf(&long, " %016x", w.rng.Uint64())
		}
		snap.Source += long.String()
	}
	if w.chance(3) { // rows in an object set
		set, err := in.Put(ctx, fmt.Appendf(nil, "set %d", w.rng.IntN(3)))
		if a.failed("put", err) {
			return false
		}
		snap.Sets = []schema.SetRef{{Blob: set}}
		if w.chance(2) {
			a.sleep(15 * time.Second)
		}
	}
	parent, err := a.s.Snapshot(ctx, in.dataset, 0)
	if err != nil && !errors.Is(err, schema.ErrNotFound) {
		a.failed("look for the parent", err)
		return false
	}
	if parent != nil {
		snap.Parent = parent.Number
		if w.chance(2) {
			snap.Chunks = append(snap.Chunks, parent.Chunks...)
			snap.Sets = append(snap.Sets, parent.Sets...)
			if w.chance(2) && !a.alters(ctx, in, &snap) {
				return false
			}
		}
	}
	snap.Chunks = append(snap.Chunks, schema.Chunk{BlobRef: ref, Rows: int64(len(chunk) / len(schema.Key{})),
		BlobBytes: []int64{0}})
	if w.chance(3) {
		a.sleep(10 * time.Second)
	}
	excuses := []error{schema.ErrConflict}
	if w.packed && w.chance(3) {
		a.carries(ctx, in.dataset, &snap)
		excuses = append(excuses, schema.ErrInvalid) // what it carries was dropped meanwhile
		if w.chance(2) {                             // until it holds what it carries no more
			_ = a.p.Wait(ctx, nil, w.between(heldFor, 3*heldFor))
			if newest, err := a.s.Snapshot(ctx, in.dataset, 0); err == nil {
				snap.Parent = newest.Number
			}
		}
	}
	got, err := in.Commit(ctx, snap)
	a.outcome(in.dataset, mark, got, err)
	return !a.failed("commit", err, excuses...)
}

// alters replaces the chunks of a snapshot, which are the parent's, by one that refers to some of their blobs, which are
// not put again.
func (a *actor) alters(ctx context.Context, in *Ingest, snap *schema.Snapshot) bool {
	var chunk []byte
	for _, c := range snap.Chunks {
		blob, err := a.w.database(a.p).Read(ctx, c.BlobRef)
		if err != nil { // the parent may have been dropped and collected
			a.failed("read the parent", err, schema.ErrNotFound)
			return false
		}
		for _, key := range keysIn(blob.Bytes()) {
			if !a.w.chance(4) {
				chunk = append(chunk, key[:]...)
			}
		}
		blob.Release()
	}
	snap.Chunks = nil
	if chunk == nil {
		return true
	}
	a.pass()
	ref, err := in.Put(ctx, chunk)
	if a.failed("put", err) {
		return false
	}
	snap.Chunks = []schema.Chunk{{BlobRef: ref, Rows: int64(len(chunk) / len(schema.Key{})), BlobBytes: []int64{0}}}
	return true
}

// outcome compares the answer of a commit with its effect.
func (a *actor) outcome(dataset, mark string, got *schema.Snapshot, err error) {
	made := a.w.oracle.made[mark]
	switch {
	case err == nil && (len(made) != 1 || made[0] != got.Number):
		a.w.wrong("commit %s to %q was said to be %d and was made as %d", mark, dataset, got.Number, made)
	case errors.Is(err, schema.ErrConflict) && len(made) != 0:
		a.w.wrong("commit %s to %q was refused and made as %d", mark, dataset, made)
	}
}

func (a *actor) selects(in *Ingest) {
	ctx, w := context.Background(), a.w
	ref, err := in.Put(ctx, fmt.Appendf(nil, "bitmap %d", w.rng.IntN(3)))
	if a.failed("put a bitmap", err) {
		return
	}
	snap, err := a.s.Snapshot(ctx, in.dataset, 0)
	if a.failed("look for a snapshot", err, schema.ErrNotFound) {
		return
	}
	if w.chance(2) {
		a.sleep(30 * time.Second)
	}
	err = in.SaveSelection(ctx, schema.Selection{Dataset: in.dataset, Snapshot: snap.Number, Bitmap: ref})
	a.failed("save a selection", err, schema.ErrNotFound)
}

// proves keeps checksums that were learned of the blobs in an object set: beside those that are kept, or joined with them.
func (a *actor) proves(in *Ingest) {
	ctx, w := context.Background(), a.w
	snap, err := a.s.Snapshot(ctx, in.dataset, 0)
	if a.failed("look for a snapshot", err, schema.ErrNotFound) {
		return
	}
	if !slices.ContainsFunc(snap.Sets, func(set schema.SetRef) bool { return set.Prefix == simSet }) {
		return
	}
	was, err := a.s.Proofs(ctx, in.dataset, simSet)
	if a.failed("look for checksums", err, schema.ErrNotFound) {
		return
	}
	a.pass()
	ref, err := in.Put(ctx, fmt.Appendf(nil, "checksums %d", w.rng.IntN(3)))
	if a.failed("put checksums", err) {
		return
	}
	run := store.ProofRun{BlobRef: ref, Unproven: schema.Unproven{Blobs: 1}}
	now := append(slices.Clone(was), run)
	if w.chance(2) {
		run.Blobs += proven(was)
		now = []store.ProofRun{run}
	}
	if w.chance(2) {
		a.sleep(30 * time.Second)
	}
	a.failed("keep checksums", in.SaveProofs(ctx, simSet, was, now), schema.ErrNotFound, schema.ErrConflict)
}

// simSet is the prefix of the object sets that actors put.
var simSet schema.ObjectPrefix

// proven is how many checksums runs have.
func proven(runs []store.ProofRun) (n int64) {
	for _, run := range runs {
		n += run.Blobs
	}
	return n
}

// drops drops a snapshot, or all.
func (a *actor) drops() {
	ctx, w := context.Background(), a.w
	a.sleep(25 * time.Second)
	list, err := a.s.Datasets(ctx)
	if a.failed("list the datasets", err) || len(list) == 0 {
		return
	}
	d := list[w.rng.IntN(len(list))]
	number := d.Snapshots[w.rng.IntN(len(d.Snapshots))]
	switch w.rng.IntN(10) {
	case 0:
		a.failed("tag", a.s.Tag(ctx, d.Name, "prod", number), schema.ErrNotFound)
		return
	case 1, 2:
		a.failed("untag", a.s.Untag(ctx, d.Name, "prod"), schema.ErrNotFound)
	case 3:
		number = 0
	default:
		if w.faults.stall != "" {
			number = 0
		}
	}
	// Tags forbid it.
	a.failed("drop", a.s.Drop(ctx, d.Name, number), schema.ErrNotFound, schema.ErrInvalid)
}

// reads opens a snapshot, and reads it for some time, even if it is dropped.
func (a *actor) reads() {
	ctx, w := context.Background(), a.w
	a.sleep(10 * time.Second)
	dataset := a.dataset()
	// A process that was out of touch, meanwhile or later, may find that the snapshot it
	// reads is gone.
	id, since := a.s.member.id, w.db.lapses[a.s.member.id]
	snap, err := a.s.Snapshot(ctx, dataset, 0)
	if a.failed("open a snapshot", err, schema.ErrNotFound) {
		return
	}
	name := snapshotName(dataset, snap.Number)
	if a.inUse != nil {
		a.inUse[name] = snap
		defer delete(a.inUse, name)
	}
	for range 1 + w.rng.IntN(8) {
		a.sleep(20 * time.Second)
		var refs []schema.BlobRef
		for _, chunk := range snap.Chunks {
			refs = append(refs, chunk.BlobRef)
			for _, key := range keysIn(w.db.content[chunk.Key]) {
				refs = append(refs, schema.BlobRef{Key: key})
			}
		}
		for _, set := range snap.Sets {
			if set.Blob != (schema.BlobRef{}) {
				refs = append(refs, set.Blob)
			}
		}
		for _, ref := range refs {
			_, err := w.database(a.p).Read(ctx, ref)
			if errors.Is(err, schema.ErrNotFound) && w.db.members[id] != nil && w.db.lapses[id] == since {
				w.wrong("%s reads %s, which lacks blob %s", a.p.name, name, ref.Key.String()[:8])
			}
			if err != nil {
				return
			}
		}
	}
}

// collects collects.
func (a *actor) collects() {
	if a.w.faults.stall != "" {
		a.sleep(10 * time.Second)
	} else {
		a.sleep(40 * time.Second)
	}
	inUse := a.using
	if a.inUse == nil {
		inUse = nil
	}
	r, err := a.s.GC(context.Background(), store.GCOptions{DryRun: a.w.chance(8)}, inUse)
	if !a.failed("collect", err) {
		a.w.say(a.p, "has collected: %+v", r)
	}
}
