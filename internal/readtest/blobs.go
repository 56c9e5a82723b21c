package readtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/read"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// blobOf makes n bytes that depend on the arguments alone. Tests can make the same
// content again instead of keeping it.
func blobOf(name string, n int) []byte {
	var seed [32]byte
	copy(seed[:], name)
	binary.LittleEndian.PutUint64(seed[24:], uint64(n))
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(seed).Read(b) // never fails
	return b
}

// put stores a blob in the tier.
func (b *bench) put(data []byte) schema.BlobRef {
	ref, err := b.Put(b.ctx, data)
	b.ok(err, "put %d bytes", len(data))
	b.that(ref == schema.RefOf(data), "put of %d bytes returned %+v, want %+v", len(data), ref, schema.RefOf(data))
	return ref
}

// has calls Has, which must return at once.
func (b *bench) has(ref schema.BlobRef) (has bool) {
	b.ends("Has", func() error { has = b.Tier.Has(ref); return nil })
	return has
}

// tryGet fetches a blob, which may be missing. An error must come without bytes.
func (b *bench) tryGet(ctx context.Context, ref schema.BlobRef) (blob schema.Blob, err error) {
	b.ends("Fetch", func() error { blob, err = b.fetchOne(ctx, ref); return nil })
	b.that(err == nil || len(blob.Bytes()) == 0, "Fetch answers %d bytes with the error %w", len(blob.Bytes()), err)
	return blob, err
}

// fetchOne fetches one cell from the tier.
func (b *bench) fetchOne(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	to := newAnswers(1)
	b.Tier.Fetch([]read.Cell{{Context: ctx, Ref: ref, At: b.At}}, to)
	a, err := to.one(0)
	if err != nil {
		return schema.Blob{}, err
	}
	return a.Blob, a.Err
}

// answers collects the answers of a tier, and counts them. The tier may call Answer from
// any goroutine.
type answers struct {
	mu    sync.Mutex // guards the fields below
	list  []read.Answer
	times []int
	wrong int           // answers to cells that were not requested
	came  chan struct{} // gets a value for each answer; large enough for wrong ones as well
}

// newAnswers expects answers to n cells.
func newAnswers(n int) *answers {
	return &answers{list: make([]read.Answer, n), times: make([]int, n), came: make(chan struct{}, 4*n+4)}
}

// Answer implements read.Answers.
func (a *answers) Answer(n int, answer read.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n < 0 || n >= len(a.list) {
		a.wrong++
		return
	}
	a.list[n] = answer
	a.times[n]++
	a.came <- struct{}{}
}

// one returns the answer to a cell. It returns an error unless there was exactly one: a
// second answer would release a blob twice.
func (a *answers) one(n int) (read.Answer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wrong > 0 || a.times[n] != 1 {
		return read.Answer{}, fmt.Errorf("a cell is answered %d times, and %d answers are to none", a.times[n], a.wrong)
	}
	return a.list[n], nil
}

// together fetches many cells at once. Some of them are missing. Each cell gets its own
// answer.
func together(b *bench) {
	// One in seven is missing. Sizes differ, so that a mix-up of answers is found.
	const n = 50
	contents, cells := make([][]byte, n), make([]read.Cell, n)
	for i := range cells {
		contents[i] = blobOf(fmt.Sprint("together", i), 97*i+1)
		cells[i] = read.Cell{Context: b.ctx, Ref: schema.RefOf(contents[i]), At: b.At, Use: int64(i)}
		if i%7 != 3 {
			b.put(contents[i])
		}
	}
	to := newAnswers(n)
	b.ends("Fetch", func() error { b.Tier.Fetch(cells, to); return nil })
	for i := range cells {
		a, err := to.one(i)
		b.ok(err, "fetch %d cells", n)
		if i%7 == 3 {
			b.that(errors.Is(a.Err, schema.ErrNotFound), "a cell among others that is not there: got the error %v", a.Err)
			continue
		}
		b.ok(a.Err, "fetch a cell among others of which some are not there")
		b.right(&a.Blob, contents[i])
		a.Blob.Release()
	}
}

