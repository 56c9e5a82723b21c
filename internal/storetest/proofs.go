package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// commitSets commits a snapshot that names object sets with the given prefixes.
func (b *bench) commitSets(dataset string, parent int64, prefixes ...schema.ObjectPrefix) *schema.Snapshot {
	in := b.begin(dataset)
	defer func() { b.ok(in.Close(), "close the ingest") }()
	snap, err := Put(b.ctx, in, blobsOf("rows of "+dataset, 3, gcBlob), 2)
	b.ok(err, "put")
	snap.Parent = parent
	for _, prefix := range prefixes {
		ref, err := in.Put(b.ctx, blobOf(prefix.String(), gcBlob))
		b.ok(err, "put a set")
		snap.Sets = append(snap.Sets, schema.SetRef{Prefix: prefix, Blob: ref, Unproven: schema.Unproven{Blobs: 7, Bytes: 70}})
	}
	made, err := in.Commit(b.ctx, snap)
	b.ok(err, "commit")
	return made
}

// runOf puts a run of checksums.
func (b *bench) runOf(in store.Ingest, data []byte) store.ProofRun {
	return store.ProofRun{BlobRef: b.put(in, data), Unproven: schema.Unproven{Blobs: int64(data[0]), Bytes: int64(len(data))}}
}

// proofs: the saved checksums of a set are those saved last, of that set and dataset alone. Saving them again changes
// nothing, and does not overwrite what another ingest saved meanwhile.
func proofs(b *bench) {
	one, two := schema.ObjectPrefix{1}, schema.ObjectPrefix{2}
	made := b.commitSets("p", 0, one, two)
	for _, set := range made.Sets {
		want := schema.Unproven{Blobs: 7, Bytes: 70}
		if set.Blob == (schema.BlobRef{}) {
			want = schema.Unproven{} // the ingest's own
		}
		b.that(set.Unproven == want, "set %s has %+v unproven, want %+v", set.Prefix, set.Unproven, want)
	}
	// saved requires the runs of a set, in order.
	saved := func(dataset string, prefix schema.ObjectPrefix, want ...store.ProofRun) {
		got, err := b.store.Proofs(b.ctx, dataset, prefix)
		b.ok(err, "proofs")
		b.that(slices.Equal(got, want), "of set %s in %s was learned %v, want %v", prefix, dataset, got, want)
	}
	saved("p", one)
	saved("absent", one)
	in := b.begin("p")
	defer func() { b.ok(in.Close(), "close the ingest") }()
	// SaveProofs is a compare and swap of the whole list.
	first, second := b.runOf(in, blobOf("first", gcBlob)), b.runOf(in, blobOf("second", gcBlob))
	never := store.ProofRun{BlobRef: schema.RefOf([]byte("never put"))}
	b.fails(in.SaveProofs(b.ctx, one, nil, []store.ProofRun{never}), schema.ErrInvalid, "save proofs that were not put")
	b.ok(in.SaveProofs(b.ctx, one, nil, []store.ProofRun{first}), "save proofs")
	b.ok(in.SaveProofs(b.ctx, one, nil, []store.ProofRun{first}), "save them again")
	b.fails(in.SaveProofs(b.ctx, one, nil, []store.ProofRun{second}), schema.ErrConflict, "save over what is there")
	saved("p", one, first)
	b.ok(in.SaveProofs(b.ctx, one, []store.ProofRun{first}, []store.ProofRun{first, second}), "save more")
	saved("p", one, first, second)
	saved("p", two)
	joined := b.runOf(in, blobOf("joined", gcBlob))
	b.ok(in.SaveProofs(b.ctx, one, []store.ProofRun{first, second}, []store.ProofRun{joined}), "save one for both")
	b.reopen2(&in, "p")
	saved("p", one, joined)
	saved("p", two)

	other := b.begin("none")
	defer func() { b.ok(other.Close(), "close the ingest") }()
	run := b.runOf(other, blobOf("of nothing", gcBlob))
	b.fails(other.SaveProofs(b.ctx, one, nil, []store.ProofRun{run}), schema.ErrNotFound,
		"save proofs of a dataset that has no snapshot")
}

// reopen2 opens the store again, and an ingest.
func (b *bench) reopen2(in *store.Ingest, dataset string) {
	b.ok((*in).Close(), "close the ingest")
	b.reopen()
	*in = b.begin(dataset)
}

// concurrentProvers: several ingests each add a run to the saved ones; no run is lost.
func concurrentProvers(b *bench) {
	prefix := schema.ObjectPrefix{9}
	b.commitSets("p", 0, prefix)
	// Each prover tries again after a conflict, with the list that it then reads.
	const provers = 6
	errs := make([]error, provers)
	runs := make([]store.ProofRun, provers)
	ingests := make([]store.Ingest, provers)
	for i := range provers {
		ingests[i] = b.begin("p")
		runs[i] = b.runOf(ingests[i], blobOf(fmt.Sprint("prover ", i), gcBlob))
	}
	var all sync.WaitGroup
	for i := range provers {
		all.Go(func() {
			for {
				was, err := b.store.Proofs(b.ctx, "p", prefix)
				if err == nil {
					err = ingests[i].SaveProofs(b.ctx, prefix, was, append(slices.Clone(was), runs[i]))
				}
				if errs[i] = err; !errors.Is(err, schema.ErrConflict) {
					return
				}
			}
		})
	}
	all.Wait()
	for i := range provers {
		b.ok(errs[i], "save proofs")
		b.ok(ingests[i].Close(), "close the ingest")
	}
	got, err := b.store.Proofs(b.ctx, "p", prefix)
	b.ok(err, "proofs")
	b.that(len(got) == provers, "%d provers saved %d runs", provers, len(got))
	for _, run := range runs {
		b.that(slices.Contains(got, run), "the run %v is lost", run)
	}
}

// gcProofs: saved checksums of a set live as long as a snapshot that names it, or a reader of one; runs that others
// replaced do not.
func gcProofs(b *bench) {
	kept, gone := schema.ObjectPrefix{1}, schema.ObjectPrefix{2}
	b.commitSets("g", 0, kept, gone)
	b.commitSets("g", 1, kept)
	blobs := [][]byte{blobOf("replaced", gcBlob), blobOf("kept", gcBlob), blobOf("gone", gcBlob)}
	save := func(prefix schema.ObjectPrefix, was []store.ProofRun, data []byte) []store.ProofRun {
		in := b.begin("g") // separate ingests: blobs in a segment are collected together, when none is referenced
		defer func() { b.ok(in.Close(), "close the ingest") }()
		now := []store.ProofRun{b.runOf(in, data)}
		b.ok(in.SaveProofs(b.ctx, prefix, was, now), "save proofs")
		return now
	}
	was := save(kept, nil, blobs[0])
	save(kept, was, blobs[1])
	save(gone, nil, blobs[2])
	b.gc(store.GCOptions{})
	b.reopen()
	b.lacks(blobs[0])
	b.has(blobs[1])
	b.has(blobs[2])
	read := b.snapshot("g", 1)
	b.ok(b.store.Drop(b.ctx, "g", 1), "drop")
	_, err := b.store.GC(b.ctx, store.GCOptions{}, func() []*schema.Snapshot { return []*schema.Snapshot{read} })
	b.ok(err, "collect")
	b.has(blobs[2])
	b.gc(store.GCOptions{DryRun: true})
	b.has(blobs[2])
	b.gc(store.GCOptions{})
	b.has(blobs[1])
	b.lacks(blobs[2])
	left, err := b.store.Proofs(b.ctx, "g", gone)
	b.ok(err, "proofs")
	b.that(len(left) == 0, "of a set that no snapshot names, %v is left", left)
	b.ok(b.store.Drop(b.ctx, "g", 0), "drop the dataset")
	b.gc(store.GCOptions{})
	b.lacks(blobs[1])
}