// leftAlone cancels some of several cells that wait. They are released at once, and the
// others arrive.
func leftAlone(b *bench) {
	if b.Hang == nil {
		return
	}
	const n = 6
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	// Every second cell has the context that is cancelled.
	contexts := [2]context.Context{b.ctx, ctx}
	contents, cells := make([][]byte, n), make([]read.Cell, n)
	for i := range cells {
		contents[i] = blobOf(fmt.Sprint("left", i), 100+i)
		b.put(contents[i])
		cells[i] = read.Cell{Context: contexts[i%2], Ref: schema.RefOf(contents[i]), At: b.At}
	}
	release := b.Hang()
	defer release()
	to, done := newAnswers(n), make(chan struct{})
	go func() {
		defer close(done)
		b.Tier.Fetch(cells, to)
	}()
	// A tier that hangs must fail the case and not the test binary.
	wait := func(c <-chan struct{}, what string) {
		select {
		case <-c:
		case <-b.ctx.Done():
			b.stuck = true
			b.failf("%s", what)
		}
	}
	cancel()
	for range n / 2 {
		wait(to.came, "cells are not released while others of the same Fetch wait")
	}
	release()
	wait(done, "Fetch does not return")
	for i := range cells {
		a, err := to.one(i)
		b.ok(err, "fetch cells of which some are released")
		b.that((a.Err == nil) == (i%2 == 0), "cell %d, whose context has ended: %t, has the error %v", i, i%2 == 1, a.Err)
		if a.Err == nil {
			b.right(&a.Blob, contents[i])
			a.Blob.Release()
		}
	}
}

// get requires that the tier has a blob, and returns it. The caller releases it.
func (b *bench) get(data []byte) schema.Blob {
	ref := schema.RefOf(data)
	b.that(b.has(ref), "Has says that a blob of %d bytes is not there, which is", len(data))
	blob, err := b.tryGet(b.ctx, ref)
	b.ok(err, "get a blob of %d bytes", len(data))
	b.right(&blob, data)
	return blob
}

// right requires that a held blob has its bytes.
func (b *bench) right(blob *schema.Blob, want []byte) {
	b.that(bytes.Equal(blob.Bytes(), want), "a blob of %d bytes has other bytes, %d", len(want), len(blob.Bytes()))
}

// unread is a store that panics when it is read: its methods are nil.
type unread struct{ store.Store }

// Traits implements store.Store.
func (unread) Traits() store.Traits { return store.Traits{} }

// traits checks that name and traits never change: callers read them once.
func traits(b *bench) {
	b.ok(read.Validate([]read.Tier{b.Tier, read.Store(unread{})}), "validate")
	name, was := b.Tier.Name(), b.Tier.Traits()
	b.that(name != "", "the tier has no name")
	same := func(after string) {
		b.that(b.Tier.Name() == name, "after %s the tier is named %q, and was %q", after, b.Tier.Name(), name)
		b.that(b.Tier.Traits() == was, "after %s the traits are %+v, and were %+v", after, b.Tier.Traits(), was)
	}
	// Name and traits are compared after each event.
	data := blobOf("traits", 1000)
	b.put(data)
	same("a put")
	blob := b.get(data)
	blob.Release()
	same("a get")
	b.churn()
	same("changes")
	b.close()
	same("it was closed")
}

// churn changes the tier, if it can change.
func (b *bench) churn() {
	if b.Churn != nil {
		b.ok(b.Churn(), "churn")
	}
}

// there checks blobs of sizes around those of buffers and pages. Two reads of a blob have
// pins of their own.
func there(b *bench) {
	for _, n := range []int{0, 1, 63, 64, 65, 4096, 110_000, 1 << 20} {
		data := blobOf("there", n)
		b.put(data)
		first, second := b.get(data), b.get(data)
		first.Release()
		b.right(&second, data) // each has its own pin
		second.Release()
		third := b.get(data)
		third.Release()
	}
}

// notThere checks the errors for blobs that are missing, or whose reference is wrong.
func notThere(b *bench) {
	lacks := func(what string, ref schema.BlobRef) error {
		b.has(ref)
		blob, err := b.tryGet(b.ctx, ref)
		if err == nil {
			blob.Release()
			b.failf("Fetch of %s is no error", what)
		}
		return err
	}
	// A missing blob first in an empty tier, and then next to another blob.
	unknown := schema.RefOf(blobOf("unknown", 100))
	err := lacks("a blob that is not there", unknown)
	b.that(errors.Is(err, schema.ErrNotFound), "Fetch of a blob that is not there: got the error %q, want one "+
		"that wraps %q", err, schema.ErrNotFound)
	data := blobOf("known", 1000)
	ref := b.put(data)
	_ = lacks("a blob that is not there, while another is", unknown)
	if b.Tier.Traits().Checked {
		other := ref
		other.Sum++
		_ = lacks("a blob of another checksum", other)
		other = ref
		other.Size++
		_ = lacks("a blob of another size", other)
	}
	blob := b.get(data) // the wrong references have not damaged it
	blob.Release()
}

// held checks that blobs stay valid while the tier changes and is closed. A tier that
// reuses their memory fails.
func held(b *bench) {
	var blobs []schema.Blob
	var contents [][]byte
	for i, n := range []int{1, 100, 5000, 110_000, 300_000} {
		data := blobOf(fmt.Sprint("held", i), n)
		b.put(data)
		blobs, contents = append(blobs, b.get(data)), append(contents, data)
	}
	stay := func() {
		for i := range blobs {
			b.right(&blobs[i], contents[i])
		}
	}
	b.churn()
	stay()
	b.close()
	stay()
	for i := range blobs {
		blobs[i].Release()
	}
}

// ends checks that a Fetch that waits ends with its context.
func ends(b *bench) {
	if b.Hang == nil {
		return
	}
	data := blobOf("waits", 5000)
	ref := b.put(data)
	ctx, cancel := context.WithCancel(b.ctx)
	release := b.Hang()
	defer release()
	cancelled := make(chan struct{})
	go func() { // while it waits, or just before
		defer close(cancelled)
		cancel()
	}()
	blob, err := b.tryGet(ctx, ref)
	<-cancelled
	if err == nil {
		blob.Release()
		b.failf("Fetch answers a blob, though nothing answers and its context has ended")
	}
	release()
	blob = b.get(data)
	blob.Release()
}

// hasDoesNotWait checks that Has returns while the tier waits for something else.
func hasDoesNotWait(b *bench) {
	data := blobOf("has", 5000)
	ref := b.put(data)
	if b.Hang == nil {
		b.that(b.has(ref), "Has says that a blob is not there, which is")
		return
	}
	ctx, cancel := context.WithCancel(b.ctx)
	release := b.Hang()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if blob, err := b.fetchOne(ctx, ref); err == nil {
			blob.Release()
		}
	}()
	defer func() {
		cancel()
		release()
		if !b.stuck {
			<-done
		}
	}()
	for range 100 {
		b.that(b.has(ref), "Has says that a blob is not there, which is")
	}
}

// concurrent fetches at once from several goroutines, with a constant seed.
func concurrent(b *bench) {
	// Few blobs and many reads, so that the same ones are read at once.
	const workers, each, pool = 6, 100, 20
	const seed = 11
	var contents [][]byte
	for i := range pool {
		contents = append(contents, blobOf(fmt.Sprint("pool", i), 97*i+i%3))
		b.put(contents[i])
	}
	work := func(w int) error {
		r := rand.New(rand.NewPCG(seed, uint64(w)))
		for range each {
			data := contents[r.IntN(pool)]
			ref := schema.RefOf(data)
			if !b.Tier.Has(ref) {
				return fmt.Errorf("a blob is not there: %s", ref.Key)
			}
			blob, err := b.fetchOne(b.ctx, ref)
			if err != nil {
				return err
			}
			same := bytes.Equal(blob.Bytes(), data)
			blob.Release()
			if !same {
				return fmt.Errorf("a blob has other bytes: %s", ref.Key)
			}
		}
		return nil
	}
	b.ends(fmt.Sprintf("getting at once, with seed %d,", seed), func() error {
		var g errgroup.Group
		for w := range workers {
			g.Go(func() error { return work(w) })
		}
		return g.Wait()
	})
}

// checked damages the tier's data. A tier that checks returns the right bytes or an
// error.
func checked(b *bench) {
	if !b.Tier.Traits().Checked || b.Spoil == nil {
		return
	}
	var contents [][]byte
	for i, n := range []int{1000, 5000, 40_000, 110_000} {
		contents = append(contents, blobOf(fmt.Sprint("spoilt", i), n))
		b.put(contents[i])
	}
	b.ok(b.Spoil(), "spoil")
	wrong := 0
	for _, data := range contents {
		blob, err := b.tryGet(b.ctx, schema.RefOf(data))
		if err != nil {
			wrong++
			continue
		}
		b.right(&blob, data)
		blob.Release()
	}
	b.that(wrong > 0, "nothing was spoilt")
}
